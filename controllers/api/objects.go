package api

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

type key struct{ kind, name string }

func (k key) String() string { return k.kind + "/" + k.name }

// row is an object as it is stored.
type row struct {
	object apiclient.Raw
	gone   bool
	// The object is dirty while notified < toNotify.
	reason             string
	toNotify, notified int64
}

const (
	columns = `kind, name, uid, labels, generation, revision, created_at, changed_at, deleted_at, finalizers, paused,
		retry_request, retry_requested_at, spec, status, reconciliation, gone, notify_reason, notify_revision, notified_revision`
	selectOne       = `SELECT ` + columns + ` FROM objects WHERE kind = $1 AND name = $2 AND NOT gone`
	selectAll       = `SELECT ` + columns + ` FROM objects WHERE kind = $1 AND name > $2 AND NOT gone ORDER BY name LIMIT $3`
	selectUnsettled = `SELECT ` + columns + ` FROM objects WHERE kind = $1 AND name > $2 AND owed_since <= $4 AND NOT gone ORDER BY name LIMIT $3`

	// A tombstone makes way for an object of its name, and is dirty in its place.
	insert = `INSERT INTO objects (` + columns + `, owed_since)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
		ON CONFLICT (kind, name) DO UPDATE SET uid = $3, labels = $4, generation = $5, revision = $6, created_at = $7,
		changed_at = $8, deleted_at = $9, finalizers = $10, paused = $11, retry_request = $12, retry_requested_at = $13,
		spec = $14, status = $15, reconciliation = $16, gone = $17, notify_reason = $18, notify_revision = $19,
		notified_revision = $20, owed_since = $21
		WHERE objects.gone`
	// notified_revision is the relay's alone: a write that stored what it has read would take back a mark.
	update = `UPDATE objects SET labels = $4, generation = $5, revision = $6, changed_at = $7, deleted_at = $8,
		finalizers = $9, paused = $10, retry_request = $11, retry_requested_at = $12, spec = $13, status = $14,
		reconciliation = $15, gone = $16, notify_reason = $17, notify_revision = $18, owed_since = $19
		WHERE kind = $1 AND name = $2 AND revision = $3`
	remove = `DELETE FROM objects WHERE kind = $1 AND name = $2 AND revision = $3 AND notified_revision >= notify_revision`

	nextFloor  = `INSERT INTO floors (shard, revision) VALUES ($1, 1) ON CONFLICT (shard) DO UPDATE SET revision = floors.revision + 1 RETURNING revision`
	raiseFloor = `INSERT INTO floors (shard, revision) VALUES ($1, $2) ON CONFLICT (shard) DO UPDATE SET revision = $2 WHERE floors.revision < $2`
)

// get reads one object.
func (s *store) get(ctx context.Context, k key) (apiclient.Raw, error) {
	r, err := find(ctx, s.read, k)
	return r.object, err
}

// list reads up to limit+1 objects behind the name after, fewer when they are large; more says that there are others. If
// owedAt is not nil it reads only those owed a reconcile since then or longer.
func (s *store) list(ctx context.Context, kind, after string, limit int, owedAt *time.Time) (items []apiclient.Raw, more bool, err error) {
	query, args := selectAll, []any{kind, after, limit + 1}
	if owedAt != nil {
		query, args = selectUnsettled, append(args, owedAt.UnixMicro())
	}
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, false, fmt.Errorf("list %s: %w", kind, err)
	}
	defer rows.Close()
	items = []apiclient.Raw{}
	for size := 0; rows.Next(); {
		if len(items) == limit || size >= maxPage {
			return items, true, nil
		}
		r, err := scan(rows)
		if err != nil {
			return nil, false, fmt.Errorf("list %s: %w", kind, err)
		}
		items = append(items, r.object)
		size += len(r.object.Spec) + len(r.object.Status)
	}
	if err := rows.Err(); err != nil {
		return nil, false, fmt.Errorf("list %s: %w", kind, err)
	}
	return items, false, nil
}

// create stores a new object.
func (s *store) create(ctx context.Context, k key, labels map[string]string, spec json.RawMessage) (o apiclient.Raw, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		o = newObject(k, labels, spec)
		return put(ctx, tx, &o, exists(k))
	})
	return o, err
}

// change applies a rule to the object that is there. The zero revision of effect.object tells a rule that removed it.
func (s *store) change(ctx context.Context, k key, rule func(o *apiclient.Raw) (effect, error)) (o apiclient.Raw, e effect, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		r, err := find(ctx, tx, k)
		if err != nil {
			return err
		}
		o, e, err = apply(ctx, tx, r, rule)
		return err
	})
	return o, e, err
}

// createOrChange applies a rule to the object, or stores a new one if there is none and absent allows it.
func (s *store) createOrChange(ctx context.Context, k key, absent error, fresh func() apiclient.Raw, rule func(o *apiclient.Raw) (effect, error)) (o apiclient.Raw, isNew bool, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		r, err := find(ctx, tx, k)
		if errors.Is(err, apiclient.ErrNotFound) {
			if absent != nil {
				return absent
			}
			o, isNew = fresh(), true
			return put(ctx, tx, &o, errLostRace)
		}
		if err != nil {
			return err
		}
		isNew = false
		o, _, err = apply(ctx, tx, r, rule)
		return err
	})
	return o, isNew, err
}
