package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/api"
	"github.com/evenkeel-io/evenkeel/controllers/secrets"
	"github.com/evenkeel-io/evenkeel/controllers/server"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/notify"
)

// apiCommand serves the API on servers that are there.
type apiCommand struct {
	listenFlags      `embed:""`
	InsecureLoopback bool `help:"Let everybody on this machine do everything, without a token." env:"EVENKEEL_INSECURE_LOOPBACK" json:"insecure-loopback"`

	secretsFlags `embed:""`
	natsFlags    `embed:""`

	Store    string `help:"sqlite:PATH, or the URL of a PostgreSQL or CockroachDB database." env:"EVENKEEL_STORE" default:"sqlite:evenkeel.db" json:"store"`
	Replicas int    `help:"How many NATS servers hold the streams; 0 leaves them as they are." env:"EVENKEEL_REPLICAS" default:"0" json:"replicas"`

	Workloads bool `help:"Take the kinds of the workload controller. Their credentials need --secrets-key-file." env:"EVENKEEL_WORKLOADS" json:"workloads"`
}

func (c *apiCommand) settings() any { return c.shown() }

func (c *apiCommand) shown() apiCommand {
	shown := *c
	shown.Store = api.Redacted(c.Store)
	shown.natsFlags = c.natsFlags.shown()
	return shown
}

func (c *apiCommand) run(ctx context.Context, env environment) error {
	keys, err := c.keys()
	if err != nil {
		return err
	}
	nc, err := c.connect("evenkeel api")
	if err != nil {
		return err
	}
	defer nc.Close()
	return c.serve(ctx, env, server.Config{
		Store: c.Store, Kinds: kinds(c.Workloads), Secrets: keys, InsecureLoopback: c.InsecureLoopback, NATS: nc, Streams: notify.Config{Prefix: c.Prefix, Replicas: c.Replicas},
	}, nil)
}

// devCommand is everything in one process and one folder.
type devCommand struct {
	listenFlags      `embed:""`
	InsecureLoopback bool `help:"Let everybody on this machine do everything, without a token." env:"EVENKEEL_INSECURE_LOOPBACK" default:"true" negatable:"" json:"insecure-loopback"`

	secretsFlags `embed:""`

	Data       string `help:"Folder for the NATS server, the objects, the key of their secrets, and kubeconfigs." env:"EVENKEEL_DATA" default:"evenkeel-data" json:"data"`
	Workloads  bool   `help:"Run the workload controller, too. It needs --insecure-loopback; without that, run it by itself with a token." env:"EVENKEEL_WORKLOADS" default:"true" negatable:"" json:"workloads"`
	NATSListen string `help:"Address of the NATS server, of this machine alone." env:"EVENKEEL_NATS_LISTEN" default:"127.0.0.1:4222" json:"nats-listen" name:"nats-listen"`
}

func (c *devCommand) settings() any { return *c }

func (c *devCommand) run(ctx context.Context, env environment) error {
	kubeconfigs := filepath.Join(c.Data, "kubeconfigs") // which runtimes may name
	if err := os.MkdirAll(kubeconfigs, 0o700); err != nil {
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
	var beside func(ctx context.Context, url string) error
	if c.Workloads && c.InsecureLoopback {
		beside = func(ctx context.Context, url string) error {
			access := apiclient.Config{URL: url}
			w := replica{cfg: workload.Config{API: access, Editor: &access, Kubeconfigs: kubeconfigs}, nc: nc}
			return w.run(ctx, env, nil)
		}
	}
	return c.serve(ctx, env, server.Config{
		Store: "sqlite:" + filepath.Join(c.Data, "api.db"), Kinds: kinds(c.Workloads), Secrets: keys, InsecureLoopback: c.InsecureLoopback, NATS: nc,
	}, beside)
}
