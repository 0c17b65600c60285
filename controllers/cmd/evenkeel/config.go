package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
)

// configFile is a JSON object with a setting for each flag that it names.
type configFile map[string]any

func loadConfig(r io.Reader) (kong.Resolver, error) {
	c := configFile{}
	d := json.NewDecoder(r)
	d.UseNumber()
	if err := d.Decode(&c); err != nil {
		return nil, fmt.Errorf("want a JSON object with a value for each flag: %w", err)
	}
	return c, nil
}

// Validate refuses settings that no command has: a slip would go unnoticed.
func (c configFile) Validate(app *kong.Application) error {
	known := map[string]bool{}
	var learn func(nodes ...*kong.Node)
	learn = func(nodes ...*kong.Node) {
		for _, node := range nodes {
			for _, f := range node.Flags {
				known[f.Name] = true
			}
			learn(node.Children...)
		}
	}
	learn(app.Node)
	for name := range c {
		if !known[name] {
			return fmt.Errorf("the file has %q, which is no flag of any command", name)
		}
	}
	return nil
}

// Resolve returns the file's value of a flag, unless the environment has one, which comes first.
func (c configFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, name := range flag.Envs {
		if _, ok := os.LookupEnv(name); ok {
			return nil, nil //nolint:nilnil // kong's word for "no value of mine"
		}
	}
	return c[flag.Name], nil
}
