package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/controllers/api"
)

// tokenCommands work on the database itself: who has it needs no token, which is how the first one is made.
type tokenCommands struct {
	Create createTokenCommand `cmd:"" help:"Make a token and print it. It cannot be shown again."`
	List   listTokensCommand  `cmd:"" help:"List the tokens, without their secrets."`
	Revoke revokeTokenCommand `cmd:"" help:"Revoke a token."`
}

// storeFlags are of every command that opens the database.
type storeFlags struct {
	Store string `help:"sqlite:PATH, or the URL of a PostgreSQL or CockroachDB database." env:"EVENKEEL_STORE" default:"sqlite:evenkeel.db" json:"store"`
}

func (f *storeFlags) settings() any { return storeFlags{Store: api.Redacted(f.Store)} }

// with opens the tokens for the time of do.
func (f *storeFlags) with(ctx context.Context, do func(*api.Tokens) error) error {
	tokens, err := api.OpenTokens(ctx, f.Store)
	if err != nil {
		return err
	}
	return errors.Join(do(tokens), tokens.Close())
}

type createTokenCommand struct {
	storeFlags `embed:""`

	Name    string         `help:"Whose it is, for people and the audit log." required:""`
	Role    access.Role    `help:"viewer, editor, controller or admin." required:""`
	Kinds   *string        `help:"The kinds that it holds for, with commas. Default: all." placeholder:"KIND,KIND"`
	Expires *time.Duration `help:"For how long it holds, such as 720h. Default: until it is revoked."`
}

func (c *createTokenCommand) run(ctx context.Context, env environment) error {
	grant := access.Grant{Role: c.Role}
	if c.Kinds != nil {
		grant.Kinds = strings.Split(*c.Kinds, ",") // an empty text is refused: it must not mean all kinds
	}
	var expiresAt *time.Time
	if c.Expires != nil {
		at := time.Now().Add(*c.Expires)
		expiresAt = &at
	}
	return c.with(ctx, func(tokens *api.Tokens) error {
		_, text, err := tokens.Create(ctx, c.Name, grant, expiresAt)
		if err != nil {
			return err
		}
		fmt.Fprintln(env.out, text) // nothing else, so that a script can take it
		return nil
	})
}

type listTokensCommand struct {
	storeFlags `embed:""`
}

func (c *listTokensCommand) run(ctx context.Context, env environment) error {
	return c.with(ctx, func(tokens *api.Tokens) error {
		table := tabwriter.NewWriter(env.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "ID\tNAME\tROLE\tKINDS\tCREATED\tEXPIRES")
		for after, more := "", true; more; {
			var page []api.Token
			var err error
			if page, more, err = tokens.List(ctx, after, 100); err != nil {
				return err
			}
			for _, t := range page {
				kinds, expires := "all", "never"
				if len(t.Kinds) > 0 {
					kinds = strings.Join(t.Kinds, ",")
				}
				if t.ExpiresAt != nil {
					expires = t.ExpiresAt.Format(time.RFC3339)
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Name, t.Role, kinds, t.CreatedAt.Format(time.RFC3339), expires)
				after = t.ID
			}
		}
		return table.Flush()
	})
}

type revokeTokenCommand struct {
	storeFlags `embed:""`

	ID string `arg:"" help:"Its id: the middle part of its text, and in the list."`
}

func (c *revokeTokenCommand) run(ctx context.Context, _ environment) error {
	return c.with(ctx, func(tokens *api.Tokens) error { return tokens.Revoke(ctx, c.ID) })
}
