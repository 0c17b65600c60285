package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

const (
	kindColumns      = `kind, schema, revision, created_at, changed_at`
	selectKindStates = `SELECT kind, revision, created_at FROM kinds`
	selectKind       = `SELECT ` + kindColumns + ` FROM kinds WHERE kind = $1`
	selectKinds      = `SELECT ` + kindColumns + ` FROM kinds WHERE kind > $1 ORDER BY kind LIMIT $2`
	upsertKind       = `INSERT INTO kinds (` + kindColumns + `) VALUES ($1, $2, 1, $3, $3)
		ON CONFLICT (kind) DO UPDATE SET schema = $2, revision = kinds.revision + 1, changed_at = $3 WHERE kinds.schema <> $2`
	deleteKind  = `DELETE FROM kinds WHERE kind = $1`
	selectInUse = `SELECT name FROM objects WHERE kind = $1 AND NOT gone LIMIT 1`
)

// version tells one schema of a kind from another: revisions begin anew when a kind is dropped and made again.
type version struct{ revision, createdAt int64 }

func versionOf(k apiclient.Kind) version {
	return version{revision: k.Revision, createdAt: k.CreatedAt.UnixMicro()}
}

func (s *store) kindVersions(ctx context.Context) (map[string]version, error) {
	rows, err := s.read.QueryContext(ctx, selectKindStates)
	if err != nil {
		return nil, fmt.Errorf("read kinds: %w", err)
	}
	defer rows.Close()
	versions := map[string]version{}
	for rows.Next() {
		var kind string
		var v version
		if err := rows.Scan(&kind, &v.revision, &v.createdAt); err != nil {
			return nil, fmt.Errorf("read kinds: %w", err)
		}
		versions[kind] = v
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read kinds: %w", err)
	}
	return versions, nil
}

func (s *store) kind(ctx context.Context, name string) (apiclient.Kind, error) {
	k, err := scanKind(s.read.QueryRowContext(ctx, selectKind, name))
	if isNoRows(err) {
		err = objects.NotFound(objects.Key{Kind: "kinds", Name: name})
	}
	return k, err
}

func scanKind(from scanner) (k apiclient.Kind, err error) {
	var text []byte
	var created, changed int64
	err = from.Scan(&k.Kind, &text, &k.Revision, &created, &changed)
	k.Schema, k.CreatedAt, k.ChangedAt = text, time.UnixMicro(created).UTC(), time.UnixMicro(changed).UTC()
	return k, err
}

// kindsAfter reads up to limit kinds behind a name.
func (s *store) kindsAfter(ctx context.Context, after string, limit int) (all []apiclient.Kind, err error) {
	rows, err := s.read.QueryContext(ctx, selectKinds, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list kinds: %w", err)
	}
	defer rows.Close()
	all = []apiclient.Kind{}
	for rows.Next() {
		k, err := scanKind(rows)
		if err != nil {
			return nil, fmt.Errorf("list kinds: %w", err)
		}
		all = append(all, k)
	}
	return all, rows.Err()
}

// putKind stores a schema, unless it is the one that is there.
func (s *store) putKind(ctx context.Context, name string, text json.RawMessage) (k apiclient.Kind, isNew bool, err error) {
	err = s.transact(ctx, func(tx *transaction) error {
		_, err := scanKind(tx.QueryRowContext(ctx, selectKind+tx.rowLock, name))
		if isNew = isNoRows(err); err != nil && !isNew {
			return fmt.Errorf("put kind %s: %w", name, err)
		}
		if _, err := tx.ExecContext(ctx, upsertKind, name, string(text), objects.Now().UnixMicro()); err != nil {
			return fmt.Errorf("put kind %s: %w", name, err)
		}
		k, err = scanKind(tx.QueryRowContext(ctx, selectKind, name))
		return err
	})
	return k, isNew, err
}

// deleteKind drops a schema of which there are no objects.
func (s *store) deleteKind(ctx context.Context, name string) error {
	return s.transact(ctx, func(tx *transaction) error {
		var object string
		err := tx.QueryRowContext(ctx, selectInUse, name).Scan(&object)
		if err == nil {
			return objects.NewProblem(http.StatusConflict, apiclient.TypeConflict, fmt.Sprintf("kinds/%s: there are objects of it, such as %s", name, object))
		}
		if !isNoRows(err) {
			return fmt.Errorf("delete kind %s: %w", name, err)
		}
		result, err := tx.ExecContext(ctx, deleteKind, name)
		if err != nil {
			return fmt.Errorf("delete kind %s: %w", name, err)
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, objects.NotFound(objects.Key{Kind: "kinds", Name: name}))
		}
		return nil
	})
}
