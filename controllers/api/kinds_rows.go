package api

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

const (
	kindColumns      = `kind, schema, revision, created_at, changed_at, version, base, definition`
	selectKindStates = `SELECT kind, revision, created_at FROM kinds`
	selectKindState  = `SELECT revision, created_at FROM kinds WHERE kind = $1`
	selectKind       = `SELECT ` + kindColumns + ` FROM kinds WHERE kind = $1`
	selectKinds      = `SELECT ` + kindColumns + ` FROM kinds WHERE kind > $1 ORDER BY kind LIMIT $2`
	upsertKind       = `INSERT INTO kinds (` + kindColumns + `) VALUES ($1, $2, 1, $3, $3, $4, $5, $6)
		ON CONFLICT (kind) DO UPDATE SET schema = $2, revision = kinds.revision + 1, changed_at = $3, version = $4, base = $5, definition = $6
		WHERE kinds.schema <> $2 OR kinds.version <> $4 OR kinds.definition <> $6`
	deleteKind  = `DELETE FROM kinds WHERE kind = $1`
	selectInUse = `SELECT name FROM objects WHERE kind = $1 AND NOT gone LIMIT 1`
	// selectStored counts the objects of a kind by the version that they say. Those that say one are few or in an index; the
	// others are what is left of all.
	selectStored = `SELECT version, COUNT(*) FROM objects WHERE kind = $1 AND version <> '' AND NOT gone GROUP BY version
		UNION ALL SELECT '', (SELECT COUNT(*) FROM objects WHERE kind = $1 AND NOT gone) -
		(SELECT COUNT(*) FROM objects WHERE kind = $1 AND version <> '' AND NOT gone)`
)

// edition tells what is known of a kind from what was known before: revisions begin anew when a kind is dropped and made again.
type edition struct{ revision, createdAt int64 }

func editionOf(k apiclient.Kind) edition {
	return edition{revision: k.Revision, createdAt: k.CreatedAt.UnixMicro()}
}

func (s *store) kindEditions(ctx context.Context) (map[string]edition, error) {
	rows, err := s.read.QueryContext(ctx, selectKindStates)
	if err != nil {
		return nil, fmt.Errorf("read kinds: %w", err)
	}
	defer rows.Close()
	editions := map[string]edition{}
	for rows.Next() {
		var kind string
		var e edition
		if err := rows.Scan(&kind, &e.revision, &e.createdAt); err != nil {
			return nil, fmt.Errorf("read kinds: %w", err)
		}
		editions[kind] = e
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read kinds: %w", err)
	}
	return editions, nil
}

// hold fails with errReplan unless a kind is as it is known here, and keeps it so until the end of the transaction: what is
// written in its current version, and with the secrets that its schema says, must not be left behind by a change of the kind.
func (tx *transaction) hold(ctx context.Context, known *knownKind) error {
	var e edition
	err := tx.QueryRowContext(ctx, selectKindState+tx.keep, known.kind).Scan(&e.revision, &e.createdAt)
	if isNoRows(err) || err == nil && e != known.edition {
		return errReplan
	}
	if err != nil {
		return fmt.Errorf("look whether kind %s has changed: %w", known.kind, err)
	}
	return nil
}

// storedKind is a row of kinds.
type storedKind struct {
	apiclient.Kind
	// base is the version of what was written before the kind had versions.
	base string
}

// definition is what was said of the kind.
func (k *storedKind) definition() definition {
	return definition{Schema: k.Schema, Version: k.Version, Versions: k.Versions, Conversion: k.Conversion}
}

func (s *store) kind(ctx context.Context, name string) (storedKind, error) {
	k, err := scanKind(s.read.QueryRowContext(ctx, selectKind, name))
	if isNoRows(err) {
		err = objects.NotFound(objects.Key{Kind: "kinds", Name: name})
	}
	return k, err
}

func scanKind(from scanner) (k storedKind, err error) {
	var text []byte
	var created, changed int64
	var more string
	if err := from.Scan(&k.Kind.Kind, &text, &k.Revision, &created, &changed, &k.Version, &k.base, &more); err != nil {
		return k, err
	}
	k.Schema, k.CreatedAt, k.ChangedAt = text, time.UnixMicro(created).UTC(), time.UnixMicro(changed).UTC()
	if more != "" {
		var d definition
		err = json.Unmarshal([]byte(more), &d)
		k.Versions, k.Conversion = d.Versions, d.Conversion
	}
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
		all = append(all, k.Kind)
	}
	return all, rows.Err()
}

// putKind stores what is said of a kind, unless that is what is there. It refuses to drop versions that objects are stored in.
func (s *store) putKind(ctx context.Context, name string, d definition) (k storedKind, isNew bool, err error) {
	text, err := d.text()
	if err != nil {
		return k, false, fmt.Errorf("put kind %s: %w", name, err)
	}
	err = s.transact(ctx, func(tx *transaction) error {
		before, err := scanKind(tx.QueryRowContext(ctx, selectKind+s.rowLock, name))
		if isNew = isNoRows(err); err != nil && !isNew {
			return fmt.Errorf("put kind %s: %w", name, err)
		}
		base := d.names()[0]
		if slices.Contains(d.names(), before.base) {
			base = before.base
		}
		if d.Version != "" || before.Version != "" {
			stored, err := countStored(ctx, tx, name)
			if err != nil {
				return err
			}
			was := base
			if before.Version != "" {
				was = before.base
			}
			if err := stillStored(name, d, was, stored); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, upsertKind, name, string(d.Schema), objects.Now().UnixMicro(), d.Version, base, text); err != nil {
			return fmt.Errorf("put kind %s: %w", name, err)
		}
		k, err = scanKind(tx.QueryRowContext(ctx, selectKind, name))
		return err
	})
	return k, isNew, err
}

// storedBy counts the objects of a kind by the version that they are stored in. It returns nil for a kind without versions.
func (s *store) storedBy(ctx context.Context, k *storedKind) (map[string]int64, error) {
	if k.Version == "" {
		return nil, nil //nolint:nilnil // which is left out
	}
	stored, err := countStored(ctx, s.read, k.Kind.Kind)
	if n := stored[""]; n > 0 {
		stored[k.base] += n
	}
	delete(stored, "")
	return stored, err
}

func countStored(ctx context.Context, q interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, kind string,
) (map[string]int64, error) {
	rows, err := q.QueryContext(ctx, selectStored, kind)
	if err != nil {
		return nil, fmt.Errorf("count %s by version: %w", kind, err)
	}
	defer rows.Close()
	stored := map[string]int64{}
	for rows.Next() {
		var version string
		var n int64
		if err := rows.Scan(&version, &n); err != nil {
			return nil, fmt.Errorf("count %s by version: %w", kind, err)
		}
		stored[version] = n
	}
	return stored, rows.Err()
}

// deleteKind drops a schema of which there are no objects.
func (s *store) deleteKind(ctx context.Context, name string) error {
	return s.transact(ctx, func(tx *transaction) error {
		if _, err := scanKind(tx.QueryRowContext(ctx, selectKind+s.rowLock, name)); err != nil && !isNoRows(err) { // who holds it is waited for
			return fmt.Errorf("delete kind %s: %w", name, err)
		}
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
