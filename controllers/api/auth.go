package api

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// Access says who is let in. The zero value lets in whoever has a token of the store (see [Tokens]).
type Access struct {
	// Insecure lets everybody do everything, without a credential. It is for an API that nobody else can reach.
	Insecure bool
	// ClientCerts says what client certificates allow, by the common name of their subject. Only certificates count that the
	// server's TLS has verified against authorities of its own (tls.Config.ClientCAs).
	ClientCerts map[string]access.Grant
	// Audit gets a line of JSON for each write and for each request that was refused, written in one call, one after another.
	// Default: none is kept.
	Audit io.Writer
	// Rate is how many requests a second a principal may send, and Burst how many at once. A principal is a token or the
	// common name of a certificate. Rate 0 is no limit; Burst 0 is as many as in a second.
	Rate  float64
	Burst int
}

func (a *Access) check() error {
	if a.Insecure && len(a.ClientCerts) > 0 {
		return errors.New("api: Config.Access: Insecure asks for no certificates, so ClientCerts must be empty")
	}
	if a.Rate < 0 || math.IsNaN(a.Rate) || math.IsInf(a.Rate, 1) || a.Burst < 0 {
		return errors.New("api: Config.Access: want a number, not below 0, as Rate and as Burst")
	}
	for name, grant := range a.ClientCerts {
		if name == "" {
			return errors.New("api: Config.Access.ClientCerts: a common name is empty")
		}
		if err := grant.Check(); err != nil {
			return fmt.Errorf("api: Config.Access.ClientCerts %q: %w", name, err)
		}
	}
	return nil
}

// principal is who asks.
type principal struct {
	id, name string
	grant    access.Grant
}

// may returns nil if the principal may do that, and else why not.
func (p *principal) may(verb access.Verb, kind string) error {
	switch {
	case verb == "":
		return forbidden("this operation declares no permission, so nobody has it")
	case !p.grant.Allows(verb, kind):
		return forbidden(p.grant.Refusal(verb, kind))
	}
	return nil
}

// everybody is who asks an API that asks nobody.
var everybody = principal{id: "anonymous", name: "anonymous", grant: access.Grant{Role: access.Admin}}

// authenticate finds out who asks. A token comes before a certificate: it is sent on purpose. Of a principal whose
// credential has run out, it returns the name with the error.
func (d *door) authenticate(req *http.Request) (principal, error) {
	switch credentials := req.Header.Values("Authorization"); {
	case d.access.Insecure:
		return everybody, nil
	case len(credentials) > 0:
		return d.byToken(req, credentials)
	case req.TLS != nil && len(req.TLS.VerifiedChains) > 0:
		return d.byCertificate(req.TLS.VerifiedChains[0][0])
	}
	return principal{}, unauthorized("the request has no credential: send a bearer token or a client certificate")
}

// byToken checks a token. While an address sends wrong ones, those that have never been right are not even looked up; those
// that have been are, for who sends them may share the address with somebody else.
func (d *door) byToken(req *http.Request, credentials []string) (principal, error) {
	scheme, text, _ := strings.Cut(credentials[0], " ")
	text = strings.TrimLeft(text, " ")
	now, from, hash := d.now(), addressOf(req), sha256.Sum256([]byte(text))
	if wait := d.failures.exhausted(from, now); wait > 0 && !d.familiar.has(hash) {
		return principal{}, tooMany{wait, "too many wrong credentials came from this address"}
	}
	var token Token
	ok := len(credentials) == 1 && strings.EqualFold(scheme, "Bearer")
	var err error
	if ok {
		token, ok, err = d.tokens.verify(req.Context(), text)
	}
	if err != nil {
		return principal{}, err
	}
	p := principal{id: "token:" + token.ID, name: token.Name, grant: access.Grant{Role: token.Role, Kinds: token.Kinds}}
	if ok && (token.ExpiresAt == nil || now.Before(*token.ExpiresAt)) {
		d.familiar.add(hash)
		return p, nil
	}
	d.familiar.drop(hash)
	d.failures.take(from, now)
	if ok {
		return p, unauthorized("the token has expired")
	}
	return principal{}, unauthorized("the credential is not a valid bearer token")
}

// byCertificate takes a certificate that TLS has verified when the connection was made, which may be long ago.
func (d *door) byCertificate(cert *x509.Certificate) (principal, error) {
	name := cert.Subject.CommonName
	grant, ok := d.access.ClientCerts[name]
	if !ok || name == "" {
		return principal{}, unauthorized("the common name of the client certificate has no role here")
	}
	p := principal{id: "cert:" + name, name: name, grant: grant}
	if d.now().After(cert.NotAfter) {
		return p, unauthorized("the client certificate has expired")
	}
	return p, nil
}

func unauthorized(detail string) error {
	return objects.NewProblem(http.StatusUnauthorized, apiclient.TypeUnauthorized, detail)
}

func forbidden(detail string) error {
	return objects.NewProblem(http.StatusForbidden, apiclient.TypeForbidden, detail)
}

// tooMany is a request too many.
type tooMany struct {
	wait time.Duration // until it is worth trying again
	why  string
}

// Error says why.
func (t tooMany) Error() string { return t.why }

// seconds is the wait as Retry-After gives it.
func (t tooMany) seconds() int { return max(1, int(math.Ceil(t.wait.Seconds()))) }
