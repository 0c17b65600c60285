package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/evenkeel-io/evenkeel/controllers/api"
	"github.com/evenkeel-io/evenkeel/controllers/secrets"
)

// keysVariable holds keys themselves, for where there are no files. It is no flag: everybody on a machine sees command lines.
const keysVariable = "EVENKEEL_SECRETS_KEYS"

// secretsFlags are of every command that encrypts and decrypts.
type secretsFlags struct {
	SecretsKeyFile string `help:"File of the keys that secret fields (x-sensitive) are encrypted with: ID:BASE64 of 32 random bytes on each line; the first one encrypts, all decrypt. Nobody else may read it. Or give the lines in EVENKEEL_SECRETS_KEYS." env:"EVENKEEL_SECRETS_KEY_FILE" type:"existingfile" placeholder:"FILE" json:"secrets-key-file,omitempty" name:"secrets-key-file"`
}

// keys are nil if none are given.
func (f *secretsFlags) keys() (*secrets.Keyring, error) {
	text := os.Getenv(keysVariable)
	switch {
	case text != "" && f.SecretsKeyFile != "":
		return nil, errors.New("want one of --secrets-key-file and " + keysVariable)
	case f.SecretsKeyFile != "":
		keys, err := secrets.Load(f.SecretsKeyFile)
		if err != nil {
			return nil, fmt.Errorf("--secrets-key-file: %w", err)
		}
		return keys, nil
	case text == "":
		return nil, nil
	}
	keys, err := secrets.Parse(strings.ReplaceAll(text, ",", "\n"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keysVariable, err)
	}
	return keys, nil
}

// secretsCommands work on the database itself.
type secretsCommands struct {
	Rotate rotateCommand `cmd:"" help:"Encrypt everything with the first key, also while the API runs. Afterwards other keys can be removed."`
}

type rotateCommand struct {
	storeFlags   `embed:""`
	secretsFlags `embed:""`
}

func (c *rotateCommand) settings() any {
	return rotateCommand{storeFlags: storeFlags{Store: api.Redacted(c.Store)}, secretsFlags: c.secretsFlags}
}

func (c *rotateCommand) run(ctx context.Context, env environment) error {
	keys, err := c.keys()
	if err == nil && keys == nil {
		err = errors.New("there are no keys: want --secrets-key-file or " + keysVariable)
	}
	if err != nil {
		return err
	}
	done, err := api.RotateSecrets(ctx, c.Store, keys, func(r api.Rotation) {
		fmt.Fprintf(env.out, "%d objects looked at, %d encrypted anew\n", r.Looked, r.Encrypted)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(env.out, "done: %d objects looked at, %d encrypted anew with %q\n", done.Looked, done.Encrypted, keys.First())
	for _, why := range done.Left {
		fmt.Fprintf(env.out, "left: %s\n", why)
	}
	needed := others(done.Used, keys.First(), "objects")
	switch requests := others(done.Requests, keys.First(), "idempotency keys of the last day"); {
	case len(needed) > 0:
		return fmt.Errorf("%s: see that every API has %q as its first key, keep the others, and run this again", strings.Join(needed, "; "), keys.First())
	case len(done.Left) > 0:
		return fmt.Errorf("%d objects are left, as said above: run this again", len(done.Left))
	case len(requests) > 0:
		fmt.Fprintf(env.out, "no object needs another key; %s: remove the others in a day, once %q is the first key of every API\n", strings.Join(requests, "; "), keys.First())
	default:
		fmt.Fprintf(env.out, "nothing needs another key: once %q is the first key of every API, the others can be removed\n", keys.First())
	}
	return nil
}

// others says what needs keys besides the first.
func others(used map[string]int, first, what string) (all []string) {
	for _, id := range slices.Sorted(maps.Keys(used)) {
		if id != first {
			all = append(all, fmt.Sprintf("%d %s need the key %q", used[id], what, id))
		}
	}
	return all
}
