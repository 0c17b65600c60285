package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// get reads one object.
func (s *store) get(ctx context.Context, k objects.Key) (apiclient.Raw, error) {
	r, err := find(ctx, s.read, s.vault, k, "")
	return r.object, err
}

// objectsOf reads those of the given keys that are there.
func (s *store) objectsOf(ctx context.Context, keys []objects.Key) (map[objects.Key]apiclient.Raw, error) {
	rows, err := s.rowsOf(ctx, keys)
	if err != nil {
		return nil, err
	}
	all := make(map[objects.Key]apiclient.Raw, len(rows))
	for k, r := range rows {
		all[k] = r.object
	}
	return all, nil
}

// rowsOf reads the rows of those of the given keys that are there.
func (s *store) rowsOf(ctx context.Context, keys []objects.Key) (map[objects.Key]*row, error) {
	all := map[objects.Key]*row{}
	names := map[string][]any{}
	for _, k := range keys {
		names[k.Kind] = append(names[k.Kind], k.Name)
	}
	for kind, named := range names {
		for some := range slices.Chunk(named, selectedAtOnce) {
			if err := s.readNamed(ctx, all, kind, some); err != nil {
				return nil, fmt.Errorf("read %s: %w", kind, err)
			}
		}
	}
	return all, nil
}

// selectedAtOnce bounds the parameters of a statement.
const selectedAtOnce = 100

func (s *store) readNamed(ctx context.Context, into map[objects.Key]*row, kind string, names []any) error {
	var places []string
	for i := range names {
		places = append(places, fmt.Sprintf("$%d", i+2))
	}
	rows, err := s.read.QueryContext(ctx, fmt.Sprintf(selectSome, strings.Join(places, ", ")), append([]any{kind}, names...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		r, err := scan(s.vault, rows)
		if err != nil {
			return err
		}
		if !r.gone {
			into[objects.KeyOf(&r.object)] = &r
		}
	}
	return rows.Err()
}

// writing is transact for transactions that write objects. It fails with errReplan unless the kinds that are held are as they
// are known here.
func (s *store) writing(ctx context.Context, held []*knownKind, do func(tx *transaction) error) error {
	for again := true; ; again = false {
		if err := s.vault.ready(ctx); err != nil {
			return err
		}
		err := s.transact(ctx, func(tx *transaction) error {
			for _, known := range held {
				if err := tx.hold(ctx, known); err != nil {
					return err
				}
			}
			return do(tx)
		})
		if !again || !errors.Is(err, errUnknownVersion) { // another API may have been told of it just now
			return err
		}
		s.kinds.forget()
	}
}

// create stores a new object, unless it has done so under this key.
func (s *store) create(ctx context.Context, k objects.Key, w objects.Wanted, under requestKey, held ...*knownKind) (o apiclient.Raw, err error) {
	err = s.writing(ctx, held, func(tx *transaction) error {
		var inserted bool
		if o, inserted, err = tx.create(ctx, k, w); err != nil {
			return err
		}
		if under.key != "" {
			o, inserted, err = tx.remember(ctx, under, o, inserted)
		}
		if err == nil && !inserted {
			err = objects.Exists(k)
		}
		return err
	})
	return o, err
}

// put stores a new object, or replaces the one that is there.
func (s *store) put(ctx context.Context, k objects.Key, w objects.Wanted, held ...*knownKind) (o apiclient.Raw, isNew bool, err error) {
	err = s.writing(ctx, held, func(tx *transaction) error {
		o, isNew, err = tx.put(ctx, k, w)
		return err
	})
	return o, isNew, err
}

// create inserts a new object, unless there is one of that name.
func (tx *transaction) create(ctx context.Context, k objects.Key, w objects.Wanted) (o apiclient.Raw, inserted bool, err error) {
	if o, err = objects.New(k, w); err != nil {
		return o, false, err
	}
	if err = insert(ctx, tx, &o); errors.Is(err, errTaken) {
		return o, false, nil
	}
	return o, err == nil, err
}

func (tx *transaction) put(ctx context.Context, k objects.Key, w objects.Wanted) (o apiclient.Raw, isNew bool, err error) {
	o, _, err = tx.change(ctx, k, objects.Replace(w))
	if !errors.Is(err, apiclient.ErrNotFound) {
		return o, false, err
	}
	if w.IfMatch != 0 {
		return o, false, objects.NotThere(k)
	}
	o, inserted, err := tx.create(ctx, k, w)
	if err == nil && !inserted {
		err = errLostRace
	}
	return o, true, err
}

// change applies a rule to the object that is there, and returns it as it is afterwards.
func (s *store) change(ctx context.Context, k objects.Key, rule objects.Rule, held ...*knownKind) (o apiclient.Raw, e objects.Effect, err error) {
	err = s.writing(ctx, held, func(tx *transaction) error {
		o, e, err = tx.change(ctx, k, rule)
		return err
	})
	return o, e, err
}

func (tx *transaction) change(ctx context.Context, k objects.Key, rule objects.Rule) (o apiclient.Raw, e objects.Effect, err error) {
	r, err := find(ctx, tx, tx.vault, k, tx.rowLock)
	if err != nil {
		return o, e, err
	}
	e, err = apply(ctx, tx, &r, rule)
	return r.object, e, err
}

// apply applies a rule to a row that was read in tx and stores what comes of it, if nobody has written to it since.
func apply(ctx context.Context, tx *transaction, r *row, rule objects.Rule) (e objects.Effect, err error) {
	was := r.object
	e, err = rule(&r.object)
	if err != nil || !e.Written {
		return objects.Effect{}, err
	}
	r.object.Revision++
	if err := saveChange(ctx, tx, &r.object); err != nil {
		return e, err
	}
	if e.Notify != "" {
		r.reason, r.toNotify = e.Notify, r.object.Revision
	}
	if !e.Gone {
		if err := r.update(ctx, tx, &was, e); err != nil || maps.Equal(was.Labels, r.object.Labels) {
			return e, err
		}
		return e, changeLabels(ctx, tx, &r.object)
	}
	k := objects.KeyOf(&r.object)
	// The floor comes first, as it does when an object is made: the same order everywhere, so that no two wait for each other.
	if _, err := tx.ExecContext(ctx, raiseFloor, subject.Shard(k.Kind, k.Name), r.object.Revision); err != nil {
		return e, fmt.Errorf("remove %s: %w", k, err)
	}
	r.gone = true
	if err := r.update(ctx, tx, &was, e); err != nil {
		return e, err
	}
	if _, err := tx.ExecContext(ctx, deleteLabels, k.Kind, k.Name); err != nil {
		return e, fmt.Errorf("remove labels of %s: %w", k, err)
	}
	return e, dropTombstone(ctx, tx, k)
}
