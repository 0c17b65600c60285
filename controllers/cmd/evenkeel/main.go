// Command evenkeel serves the Evenkeel API, and runs the reference controllers.
//
//	evenkeel dev       the API, a NATS server and the controllers in one process, with everything in one folder
//	evenkeel api       the API on a NATS server and a database of yours
//	evenkeel workload  a replica of the workload controller
//	evenkeel token     makes, lists and revokes bearer tokens, in the database itself
//	evenkeel kinds     brings objects to the current version of their kind, through an API
//	evenkeel secrets   rotates the keys of secret fields, in the database itself
//
// The first token of an installation, which an admin makes the others with:
//
//	evenkeel token create --store postgres://… --name ops --role admin --expires 720h
//
// Each flag of dev, api and workload can also be given as an environment variable (--help names them) or in a JSON file (--config), in
// this order of precedence. --print-config shows what has been understood, and ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// commands is the command line.
type commands struct {
	Config      kong.ConfigFlag `help:"JSON file with settings, named as the flags." env:"EVENKEEL_CONFIG" placeholder:"FILE"`
	PrintConfig bool            `help:"Print the settings, without secrets, and end."`
	LogLevel    slog.Level      `help:"debug, info, warn or error." env:"EVENKEEL_LOG_LEVEL" default:"info"`

	API   apiCommand    `cmd:"" name:"api" help:"Serve the API on a NATS server and a database of yours."`
	Dev   devCommand    `cmd:"" help:"Everything in one process, to try things out: the API, a NATS server and the workload controller."`
	Token tokenCommands `cmd:"" help:"Make, list and revoke bearer tokens, in the database itself."`
	Kinds kindsCommands `cmd:"" help:"Bring objects to the current version of their kind."`

	Workload workloadCommand `cmd:"" help:"Run a replica of the workload controller, which deploys into Kubernetes clusters."`

	Secrets secretsCommands `cmd:"" help:"Rotate the keys of secret fields, in the database itself."`
}

// command is one of the commands.
type command interface {
	run(ctx context.Context, env environment) error
	settings() any
}

// environment is what a command may use of the process.
type environment struct {
	out io.Writer
	log logr.Logger
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "evenkeel:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, errs io.Writer) error {
	var c commands
	helped := false // --help was given, and has been answered
	parser, err := kong.New(&c, kong.Name("evenkeel"), kong.Description("The Evenkeel API and its reference controllers."), kong.Configuration(loadConfig),
		kong.Writers(out, errs), kong.Exit(func(int) { helped = true }))
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if helped {
		return nil
	}
	if err != nil {
		return err
	}
	chosen := map[string]command{
		"api": &c.API, "dev": &c.Dev, "workload": &c.Workload,
		"token create": &c.Token.Create, "token list": &c.Token.List, "token revoke <id>": &c.Token.Revoke,
		"kinds upgrade <kind>": &c.Kinds.Upgrade,
		"secrets rotate":       &c.Secrets.Rotate,
	}[parsed.Command()]
	if c.PrintConfig {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(chosen.settings())
	}
	log := logr.FromSlogHandler(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: c.LogLevel}))
	klog.SetLogger(log) // of client-go
	return chosen.run(ctx, environment{out: out, log: log})
}
