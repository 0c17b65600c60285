package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

const (
	// rewriteRow stores what an object is in another version of its kind. No revision grows and nobody is told; whoever writes the
	// object at the same time comes first, or begins anew (updateRow).
	rewriteRow = `UPDATE objects SET spec = $3, sealed = $4, sealed_key = $5, version = $6
		WHERE kind = $1 AND name = $2 AND revision = $7 AND uid = $8 AND sealed = $9 AND version = $10 AND NOT gone`
	// selectOld reads objects that are in neither of two versions.
	selectOld = `SELECT ` + columns + ` FROM objects
		WHERE kind = $1 AND name > $2 AND version <> $3 AND version <> $4 AND NOT gone ORDER BY name LIMIT $5`
	// upgradedAtOnce is how many objects one request upgrades.
	upgradedAtOnce = 100
	// upgradeTries is for objects that others write all the time.
	upgradeTries = 10
)

// errWritten: somebody wrote a row while it was being converted.
var errWritten = errors.New("others write it all the time")

// modernize converts rows that are in older versions of their kind, and writes them back. It returns what kept it from doing so,
// errReplan for a row that somebody has written meanwhile. Rows whose secrets cannot be decrypted stay as they are.
func (s *store) modernize(ctx context.Context, rows map[objects.Key]*row) (map[objects.Key]error, error) {
	failed := map[objects.Key]error{}
	jobs := map[objects.Key]*job{}
	for k, r := range rows {
		j, err := s.upgradeOf(r)
		switch {
		case err != nil:
			return nil, err
		case j != nil:
			jobs[k] = j
		}
	}
	if len(jobs) == 0 {
		return failed, nil
	}
	convert(ctx, slices.Collect(maps.Values(jobs))...)
	for k, err := range checkUpgraded(jobs) {
		failed[k] = err
		delete(jobs, k)
	}
	written, err := s.rewrite(ctx, rows, jobs)
	if err != nil {
		return nil, err
	}
	for k := range jobs {
		if !written[k] {
			failed[k] = errReplan
		}
	}
	return failed, nil
}

// upgradeOf is what has to be done to a row, nil if it is in the current version or cannot be read.
func (s *store) upgradeOf(r *row) (*job, error) {
	known := (*s.vault.schemas.Load())[r.object.Kind]
	if known == nil || r.object.Sealed != "" {
		return nil, nil //nolint:nilnil // there is nothing to do
	}
	from, err := known.storedIn(r.object.Version)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", objects.KeyOf(&r.object), err)
	}
	if from == known.current() {
		return nil, nil //nolint:nilnil // likewise
	}
	return &job{known: known, name: r.object.Name, from: from, to: known.current(), spec: r.object.Spec}, nil
}

// checkUpgraded returns why jobs failed, also those whose outcome does not suit the schema: it is not to be stored.
func checkUpgraded(jobs map[objects.Key]*job) map[objects.Key]error {
	failed := map[objects.Key]error{}
	for k, j := range jobs {
		if j.err != nil {
			failed[k] = j.err
			continue
		}
		if wrong := j.known.schema().Check("spec", j.spec); len(wrong) > 0 {
			p := &apiclient.Problem{Title: "what the hook made does not suit the schema", Errors: wrong}
			failed[k] = &conversionError{kind: j.known.kind, from: j.from, to: j.to, names: []string{j.name}, err: &hookError{why: p.Error()}}
		}
	}
	return failed
}

