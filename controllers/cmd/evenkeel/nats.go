package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/nats-io/nats.go"
)

// natsFlags are of every command that uses NATS servers that are there.
type natsFlags struct {
	NATS   string `help:"URLs of NATS servers (2.12 or later, with JetStream), with commas." env:"EVENKEEL_NATS" default:"nats://127.0.0.1:4222" json:"nats" name:"nats"`
	Creds  string `help:"NATS credentials file." env:"EVENKEEL_NATS_CREDS" type:"existingfile" json:"nats-creds,omitempty" name:"nats-creds"`
	NKey   string `help:"File with the seed of a NATS NKey." env:"EVENKEEL_NATS_NKEY" type:"existingfile" json:"nats-nkey,omitempty" name:"nats-nkey"`
	CA     string `help:"Certificates that the NATS servers are checked against (PEM)." env:"EVENKEEL_NATS_CA" type:"existingfile" json:"nats-ca,omitempty" name:"nats-ca"`
	Prefix string `help:"Separates installations on one NATS server." env:"EVENKEEL_PREFIX" default:"evenkeel" json:"prefix"`
}

// shown is what of it may be shown.
func (f natsFlags) shown() natsFlags {
	var urls []string
	for u := range strings.SplitSeq(f.NATS, ",") {
		urls = append(urls, withoutSecrets(u))
	}
	f.NATS = strings.Join(urls, ",")
	return f
}

// withoutSecrets also hides a user without a password: to NATS that is a token.
func withoutSecrets(natsURL string) string {
	u, err := url.Parse(natsURL)
	if err != nil {
		return "nats://…"
	}
	if _, password := u.User.Password(); u.User != nil && !password {
		u.User = url.User("xxxxx")
	}
	return u.Redacted()
}

// connect connects, and reconnects for ever, also while its credentials are refused.
func (f *natsFlags) connect(name string) (*nats.Conn, error) {
	options := []nats.Option{nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.Name(name)}
	if f.Creds != "" {
		options = append(options, nats.UserCredentials(f.Creds))
	}
	if f.NKey != "" {
		o, err := nats.NkeyOptionFromSeed(f.NKey)
		if err != nil {
			return nil, fmt.Errorf("--nats-nkey: %w", err)
		}
		options = append(options, o)
	}
	if f.CA != "" {
		options = append(options, nats.RootCAs(f.CA))
	}
	nc, err := nats.Connect(f.NATS, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", f.shown().NATS, err)
	}
	return nc, nil
}
