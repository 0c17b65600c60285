package server

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// check refuses what would let in more than the configuration says.
func (c *Config) check() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("server: Config.Listen %q: want HOST:PORT: %w", c.Listen, err)
	}
	ip := net.ParseIP(host)
	loopback := host == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case c.InsecureLoopback && !loopback:
		return fmt.Errorf("server: Config.Listen %q: Config.InsecureLoopback lets everybody in who reaches it, so it is for 127.0.0.1, ::1 or localhost alone", c.Listen)
	case c.InsecureLoopback && (c.BehindTLSProxy || len(c.ClientCerts) > 0):
		return errors.New("server: Config.InsecureLoopback lets everybody in: it does not go with Config.BehindTLSProxy or Config.ClientCerts")
	case !loopback && c.TLS == nil && !c.BehindTLSProxy:
		return fmt.Errorf("server: Config.Listen %q: others can reach it, and could read tokens on the way: want Config.TLS, or Config.BehindTLSProxy "+
			"if a proxy in front of it ends TLS, or an address of this machine alone", c.Listen)
	case len(c.ClientCerts) > 0 && (c.TLS == nil || c.TLS.ClientCAs == nil || c.TLS.ClientAuth < tls.VerifyClientCertIfGiven):
		return errors.New("server: Config.ClientCerts: want Config.TLS with ClientCAs, and with ClientAuth VerifyClientCertIfGiven or more")
	}
	return nil
}

// onLoopback reports whether the address that was found for a name is what the name promised.
func onLoopback(l net.Listener) bool {
	at, ok := l.Addr().(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}

// local is for an API that lets everybody in: it serves programs of this machine, not pages of other sites in a browser that
// runs here. Those come with an Origin, or (after DNS rebinding) with a host that is not this one.
func local(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		host := (&url.URL{Host: req.Host}).Hostname()
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			refuse(w, objects.NewProblem(http.StatusMisdirectedRequest, "", "this API serves its own machine alone: ask for 127.0.0.1, [::1] or localhost"))
			return
		}
		if err := origins.Check(req); err != nil {
			refuse(w, objects.NewProblem(http.StatusForbidden, apiclient.TypeForbidden, "this API does not serve pages of other sites"))
			return
		}
		next.ServeHTTP(w, req)
	})
}

func refuse(w http.ResponseWriter, p *apiclient.Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // an error means that the client has gone
}