// rewrite writes rows back, as jobs have converted them. written are those that nobody else has written meanwhile.
func (s *store) rewrite(ctx context.Context, rows map[objects.Key]*row, jobs map[objects.Key]*job) (written map[objects.Key]bool, err error) {
	keys := slices.SortedFunc(maps.Keys(jobs), objects.Key.Compare)
	kinds := map[*knownKind]bool{}
	for _, j := range jobs {
		kinds[j.known] = true
	}
	err = s.transact(ctx, func(tx *transaction) error {
		written = map[objects.Key]bool{}
		for known := range kinds {
			if err := tx.hold(ctx, known); err != nil {
				return err
			}
		}
		for _, k := range keys {
			ok, err := tx.rewrite(ctx, rows[k], jobs[k])
			if err != nil {
				return err
			}
			written[k] = ok
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for k := range written {
		if written[k] {
			rows[k].object.Spec, rows[k].object.Version = jobs[k].spec, jobs[k].to
		}
	}
	return written, nil
}

func (tx *transaction) rewrite(ctx context.Context, r *row, j *job) (written bool, err error) {
	o := r.object
	was := o.Version
	o.Spec, o.Version = j.spec, j.to
	now, err := tx.vault.seal(&o)
	if err != nil {
		return false, err
	}
	result, err := tx.ExecContext(ctx, rewriteRow, o.Kind, o.Name, now.spec, now.sealed, now.key, o.Version, o.Revision, o.UID, r.stored.sealed, was)
	if err != nil {
		return false, fmt.Errorf("upgrade %s: %w", objects.KeyOf(&o), err)
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// upgrade brings a page of the objects of a kind behind a name to the current version.
func (s *store) upgrade(ctx context.Context, kind, after string) (u apiclient.Upgrade, next string, err error) {
	if err := s.vault.ready(ctx); err != nil {
		return u, "", err
	}
	known := (*s.vault.schemas.Load())[kind]
	if known == nil {
		return u, "", objects.NotFound(objects.Key{Kind: "kinds", Name: kind})
	}
	page, more, err := s.oldRows(ctx, known, after)
	if err != nil || len(page) == 0 {
		return u, "", err
	}
	if more {
		next = page[len(page)-1].Name
	}
	up := upgrading{store: s, tries: map[objects.Key]int{}, left: map[objects.Key]error{}}
	if err := up.run(ctx, page); err != nil {
		return u, "", err
	}
	for _, k := range page {
		if why := up.left[k]; why != nil {
			u.Left = append(u.Left, apiclient.Left{Name: k.Name, Reason: why.Error()})
		}
	}
	u.Upgraded = up.done
	return u, next, nil
}

// oldRows names the next objects of a kind that are not in its current version.
func (s *store) oldRows(ctx context.Context, known *knownKind, after string) (page []objects.Key, more bool, err error) {
	also := known.current()
	if known.base == known.current() {
		also = ""
	}
	rows, err := s.read.QueryContext(ctx, selectOld, known.kind, after, known.current(), also, upgradedAtOnce)
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", known.kind, err)
	}
	defer rows.Close()
	size := 0
	for size < objects.MaxPage && rows.Next() {
		r, err := scan(s.vault, rows)
		if err != nil {
			return nil, false, fmt.Errorf("read %s: %w", known.kind, err)
		}
		page, size = append(page, objects.KeyOf(&r.object)), size+len(r.object.Spec)
	}
	return page, len(page) == upgradedAtOnce || size >= objects.MaxPage, rows.Err()
}

// upgrading is one request to upgrade a page.
type upgrading struct {
	store *store
	done  int
	tries map[objects.Key]int
	left  map[objects.Key]error // what was not upgraded, and why
}

// run upgrades objects. Those that others write are tried again; what fails together is tried in halves, so that an object that
// cannot be converted keeps back no other.
func (u *upgrading) run(ctx context.Context, keys []objects.Key) error {
	for todo := [][]objects.Key{keys}; len(todo) > 0; todo = todo[1:] {
		rows, err := u.store.rowsOf(ctx, todo[0])
		if err != nil {
			return err
		}
		failed, err := u.store.modernize(ctx, rows)
		switch {
		case errors.Is(err, errReplan), errors.Is(err, errUnknownVersion): // the kind has changed
			u.store.kinds.forget()
			if err := u.store.vault.ready(ctx); err != nil {
				return err
			}
			failed = map[objects.Key]error{}
			for k := range rows {
				failed[k] = errReplan
			}
		case err != nil:
			return err
		}
		together := map[*conversionError][]objects.Key{}
		var again []objects.Key
		for k, r := range rows {
			var c *conversionError
			switch why := failed[k]; {
			case r.object.Sealed != "":
				u.left[k] = errors.New(r.object.Sealed)
			case why == nil:
				u.done++
			case errors.As(why, &c):
				together[c] = append(together[c], k)
			case u.tries[k] < upgradeTries:
				u.tries[k]++
				again = append(again, k)
			default:
				u.left[k] = errWritten
			}
		}
		parts, err := u.split(together)
		if err != nil {
			return err
		}
		if len(again) > 0 {
			parts = append(parts, again)
		}
		todo = append(todo, parts...)
	}
	return nil
}

// split halves what failed together, and notes what failed alone.
func (u *upgrading) split(together map[*conversionError][]objects.Key) (parts [][]objects.Key, err error) {
	for c, keys := range together {
		var hook *hookError
		switch {
		case errors.As(c.err, &hook) && hook.unavailable, !errors.As(c.err, &hook) && len(keys) > 1:
			return nil, c // it would be the same for each half
		case len(keys) == 1:
			u.left[keys[0]] = c
		default:
			parts = append(parts, keys[:len(keys)/2], keys[len(keys)/2:])
		}
	}
	return parts, nil
}
