package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/controllers/server"
)

// listenFlags are of every command that serves the API.
type listenFlags struct {
	Listen         string   `help:"Address to serve on. One that others can reach needs TLS." env:"EVENKEEL_LISTEN" default:"127.0.0.1:8080" json:"listen"`
	TLSCert        string   `help:"Certificate to serve HTTPS with (PEM)." env:"EVENKEEL_TLS_CERT" type:"existingfile" json:"tls-cert,omitempty" name:"tls-cert"`
	TLSKey         string   `help:"Its key (PEM)." env:"EVENKEEL_TLS_KEY" type:"existingfile" json:"tls-key,omitempty" name:"tls-key"`
	TLSClientCA    string   `help:"Certificates that those of clients are checked against (PEM)." env:"EVENKEEL_TLS_CLIENT_CA" type:"existingfile" json:"tls-client-ca,omitempty" name:"tls-client-ca"`
	ClientCert     []string `help:"What a client certificate may do, by its common name: NAME=ROLE or NAME=ROLE:KIND,KIND; repeated, or with semicolons." env:"EVENKEEL_CLIENT_CERT" sep:";" placeholder:"NAME=ROLE" json:"client-cert,omitempty"`
	BehindTLSProxy bool     `help:"A proxy in front ends TLS, and nobody else reaches the address: serve it without TLS." env:"EVENKEEL_BEHIND_TLS_PROXY" json:"behind-tls-proxy" name:"behind-tls-proxy"`
	AuditLog       string   `help:"File that gets a line for each write and each refused request; - is the standard output." env:"EVENKEEL_AUDIT_LOG" placeholder:"FILE" json:"audit-log,omitempty"`
	Rate           float64  `help:"Requests a second that a token or a client certificate may make; 0 is no limit." env:"EVENKEEL_RATE" default:"0" json:"rate"`
	Burst          int      `help:"Requests that it may make at once; 0 is as many as in a second." env:"EVENKEEL_BURST" default:"0" json:"burst"`
}

// tls reads the files of TLS. Clients may come without a certificate, for they may have a token, but not with a wrong one.
func (f *listenFlags) tls() (*tls.Config, error) {
	switch {
	case (f.TLSCert == "") != (f.TLSKey == ""):
		return nil, errors.New("--tls-cert and --tls-key go together")
	case (f.TLSClientCA == "") != (len(f.ClientCert) == 0):
		return nil, errors.New("--tls-client-ca and --client-cert go together")
	case f.TLSCert == "" && f.TLSClientCA != "":
		return nil, errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	case f.TLSCert == "":
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(f.TLSCert, f.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert: %w", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if f.TLSClientCA == "" {
		return config, nil
	}
	pem, err := os.ReadFile(f.TLSClientCA)
	if err != nil {
		return nil, fmt.Errorf("--tls-client-ca: %w", err)
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--tls-client-ca: %s: no certificate (PEM) is in it", f.TLSClientCA)
	}
	return config, nil
}

// clientCerts reads NAME=ROLE:KIND,KIND.
func (f *listenFlags) clientCerts() (map[string]access.Grant, error) {
	grants := map[string]access.Grant{}
	for _, text := range f.ClientCert {
		at := strings.LastIndex(text, "=") // neither roles nor kinds have one; common names may
		if at < 1 {
			return nil, fmt.Errorf("--client-cert %q: want NAME=ROLE or NAME=ROLE:KIND,KIND", text)
		}
		name := text[:at]
		grant, err := access.ParseGrant(text[at+1:])
		if err != nil {
			return nil, fmt.Errorf("--client-cert %q: %w", text, err)
		}
		if _, twice := grants[name]; twice {
			return nil, fmt.Errorf("--client-cert: %q is there twice", name)
		}
		grants[name] = grant
	}
	return grants, nil
}

// audit opens the audit log, which is nil if none is kept. What is there is added to.
func (f *listenFlags) audit(out io.Writer) (to io.Writer, end func() error, err error) {
	switch f.AuditLog {
	case "":
		return nil, func() error { return nil }, nil
	case "-":
		return out, func() error { return nil }, nil
	}
	file, err := os.OpenFile(f.AuditLog, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("--audit-log: %w", err)
	}
	return file, file.Close, nil
}

// serve serves cfg, completed from the flags, until the process is told to stop. beside, which may be nil, runs as soon as
// the API is up, and ends with it.
func (f *listenFlags) serve(ctx context.Context, env environment, cfg server.Config, beside func(ctx context.Context, url string) error) (err error) {
	cfg.Listen, cfg.BehindTLSProxy, cfg.Rate, cfg.Burst, cfg.Logger = f.Listen, f.BehindTLSProxy, f.Rate, f.Burst, env.log
	if cfg.TLS, err = f.tls(); err != nil {
		return err
	}
	if cfg.ClientCerts, err = f.clientCerts(); err != nil {
		return err
	}
	audit, end, err := f.audit(env.out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	cfg.Audit = audit
	s, err := server.Start(ctx, cfg)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.out, "what can be asked, to read and to try out: %s/docs\n", s.URL())
	fmt.Fprintf(env.out, "the API is up: %s\n", s.URL())
	running, ctx := errgroup.WithContext(ctx)
	if beside != nil {
		running.Go(func() error { return beside(ctx, s.URL()) })
	}
	running.Go(func() error { return s.Wait(ctx) })
	return running.Wait()
}
