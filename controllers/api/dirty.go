package api

import (
	"context"
	"fmt"

	"github.com/evenkeel-io/evenkeel/internal/objects"
)

const (
	// selectDirty repeats the condition of the index objects_dirty, which holds nothing but what it finds.
	selectDirty = `SELECT kind, name, notify_reason, notify_revision FROM objects
		WHERE notified_revision < notify_revision AND (kind, name) > ($1, $2) ORDER BY kind, name LIMIT $3`
	selectDirtyOne = `SELECT kind, name, notify_reason, notify_revision FROM objects
		WHERE notified_revision < notify_revision AND kind = $1 AND name = $2`
	// markRow compares and sets: a change since the row was read has a revision of its own and stays dirty.
	markRow = `UPDATE objects SET notified_revision = $3 WHERE kind = $1 AND name = $2 AND notify_revision = $3 RETURNING gone`
)

// dirtyAfter reads a page of the rows that have not been notified, tombstones among them, in the order of their keys.
func (s *store) dirtyAfter(ctx context.Context, after objects.Key) ([]dirty, error) {
	rows, err := s.read.QueryContext(ctx, selectDirty, after.Kind, after.Name, batchSize)
	if err != nil {
		return nil, fmt.Errorf("read what is not notified: %w", err)
	}
	defer rows.Close()
	var page []dirty
	for rows.Next() {
		var d dirty
		if err := rows.Scan(&d.Kind, &d.Name, &d.reason, &d.revision); err != nil {
			return nil, fmt.Errorf("read what is not notified: %w", err)
		}
		page = append(page, d)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read what is not notified: %w", err)
	}
	return page, nil
}

// dirtyOne reads one row if it has not been notified.
func (s *store) dirtyOne(ctx context.Context, k objects.Key) (d dirty, ok bool, err error) {
	err = s.read.QueryRowContext(ctx, selectDirtyOne, k.Kind, k.Name).Scan(&d.Kind, &d.Name, &d.reason, &d.revision)
	if isNoRows(err) {
		return d, false, nil
	}
	if err != nil {
		return d, false, fmt.Errorf("read what is not notified of %s: %w", k, err)
	}
	return d, true, nil
}

// markNotified records that controllers have heard of the change. A tombstone has then done its work.
func markNotified(ctx context.Context, tx *transaction, d dirty) error {
	var gone bool
	err := tx.QueryRowContext(ctx, markRow, d.Kind, d.Name, d.revision).Scan(&gone)
	switch {
	case isNoRows(err):
		return nil // it has changed, and whoever relays that change marks it
	case err != nil:
		return fmt.Errorf("mark %s as notified: %w", d.Key, err)
	case gone:
		return dropTombstone(ctx, tx, d.Key)
	}
	return nil
}
