package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/controllers/api"
	"github.com/evenkeel-io/evenkeel/controllers/secrets"
	"github.com/evenkeel-io/evenkeel/controllers/server"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/notify"
)

// apiCommand serves the API on servers that are there.
type apiCommand struct {
	listenFlags      `embed:""`
	InsecureLoopback bool `help:"Let everybody on this machine do everything, without a token." env:"EVENKEEL_INSECURE_LOOPBACK" json:"insecure-loopback"`

	secretsFlags `embed:""`

	Store    string `help:"sqlite:PATH, or the URL of a PostgreSQL or CockroachDB database." env:"EVENKEEL_STORE" default:"sqlite:evenkeel.db" json:"store"`
	NATS     string `help:"URLs of NATS servers, with commas." env:"EVENKEEL_NATS" default:"nats://127.0.0.1:4222" json:"nats" name:"nats"`
	Creds    string `help:"NATS credentials file." env:"EVENKEEL_NATS_CREDS" type:"existingfile" json:"nats-creds,omitempty" name:"nats-creds"`
	NKey     string `help:"File with the seed of a NATS NKey." env:"EVENKEEL_NATS_NKEY" type:"existingfile" json:"nats-nkey,omitempty" name:"nats-nkey"`
	CA       string `help:"Certificates that the NATS servers are checked against (PEM)." env:"EVENKEEL_NATS_CA" type:"existingfile" json:"nats-ca,omitempty" name:"nats-ca"`
	Prefix   string `help:"Separates installations on one NATS server." env:"EVENKEEL_PREFIX" default:"evenkeel" json:"prefix"`
	Replicas int    `help:"How many NATS servers hold the streams; 0 leaves them as they are." env:"EVENKEEL_REPLICAS" default:"0" json:"replicas"`
}

func (c *apiCommand) settings() any { return c.shown() }

func (c *apiCommand) shown() apiCommand {
	shown := *c
	shown.Store = api.Redacted(c.Store)
	var urls []string
	for u := range strings.SplitSeq(c.NATS, ",") {
		urls = append(urls, withoutSecrets(u))
	}
	shown.NATS = strings.Join(urls, ",")
	return shown
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

func (c *apiCommand) run(ctx context.Context, env environment) error {
	options := []nats.Option{nats.MaxReconnects(-1), nats.Name("evenkeel api")}
	if c.Creds != "" {
		options = append(options, nats.UserCredentials(c.Creds))
	}
	if c.NKey != "" {
		o, err := nats.NkeyOptionFromSeed(c.NKey)
		if err != nil {
			return fmt.Errorf("--nats-nkey: %w", err)
		}
		options = append(options, o)
	}
	if c.CA != "" {
		options = append(options, nats.RootCAs(c.CA))
	}
	keys, err := c.keys()
	if err != nil {
		return err
	}
	nc, err := nats.Connect(c.NATS, options...)
	if err != nil {
		return fmt.Errorf("connect to NATS at %s: %w", c.shown().NATS, err)
	}
	defer nc.Close()
	return c.serve(ctx, env, server.Config{
		Store: c.Store, Secrets: keys, InsecureLoopback: c.InsecureLoopback, NATS: nc, Streams: notify.Config{Prefix: c.Prefix, Replicas: c.Replicas},
	})
}

// devCommand is everything in one process and one folder.
type devCommand struct {
	listenFlags      `embed:""`
	InsecureLoopback bool `help:"Let everybody on this machine do everything, without a token." env:"EVENKEEL_INSECURE_LOOPBACK" default:"true" negatable:"" json:"insecure-loopback"`

	secretsFlags `embed:""`

	Data       string `help:"Folder for the NATS server, the objects and the key of their secrets." env:"EVENKEEL_DATA" default:"evenkeel-data" json:"data"`
	NATSListen string `help:"Address of the NATS server, of this machine alone." env:"EVENKEEL_NATS_LISTEN" default:"127.0.0.1:4222" json:"nats-listen" name:"nats-listen"`
}

func (c *devCommand) settings() any { return *c }

func (c *devCommand) run(ctx context.Context, env environment) error {
	if err := os.MkdirAll(c.Data, 0o700); err != nil {
		return fmt.Errorf("--data: %w", err)
	}
	release, err := broker.Claim(c.Data)
	if err != nil {
		return fmt.Errorf("--data: %w", err)
	}
	defer func() { _ = release() }() // it ends with the process at the latest
	keys, err := c.keys()
	if err == nil && keys == nil {
		keys, err = secrets.LoadOrMake(filepath.Join(c.Data, "secrets.key"), "dev")
	}
	if err != nil {
		return err
	}
	node, err := broker.Start(filepath.Join(c.Data, "nats"), c.NATSListen)
	if err != nil {
		return err
	}
	defer broker.Stop(node)
	nc, err := broker.Connect(node)
	if err != nil {
		return err
	}
	defer nc.Close()
	fmt.Fprintf(env.out, "a NATS server is up, its data in %s: %s\n", c.Data, node.ClientURL())
	return c.serve(ctx, env, server.Config{
		Store: "sqlite:" + filepath.Join(c.Data, "api.db"), Secrets: keys, InsecureLoopback: c.InsecureLoopback, NATS: nc,
	})
}
