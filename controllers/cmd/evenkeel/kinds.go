package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// tokenVariable holds a bearer token itself, for where there are no files. It is no flag: everybody on a machine sees command
// lines.
const tokenVariable = "EVENKEEL_TOKEN"

// kindsCommands ask an API, which has the hooks.
type kindsCommands struct {
	Upgrade upgradeCommand `cmd:"" help:"Bring all objects of a kind that are stored in older versions to the current one, so that those can be dropped."`
}

type upgradeCommand struct {
	URL       string `help:"URL of the API." name:"api-url" env:"EVENKEEL_API_URL" default:"http://127.0.0.1:8080" json:"api-url"`
	TokenFile string `help:"File with the bearer token of an admin. Or give it in EVENKEEL_TOKEN." env:"EVENKEEL_TOKEN_FILE" type:"existingfile" placeholder:"FILE" json:"token-file,omitempty"`

	Kind string `arg:"" help:"The kind." json:"-"`
}

func (c *upgradeCommand) settings() any { return *c }

func (c *upgradeCommand) run(ctx context.Context, env environment) error {
	cfg := apiclient.Config{URL: c.URL}
	switch text := os.Getenv(tokenVariable); {
	case text != "" && c.TokenFile != "":
		return fmt.Errorf("want one of --token-file and %s", tokenVariable)
	case text != "":
		cfg.Token = apiclient.StaticToken(text)
	case c.TokenFile != "":
		cfg.Token = apiclient.TokenFile(c.TokenFile)
	}
	kinds, err := apiclient.NewKinds(cfg)
	if err != nil {
		return fmt.Errorf("--api-url: %w", err)
	}
	done, err := kinds.Upgrade(ctx, c.Kind, func(u apiclient.Upgrade) {
		fmt.Fprintf(env.out, "%d upgraded; stored: %s\n", u.Upgraded, counted(u.Stored))
	})
	if err != nil {
		return err
	}
	for _, l := range done.Left {
		fmt.Fprintf(env.out, "left: %s: %s\n", l.Name, l.Reason)
	}
	if len(done.Left) > 0 {
		return fmt.Errorf("%d objects are left, as said above: mend them or the hook, and run this again", len(done.Left))
	}
	fmt.Fprintf(env.out, "done: %d upgraded\n", done.Upgraded)
	return nil
}

// counted says how many objects are stored in which version.
func counted(stored map[string]int64) string {
	var all []string
	for _, version := range slices.Sorted(maps.Keys(stored)) {
		all = append(all, fmt.Sprintf("%d in %s", stored[version], version))
	}
	return strings.Join(all, ", ")
}
