package api

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// row is an object as it is stored.
type row struct {
	object apiclient.Raw
	// gone marks a tombstone.
	gone bool
	// toNotify is the revision of the latest write that controllers must hear of. The one that they have heard of is a
	// column which belongs to the relay: a write that stored what it had read of it could take back a mark.
	reason   string
	toNotify int64
	// stored is how its spec was read, and shown what was made of that: an object that is sealed keeps the one as long as its
	// spec is the other.
	stored stored
	shown  json.RawMessage
}

const (
	columns = `kind, name, uid, labels, generation, revision, created_at, changed_at, deleted_at, finalizers, paused,
		retry_request, retry_requested_at, spec, status, reconciliation, gone, notify_reason, notify_revision, sealed, sealed_key,
		version`

	// selectOne and selectSome also find tombstones: said of those, PostgreSQL could take an index that leaves them out, and as
	// long as it has no statistics it does take one that knows the names of a kind only in another order.
	selectOne  = `SELECT ` + columns + ` FROM objects WHERE kind = $1 AND name = $2`
	selectSome = `SELECT ` + columns + ` FROM objects WHERE kind = $1 AND name IN (%s)`
	selectAll  = `SELECT ` + columns + ` FROM objects WHERE kind = $1 AND name > $2 AND NOT gone ORDER BY name LIMIT $3`

	deleteLabels = `DELETE FROM labels WHERE kind = $1 AND name = $2`
	insertLabel  = `INSERT INTO labels (kind, name, label, value) VALUES ($1, $2, $3, $4)`

	// A tombstone makes way for an object of its name, and is dirty in its place.
	insertRow = `INSERT INTO objects (` + columns + `, owed_since, state, notified_revision)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, 0)
		ON CONFLICT (kind, name) DO UPDATE SET uid = $3, labels = $4, generation = $5, revision = $6, created_at = $7,
		changed_at = $8, deleted_at = $9, finalizers = $10, paused = $11, retry_request = $12, retry_requested_at = $13,
		spec = $14, status = $15, reconciliation = $16, gone = $17, notify_reason = $18, notify_revision = $19, sealed = $20,
		sealed_key = $21, version = $22, owed_since = $23, state = $24 WHERE objects.gone`
	updateRow = `UPDATE objects SET labels = $4, generation = $5, revision = $6, changed_at = $8, deleted_at = $9,
		finalizers = $10, paused = $11, retry_request = $12, retry_requested_at = $13, spec = $14, status = $15,
		reconciliation = $16, gone = $17, notify_reason = $18, notify_revision = $19, sealed = $20, sealed_key = $21, version = $22,
		owed_since = $23, state = $24
		WHERE kind = $1 AND name = $2 AND uid = $3 AND created_at = $7 AND revision = $25 AND sealed = $26 AND version = $27`
	deleteTombstone = `DELETE FROM objects WHERE kind = $1 AND name = $2 AND gone AND notified_revision >= notify_revision`

	nextFloor = `INSERT INTO floors (shard, revision) VALUES ($1, 1)
		ON CONFLICT (shard) DO UPDATE SET revision = floors.revision + 1 RETURNING revision`
	raiseFloor = `INSERT INTO floors (shard, revision) VALUES ($1, $2)
		ON CONFLICT (shard) DO UPDATE SET revision = $2 WHERE floors.revision < $2`
)

type scanner interface{ Scan(dest ...any) error }

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// find reads the row of an object that is there. lock, which may be empty, ends the statement.
func find(ctx context.Context, q querier, v *vault, k objects.Key, lock string) (row, error) {
	r, err := scan(v, q.QueryRowContext(ctx, selectOne+lock, k.Kind, k.Name))
	switch {
	case isNoRows(err), r.gone:
		return r, objects.NotFound(k)
	case err != nil:
		return r, fmt.Errorf("read %s: %w", k, err)
	}
	return r, nil
}

// scan reads the columns of one row. An object whose secrets cannot be decrypted says so (Sealed), and has Redacted in their
// place.
func scan(v *vault, from scanner) (r row, err error) {
	o := &r.object
	var created, changed int64
	var deleted, retried sql.Null[int64]
	var labels, finalizers, status, record []byte
	err = from.Scan(&o.Kind, &o.Name, &o.UID, &labels, &o.Generation, &o.Revision, &created, &changed, &deleted, &finalizers,
		&o.Paused, &o.RetryRequest, &retried, &r.stored.spec, &status, &record, &r.gone, &r.reason, &r.toNotify,
		&r.stored.sealed, &r.stored.key, &o.Version)
	if err != nil {
		return r, err
	}
	err = errors.Join(json.Unmarshal(labels, &o.Labels), json.Unmarshal(finalizers, &o.Finalizers), json.Unmarshal(record, &o.Reconciliation))
	o.CreatedAt, o.ChangedAt, o.DeletedAt, o.RetryRequestedAt = time.UnixMicro(created).UTC(), time.UnixMicro(changed).UTC(),
		fromMicro(deleted), fromMicro(retried)
	o.Spec, o.Status = json.RawMessage(r.stored.spec), status
	v.unseal(o, r.stored.sealed)
	r.shown = o.Spec
	return r, err
}

