package server

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/controllers/access"
)

// TestOnlySafeAddressesAreTaken: without a credential on this machine alone, and elsewhere not without TLS.
func TestOnlySafeAddressesAreTaken(t *testing.T) {
	loopback := []string{"127.0.0.1:0", "127.1.2.3:0", "[::1]:0", "localhost:0"}
	public := []string{"0.0.0.0:0", "[::]:0", ":0", "192.0.2.1:0", "[2001:db8::1]:0", "example.com:0", "localhost.example.com:0", "127.0.0.1.example.com:0", "[::ffff:192.0.2.1]:0"}
	verifying := &tls.Config{ClientCAs: x509.NewCertPool(), ClientAuth: tls.VerifyClientCertIfGiven}
	certs := map[string]access.Grant{"ops": {Role: access.Admin}}
	const ok = ""
	for name, c := range map[string]struct {
		cfg              Config
		loopback, public string // what is wrong
	}{
		"nothing":           {Config{}, ok, "want Config.TLS"},
		"TLS":               {Config{TLS: &tls.Config{}}, ok, ok},
		"proxy":             {Config{BehindTLSProxy: true}, ok, ok},
		"TLS and proxy":     {Config{BehindTLSProxy: true, TLS: &tls.Config{}}, ok, ok},
		"insecure":          {Config{InsecureLoopback: true}, ok, "Config.InsecureLoopback"},
		"insecure with TLS": {Config{InsecureLoopback: true, TLS: &tls.Config{}}, ok, "Config.InsecureLoopback"},
		"insecure, proxy":   {Config{InsecureLoopback: true, BehindTLSProxy: true}, "does not go with", "Config.InsecureLoopback"},
		"insecure, certs":   {Config{InsecureLoopback: true, TLS: verifying, ClientCerts: certs}, "does not go with", "Config.InsecureLoopback"},
		"certs":             {Config{TLS: verifying, ClientCerts: certs}, ok, ok},
		"certs, no TLS":     {Config{ClientCerts: certs}, "want Config.TLS with ClientCAs", "want Config.TLS"},
		"certs, no CA":      {Config{TLS: &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven}, ClientCerts: certs}, "ClientCAs", "ClientCAs"},
		"certs, unasked":    {Config{TLS: &tls.Config{ClientCAs: x509.NewCertPool()}, ClientCerts: certs}, "ClientAuth", "ClientAuth"},
		"certs, unverified": {Config{TLS: &tls.Config{ClientCAs: x509.NewCertPool(), ClientAuth: tls.RequireAnyClientCert}, ClientCerts: certs}, "ClientAuth", "ClientAuth"},
	} {
		for want, addresses := range map[*string][]string{&c.loopback: loopback, &c.public: public} {
			for _, address := range addresses {
				cfg := c.cfg
				cfg.Listen = address
				if *want == ok {
					require.NoError(t, cfg.check(), "%s %s", name, address)
				} else {
					require.ErrorContains(t, cfg.check(), *want, "%s %s", name, address)
				}
			}
		}
	}
	for _, address := range []string{"8080", "127.0.0.1", ""} {
		require.ErrorContains(t, (&Config{Listen: address}).check(), "want HOST:PORT")
	}
}

// TestInsecureAPIServesNoPagesOfOthers: a page that a browser of this machine has open can send requests to it.
func TestInsecureAPIServesNoPagesOfOthers(t *testing.T) {
	handler := local(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for _, c := range []struct {
		method, host string
		header       []string
		want         int
	}{
		{"POST", "127.0.0.1:8080", nil, 204},
		{"POST", "localhost", nil, 204},
		{"POST", "[::1]:8080", nil, 204},
		{"POST", "::1", nil, 421},
		{"GET", "evil.example:8080", nil, 421},
		{"GET", "127.0.0.1.evil.example", nil, 421},
		{"GET", "", nil, 421},
		{"POST", "127.0.0.1:8080", []string{"Origin", "https://evil.example"}, 403},
		{"POST", "127.0.0.1:8080", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"DELETE", "127.0.0.1:8080", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"POST", "127.0.0.1:8080", []string{"Sec-Fetch-Site", "none"}, 204},
		{"POST", "127.0.0.1:8080", []string{"Origin", "http://127.0.0.1:8080"}, 204},
	} {
		req := httptest.NewRequest(c.method, "/v1/objects/widgets/x/retry", nil)
		req.Host = c.host
		if c.header != nil {
			req.Header.Set(c.header[0], c.header[1])
		}
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, req)
		require.Equal(t, c.want, rec.Code, "%v", c)
		if c.want >= 400 {
			require.Equal(t, "application/problem+json", rec.Header().Get("Content-Type"))
		}
	}
}
