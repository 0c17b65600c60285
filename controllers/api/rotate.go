package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/secrets"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

const (
	// resealRow stores the same secrets in another envelope. No revision grows, nobody is told, and whoever writes the object at
	// the same time comes first or begins anew (updateRow).
	resealRow = `UPDATE objects SET spec = $3, sealed = $4, sealed_key = $5
		WHERE kind = $1 AND name = $2 AND revision = $6 AND uid = $7 AND sealed = $8 AND NOT gone`
	selectSealedKinds = `SELECT DISTINCT kind FROM objects WHERE sealed_key <> ''`
	// forgetHashes: a key of a client stays taken, and what was asked for under it cannot be tried out any more.
	forgetHashes = `UPDATE requests SET body_hash = '' WHERE hash_key = '' AND kind = $1`
	resealAtOnce = 200
	// resealTries is for an object that others write all the time.
	resealTries = 10
)

// Rotation is how far [RotateSecrets] has come, or what it has come to.
type Rotation struct {
	// Looked is how many objects were looked at, and Encrypted how many of them were encrypted anew.
	Looked, Encrypted int
	// Left are objects that could not be, with the reason: up to a hundred.
	Left []string
	// Used counts the objects that are encrypted with each key, and Requests the idempotency keys of the last day that are
	// remembered with it.
	Used, Requests map[string]int
}

// maxLeft bounds Rotation.Left.
const maxLeft = 100

// RotateSecrets encrypts everything in a store (Config.Store) with the first key that is encrypted with another one, and what
// is in plain because the schema came later. It may run while APIs do, be interrupted, and be run again. progress, which may be
// nil, is called now and then.
func RotateSecrets(ctx context.Context, store string, keys *secrets.Keyring, progress func(Rotation)) (Rotation, error) {
	var done Rotation
	if keys.First() == "" {
		return done, errors.New("api: rotate secrets: there are no keys")
	}
	s, err := openStore(ctx, store, keys)
	if err != nil {
		return done, fmt.Errorf("api: %w", err)
	}
	if progress == nil {
		progress = func(Rotation) {}
	}
	r := &rotating{store: s, done: &done, progress: progress}
	if err := errors.Join(r.run(ctx), s.close()); err != nil {
		return done, fmt.Errorf("api: rotate secrets: %w", err)
	}
	return done, nil
}

// rotating is one call of RotateSecrets.
type rotating struct {
	store    *store
	done     *Rotation
	progress func(Rotation)
}

func (r *rotating) run(ctx context.Context) error {
	kinds, err := r.kinds(ctx)
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		for after, more := "", true; more; {
			if after, more, err = r.page(ctx, kind, after); err != nil {
				return err
			}
			r.progress(*r.done)
		}
		if _, err := r.store.write.ExecContext(ctx, forgetHashes, kind); err != nil {
			return fmt.Errorf("forget the hashes of requests: %w", err)
		}
	}
	if r.done.Used, err = r.store.keysInUse(ctx, selectKeys); err != nil {
		return err
	}
	r.done.Requests, err = r.store.keysInUse(ctx, selectHashKeys)
	return err
}

// kinds are those that have secrets, and those that had some.
func (r *rotating) kinds(ctx context.Context) ([]string, error) {
	if err := r.store.vault.ready(ctx); err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for kind, k := range *r.store.vault.schemas.Load() {
		if k.schema.HasSecrets() {
			all[kind] = true
		}
	}
	rows, err := r.store.read.QueryContext(ctx, selectSealedKinds)
	if err != nil {
		return nil, fmt.Errorf("look which kinds have secrets: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var kind string
		if err := rows.Scan(&kind); err != nil {
			return nil, fmt.Errorf("look which kinds have secrets: %w", err)
		}
		all[kind] = true
	}
	return slices.Sorted(maps.Keys(all)), rows.Err()
}

// page goes through some objects of a kind behind a name.
func (r *rotating) page(ctx context.Context, kind, after string) (last string, more bool, err error) {
	if err := r.store.vault.ready(ctx); err != nil { // schemas may change meanwhile
		return "", false, err
	}
	rows, err := r.store.read.QueryContext(ctx, selectAll, kind, after, resealAtOnce)
	if err != nil {
		return "", false, fmt.Errorf("read %s: %w", kind, err)
	}
	defer rows.Close()
	var page []row
	for rows.Next() {
		one, err := scan(r.store.vault, rows)
		if err != nil {
			return "", false, fmt.Errorf("read %s: %w", kind, err)
		}
		page, last = append(page, one), one.object.Name
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return "", false, fmt.Errorf("read %s: %w", kind, err)
	}
	for i := range page {
		if err := r.one(ctx, &page[i]); err != nil {
			return "", false, err
		}
	}
	return last, len(page) == resealAtOnce, nil
}

// one encrypts an object anew, if that is needed.
func (r *rotating) one(ctx context.Context, found *row) error {
	r.done.Looked++
	k := objects.KeyOf(&found.object)
	for range resealTries {
		if found.object.Sealed != "" {
			r.left(fmt.Sprintf("%s: %s", k, found.object.Sealed))
			return nil
		}
		needed, err := r.store.vault.isStale(&found.object, found.stored)
		if err != nil || !needed {
			return err
		}
		written, err := r.store.reseal(ctx, found)
		if err != nil {
			return err
		}
		if written {
			r.done.Encrypted++
			return nil
		}
		again, err := find(ctx, r.store.read, r.store.vault, k, "") // somebody wrote it, with another first key perhaps
		if errors.Is(err, apiclient.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		found = &again
	}
	r.left(k.String() + ": others write it all the time")
	return nil
}

func (r *rotating) left(why string) {
	if len(r.done.Left) < maxLeft {
		r.done.Left = append(r.done.Left, why)
	}
}

// reseal stores an object in a new envelope, unless somebody has written it since it was read.
func (s *store) reseal(ctx context.Context, r *row) (written bool, err error) {
	o := &r.object
	now, err := s.vault.seal(o)
	if err != nil {
		return false, err
	}
	err = s.transact(ctx, func(tx *transaction) error {
		result, err := tx.ExecContext(ctx, resealRow, o.Kind, o.Name, now.spec, now.sealed, now.key, o.Revision, o.UID, r.stored.sealed)
		if err != nil {
			return fmt.Errorf("encrypt %s anew: %w", objects.KeyOf(o), err)
		}
		n, err := result.RowsAffected()
		written = n > 0
		return err
	})
	return written, err
}
