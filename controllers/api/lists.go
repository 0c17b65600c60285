package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// selection says which objects are listed.
type selection struct {
	objects.Selection
	kind string
}

// list reads a page, which has fewer objects than asked for when they are large, or when it takes long to find them. next
// is the position behind which the list goes on, nil at its end.
func (s *store) list(ctx context.Context, sel selection) (items []apiclient.Raw, next *objects.Position, err error) {
	items = []apiclient.Raw{}
	for scanned, size := 0, 0; ; {
		looked := sel.After
		full := false
		n, err := s.scan(ctx, &sel, func(at objects.Position, o *apiclient.Raw) (goOn bool) {
			if o != nil && sel.Selects(o) {
				if full = len(items) == sel.Limit || size >= objects.MaxPage; full {
					return false
				}
				items = append(items, *o)
				size += len(o.Spec) + len(o.Status)
			}
			looked = &at
			return true
		})
		scanned += n
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("list %s: %w", sel.kind, err)
		case full, scanned >= objects.MaxScan && n == sel.atOnce():
			return items, looked, nil
		case n < sel.atOnce():
			return items, nil, nil
		}
		sel.After = looked
	}
}

// atOnce is how many objects are looked at with one statement: one more than fit shows whether there are others.
func (sel *selection) atOnce() int {
	if len(sel.Fields) > 0 {
		return objects.MaxLimit
	}
	return sel.Limit + 1
}

// plain is a list of everything in the order of names.
func (sel *selection) plain() bool {
	return len(sel.Labels) == 0 && sel.State == "" && sel.OwedAt == nil && sel.Sort == (objects.Sort{By: "name"})
}

// scan hands over atOnce objects behind sel.After, nil for one that has gone meanwhile, and returns how many there were.
func (s *store) scan(ctx context.Context, sel *selection, take func(at objects.Position, o *apiclient.Raw) (goOn bool)) (n int, err error) {
	if sel.plain() {
		return s.scanAll(ctx, sel, take)
	}
	positions, err := s.positions(ctx, sel)
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(positions, selectedAtOnce) {
		var keys []objects.Key
		for _, p := range some {
			keys = append(keys, objects.Key{Kind: sel.kind, Name: p.Name})
		}
		found, err := s.objectsOf(ctx, keys)
		if err != nil {
			return 0, err
		}
		for i, p := range some {
			var there *apiclient.Raw
			if o, ok := found[keys[i]]; ok {
				there = &o
			}
			if !take(p, there) {
				return len(positions), nil
			}
		}
	}
	return len(positions), nil
}

func (s *store) scanAll(ctx context.Context, sel *selection, take func(at objects.Position, o *apiclient.Raw) (goOn bool)) (n int, err error) {
	after := ""
	if sel.After != nil {
		after = sel.After.Name
	}
	rows, err := s.read.QueryContext(ctx, selectAll, sel.kind, after, sel.atOnce())
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		n++
		r, err := scan(s.vault, rows)
		if err != nil {
			return n, err
		}
		if !take(sel.Sort.Of(&r.object), &r.object) {
			break
		}
	}
	return n, rows.Err()
}

// positions reads where the next objects stand. Only so does the planner use the index of what is asked for, and not
// that of all names.
func (s *store) positions(ctx context.Context, sel *selection) (all []objects.Position, err error) {
	text, args := sel.query()
	rows, err := s.read.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var p objects.Position
		if err := rows.Scan(&p.Name, &p.At); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, rows.Err()
}

// query makes the statement for positions.
func (sel *selection) query() (text string, args []any) {
	args = []any{sel.kind}
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	from, where := "objects AS found", []string{"kind = $1", "NOT gone"}
	if sel.OwedAt != nil { // tombstones are owed nothing, and said of them the index of what is would not be taken
		where = []string{"kind = $1", "owed_since <= " + arg(sel.OwedAt.UnixMicro())}
	}
	labels := slices.Sorted(maps.Keys(sel.Labels))
	if len(labels) > 0 && sel.State == "" && sel.OwedAt == nil && !sel.Sort.ByTime() {
		from = "labels AS found"
		where = []string{"kind = $1", "label = " + arg(labels[0]), "value = " + arg(sel.Labels[labels[0]])}
		labels = labels[1:]
	}
	for _, l := range labels { // no EXISTS: PostgreSQL makes a join of that, and one without the name while it has no statistics
		where = append(where, `(SELECT 1 FROM labels AS l WHERE l.kind = $1 AND l.label = `+arg(l)+` AND l.value = `+arg(sel.Labels[l])+` AND l.name = found.name) IS NOT NULL`)
	}
	if sel.State != "" {
		where = append(where, "state = "+arg(string(sel.State)))
	}
	at, order := "0", "name"
	switch sel.Sort.By {
	case "created":
		at, order = "created_at", "created_at, name"
	case "changed":
		at, order = "changed_at", "changed_at, name"
	}
	behind, direction := ">", ""
	if sel.Sort.Descending {
		behind, direction = "<", " DESC"
	}
	if p := sel.After; p != nil && sel.Sort.ByTime() {
		where = append(where, fmt.Sprintf("(%s) %s (%s, %s)", order, behind, arg(p.At), arg(p.Name)))
	} else if p != nil {
		where = append(where, "name "+behind+" "+arg(p.Name))
	}
	text = "SELECT name, " + at + " FROM " + from + " WHERE " + strings.Join(where, " AND ") +
		" ORDER BY " + strings.ReplaceAll(order, ",", direction+",") + direction + " LIMIT " + arg(sel.atOnce())
	return text, args
}
