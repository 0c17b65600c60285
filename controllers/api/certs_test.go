package api

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	return a
}

// client makes a client certificate that holds for an hour.
func (a *authority) client(name string, usage x509.ExtKeyUsage) *tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"ops"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(a.t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestClientCertificatesHaveRoles(t *testing.T) {
	s := secure(t, newStore(t), Access{ClientCerts: map[string]access.Grant{
		"ops": {Role: access.Admin}, "ci": {Role: access.Editor, Kinds: []string{"widgets"}},
	}})
	ours, others := newAuthority(t), newAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
	srv := httptest.NewUnstartedServer(s.Handler())
	srv.TLS = &tls.Config{ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS13}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that fail are part of the test
	srv.StartTLS()
	t.Cleanup(srv.Close)
	client := func(cert *tls.Certificate, token, kind string) *apiclient.Client[doc, doc] {
		transport := srv.Client().Transport.(*http.Transport).Clone()
		if cert != nil {
			transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
		}
		t.Cleanup(transport.CloseIdleConnections)
		cfg := apiclient.Config{URL: srv.URL, HTTP: &http.Client{Transport: transport}}
		if token != "" {
			cfg.Token = apiclient.StaticToken(token)
		}
		c, err := apiclient.New[doc, doc](cfg, kind)
		require.NoError(t, err)
		return c
	}
	ops := client(ours.client("ops", x509.ExtKeyUsageClientAuth), "", "gadgets")
	_, err := ops.Create(t.Context(), "blue", doc{})
	require.NoError(t, err)
	lines := s.entries()
	require.Equal(t, []string{"ops", "cert:ops", "admin"}, []string{lines[0].Principal, lines[0].ID, string(lines[0].Role)})

	ci := ours.client("ci", x509.ExtKeyUsageClientAuth)
	_, err = client(ci, "", "widgets").Create(t.Context(), "blue", doc{})
	require.NoError(t, err)
	_, err = client(ci, "", "gadgets").Get(t.Context(), "blue")
	require.ErrorIs(t, err, apiclient.ErrForbidden)
	_, err = client(ours.client("unknown", x509.ExtKeyUsageClientAuth), "", "widgets").Get(t.Context(), "blue")
	require.ErrorIs(t, err, apiclient.ErrUnauthorized, "its other names do not count")
	_, err = client(ours.client("", x509.ExtKeyUsageClientAuth), "", "widgets").Get(t.Context(), "blue")
	require.ErrorIs(t, err, apiclient.ErrUnauthorized)
	_, err = client(nil, "", "widgets").Get(t.Context(), "blue")
	require.ErrorIs(t, err, apiclient.ErrUnauthorized)
	for name, cert := range map[string]*tls.Certificate{
		"of another authority": others.client("ops", x509.ExtKeyUsageClientAuth),
		"of a server":          ours.client("ops", x509.ExtKeyUsageServerAuth),
	} {
		_, err = client(cert, "", "widgets").Get(t.Context(), "blue")
		require.ErrorIs(t, err, apiclient.ErrUnavailable, name)
		require.ErrorContains(t, err, "remote error: tls", name)
	}

	_, viewer := s.token(access.Viewer)
	both := client(ours.client("ops", x509.ExtKeyUsageClientAuth), viewer, "gadgets")
	_, err = both.Get(t.Context(), "blue")
	require.NoError(t, err)
	_, err = both.Delete(t.Context(), "blue")
	require.ErrorIs(t, err, apiclient.ErrForbidden, "the token counts")
	_, err = client(ours.client("ops", x509.ExtKeyUsageClientAuth), "ek_wrong", "gadgets").Get(t.Context(), "blue")
	require.ErrorIs(t, err, apiclient.ErrUnauthorized, "a wrong token is not made good by a certificate")

	s.advance(2 * time.Hour)
	_, err = ops.Get(t.Context(), "blue")
	require.ErrorIs(t, err, apiclient.ErrUnauthorized, "the connection has outlived the certificate")
	require.ErrorContains(t, err, "has expired")
}

// TestUnverifiedCertificatesDoNotCount: a server that asks for certificates and does not verify them lets nobody in.
func TestUnverifiedCertificatesDoNotCount(t *testing.T) {
	s := secure(t, newStore(t), Access{ClientCerts: map[string]access.Grant{"ops": {Role: access.Admin}}})
	cert, err := x509.ParseCertificate(newAuthority(t).client("ops", x509.ExtKeyUsageClientAuth).Certificate[0])
	require.NoError(t, err)
	req := httptest.NewRequest(http.MethodGet, listPath, nil)
	req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, req)
	require.Equal(t, 401, rec.Code)
	req.TLS.VerifiedChains = [][]*x509.Certificate{{cert}}
	rec = httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, req)
	require.Equal(t, 200, rec.Code)
}
