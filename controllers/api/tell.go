package api

import (
	"context"
	"encoding/json"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// latest leaves out changes that are followed by another one of the same object.
func latest(page []change) []change {
	last := map[objects.Key]int{}
	for i, c := range page {
		last[c.key()] = i
	}
	var kept []change
	for i, c := range page {
		if last[c.key()] == i {
			kept = append(kept, c)
		}
	}
	return kept
}

// tell sends each watcher what concerns it. Callers hold mu.
func (f *feed) tell(ctx context.Context, page []change, found map[objects.Key]apiclient.Raw) error {
	for _, c := range page {
		told := telling{vault: f.store.vault, change: c}
		if o, there := found[c.key()]; there {
			told.object = &o
		}
		for w := range f.watchers {
			if !w.scope.covers(c.key()) {
				continue
			}
			e, err := told.event(ctx, &w.scope, w.secrets)
			if err != nil {
				return err
			}
			select {
			case w.events <- e:
			default:
				f.cut(w)
			}
		}
	}
	return nil
}

// telling makes the events of one change: each kind of them once for all watchers.
type telling struct {
	vault  *vault
	change change
	object *apiclient.Raw // nil if it is not there
	gone   event
	put    [2]event // the second one with secrets
}

// event is what a watch of a scope is told.
func (t *telling) event(ctx context.Context, s *scope, secretsToo bool) (event, error) {
	e := &t.gone
	there := t.object != nil && s.selects(t.object)
	if there {
		e = &t.put[0]
		if secretsToo {
			e = &t.put[1]
		}
	}
	if e.kind != "" {
		return *e, nil
	}
	if !there {
		*e = event{at: t.change.place, kind: objects.EventGone, data: objects.Gone(t.change.key())}
		return *e, nil
	}
	var err error
	*e, err = putEvent(ctx, t.vault, t.change.place, *t.object, secretsToo)
	return *e, err
}

// putEvent shows an object.
func putEvent(ctx context.Context, v *vault, at place, o apiclient.Raw, secretsToo bool) (event, error) {
	if err := v.show(ctx, &o, secretsToo); err != nil {
		return event{}, err
	}
	data, err := json.Marshal(o)
	return event{at: at, kind: objects.EventPut, data: data}, err
}
