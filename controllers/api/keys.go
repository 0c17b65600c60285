package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
)

const (
	// selectKeys counts what is encrypted with each key. It reads nothing but the index objects_sealed.
	selectKeys = `SELECT sealed_key, COUNT(*) FROM objects WHERE sealed_key <> '' GROUP BY sealed_key`
	// selectHashKeys counts the requests that are remembered by a hash which was made with a key.
	selectHashKeys = `SELECT hash_key, COUNT(*) FROM requests WHERE hash_key <> '' GROUP BY hash_key`
)

// keysInUse counts, by the ids of keys, what was encrypted with them.
func (s *store) keysInUse(ctx context.Context, query string) (map[string]int, error) {
	rows, err := s.read.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("look which keys are in use: %w", err)
	}
	defer rows.Close()
	used := map[string]int{}
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			return nil, fmt.Errorf("look which keys are in use: %w", err)
		}
		used[id] = n
	}
	return used, rows.Err()
}

// checkKeys refuses to serve secrets without keys, and reports keys that are missing.
func (s *store) checkKeys(ctx context.Context, log logr.Logger) error {
	if err := s.vault.ready(ctx); err != nil {
		return err
	}
	used, err := s.keysInUse(ctx, selectKeys)
	if err != nil {
		return err
	}
	const give = "give the API its keys (Config.Secrets; --secrets-key-file or EVENKEEL_SECRETS_KEYS)"
	if s.vault.keys.First() == "" {
		if len(used) > 0 {
			return fmt.Errorf("the store has secrets, encrypted with the keys %s: %s", strings.Join(slices.Sorted(maps.Keys(used)), ", "), give)
		}
		for kind, k := range *s.vault.schemas.Load() {
			if k.schema.HasSecrets() {
				return fmt.Errorf("the schema of %s has secrets: %s", kind, give)
			}
		}
		return nil
	}
	for id, n := range used {
		if !s.vault.keys.Has(id) {
			log.Error(errors.New("a key is missing"), "objects cannot be decrypted: add the key behind the others", "key", id, "objects", n)
		}
	}
	return nil
}
