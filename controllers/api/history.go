package api

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

const (
	// insertEvent never keeps a write from being made, also in a database where somebody has set revisions back.
	insertEvent = `INSERT INTO events (kind, name, revision, uid, generation, at, reason, message, principal)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (kind, name, revision) DO NOTHING`
	selectEvents = `SELECT revision, uid, generation, at, reason, message, principal FROM events
		WHERE kind = $1 AND name = $2 ORDER BY revision DESC LIMIT $3`
	// deleteSurplus leaves as many as are told.
	deleteSurplus = `DELETE FROM events WHERE kind = $1 AND name = $2 AND revision <= (
		SELECT revision FROM events WHERE kind = $1 AND name = $2 ORDER BY revision DESC LIMIT 1 OFFSET $3)`
	// deleteEvents drops a page of the oldest.
	deleteEvents = `DELETE FROM events WHERE (kind, name, revision) IN (
		SELECT kind, name, revision FROM events WHERE at < $1 ORDER BY at LIMIT $2)`
	// surplusEvery is how many events of an object are added for each time that its surplus is looked for, on average.
	surplusEvery = 16
)

// saveEvent notes what a write has done, if it tells something.
func saveEvent(ctx context.Context, tx *transaction, before, after *apiclient.Raw, e objects.Effect) error {
	by := ""
	if v := visitOf(ctx); v != nil {
		by = v.who.name
	}
	h, ok := objects.Happened(before, after, e, by)
	if !ok {
		return nil
	}
	_, err := tx.ExecContext(ctx, insertEvent, after.Kind, after.Name, h.Revision, h.UID, h.Generation, h.At.UnixMicro(), h.Reason, h.Message, h.By)
	if err == nil && rand.N(surplusEvery) == 0 {
		_, err = tx.ExecContext(ctx, deleteSurplus, after.Kind, after.Name, objects.KeptEvents)
	}
	if err != nil {
		return fmt.Errorf("note what happened to %s: %w", objects.KeyOf(after), err)
	}
	return nil
}

// events reads what happened to an object. It fails as get does if that is nothing.
func (s *store) events(ctx context.Context, k objects.Key) ([]apiclient.Happening, error) {
	rows, err := s.read.QueryContext(ctx, selectEvents, k.Kind, k.Name, objects.KeptEvents)
	if err != nil {
		return nil, fmt.Errorf("read the events of %s: %w", k, err)
	}
	defer rows.Close()
	var all []apiclient.Happening
	for rows.Next() {
		h := apiclient.Happening{Count: 1}
		var at int64
		if err := rows.Scan(&h.Revision, &h.UID, &h.Generation, &at, &h.Reason, &h.Message, &h.By); err != nil {
			return nil, fmt.Errorf("read the events of %s: %w", k, err)
		}
		h.At = time.UnixMicro(at).UTC()
		h.FirstAt = h.At
		all = append(all, h)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the events of %s: %w", k, err)
	}
	if len(all) == 0 { // those of an object that is there may all be old
		_, err = s.get(ctx, k)
	}
	slices.Reverse(all)
	return objects.Summed(all), err
}

// forgetEvents drops events from before a time, a page of them; more says that there may be others.
func (s *store) forgetEvents(ctx context.Context, before time.Time) (more bool, err error) {
	result, err := s.write.ExecContext(ctx, deleteEvents, before.UnixMicro(), trimPage)
	if err != nil {
		return false, fmt.Errorf("drop old events: %w", err)
	}
	n, err := result.RowsAffected()
	return n == trimPage, err
}

type eventsOutput struct {
	Body struct {
		Items []apiclient.Happening `json:"items"`
	}
}

func (a *API) events(ctx context.Context, in *objectInput) (*eventsOutput, error) {
	k := in.key()
	out := new(eventsOutput)
	err := objects.CheckKey(k, "path.name")
	if err == nil {
		err = a.store.checkVersion(ctx, k.Kind, in.Version)
	}
	if err == nil {
		out.Body.Items, err = a.store.events(ctx, k)
	}
	if err != nil {
		return nil, a.failed(ctx, "list the events of "+k.String(), err)
	}
	return out, nil
}