// values are the columns of a row, owed_since and state, for insertRow and updateRow. A tombstone needs no spec.
func (r *row) values(v *vault) ([]any, error) {
	o := &r.object
	labels, err1 := json.Marshal(o.Labels)
	finalizers, err2 := json.Marshal(o.Finalizers)
	record, err3 := json.Marshal(o.Reconciliation)
	now := stored{spec: "{}"}
	var err4 error
	switch {
	case r.gone:
	case o.Sealed != "" && bytes.Equal(o.Spec, r.shown):
		now = r.stored
	default:
		now, err4 = v.seal(o)
	}
	return []any{
		o.Kind, o.Name, o.UID, string(labels), o.Generation, o.Revision, o.CreatedAt.UnixMicro(), o.ChangedAt.UnixMicro(),
		toMicro(o.DeletedAt), string(finalizers), o.Paused, o.RetryRequest, toMicro(o.RetryRequestedAt), now.spec,
		string(o.Status), string(record), r.gone, r.reason, r.toNotify, now.sealed, now.key, o.Version, r.owedSince(), string(objects.StateOf(o)),
	}, errors.Join(err1, err2, err3, err4)
}

// farFuture is later than every next attempt: JSON has no year 10000.
var farFuture = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// owedSince is from when on the object is owed a reconcile if nobody writes to it any more.
func (r *row) owedSince() sql.Null[int64] {
	since, owed := r.object.OwedSince(farFuture)
	return sql.Null[int64]{V: since.UnixMicro(), Valid: owed && !r.gone}
}

// errTaken: there is an object of that name.
var errTaken = errors.New("there is one of that name")

// insert stores a new object at its first revision, or fails with errTaken.
func insert(ctx context.Context, tx *transaction, o *apiclient.Raw) error {
	k := objects.KeyOf(o)
	if err := tx.QueryRowContext(ctx, nextFloor, subject.Shard(k.Kind, k.Name)).Scan(&o.Revision); err != nil {
		return fmt.Errorf("create %s: first revision: %w", k, err)
	}
	r := row{object: *o, reason: objects.Created, toNotify: o.Revision}
	n, err := r.exec(ctx, tx, insertRow)
	if err == nil && n == 0 {
		err = errTaken
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", k, err)
	}
	if err := saveChange(ctx, tx, o); err != nil {
		return err
	}
	if err := saveEvent(ctx, tx, &apiclient.Raw{}, o, objects.Made); err != nil {
		return err
	}
	return saveLabels(ctx, tx, o)
}

// changeLabels stores the labels of an object that had others.
func changeLabels(ctx context.Context, tx *transaction, o *apiclient.Raw) error {
	if _, err := tx.ExecContext(ctx, deleteLabels, o.Kind, o.Name); err != nil {
		return fmt.Errorf("label %s: %w", objects.KeyOf(o), err)
	}
	return saveLabels(ctx, tx, o)
}

// saveLabels stores the labels of an object, which has had none, for lists that select by them.
func saveLabels(ctx context.Context, tx *transaction, o *apiclient.Raw) error {
	for label, value := range o.Labels {
		if _, err := tx.ExecContext(ctx, insertLabel, o.Kind, o.Name, label, value); err != nil {
			return fmt.Errorf("label %s: %w", objects.KeyOf(o), err)
		}
	}
	return nil
}

// update stores a row and its event, or loses the race to whoever wrote since it was read.
func (r *row) update(ctx context.Context, tx *transaction, before *apiclient.Raw, e objects.Effect) error {
	n, err := r.exec(ctx, tx, updateRow, before.Revision, r.stored.sealed, before.Version)
	if err == nil && n == 0 {
		err = errLostRace
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", objects.KeyOf(before), err)
	}
	return saveEvent(ctx, tx, before, &r.object, e) // whoever loses the race must not come to it: there is one event of a revision
}

func (r *row) exec(ctx context.Context, tx *transaction, statement string, more ...any) (affected int64, err error) {
	values, err := r.values(tx.vault)
	if err != nil {
		return 0, err
	}
	result, err := tx.ExecContext(ctx, statement, append(values, more...)...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// dropTombstone deletes a tombstone that has been notified.
func dropTombstone(ctx context.Context, tx *transaction, k objects.Key) error {
	if _, err := tx.ExecContext(ctx, deleteTombstone, k.Kind, k.Name); err != nil {
		return fmt.Errorf("drop tombstone %s: %w", k, err)
	}
	return nil
}

func fromMicro(n sql.Null[int64]) *time.Time {
	if !n.Valid {
		return nil
	}
	at := time.UnixMicro(n.V).UTC()
	return &at
}

func toMicro(at *time.Time) (n sql.Null[int64]) {
	if at != nil {
		n.V, n.Valid = at.UnixMicro(), true
	}
	return n
}

func isNoRows(err error) bool { return errors.Is(err, sql.ErrNoRows) }
