package api

import (
	"context"
	"encoding/json"
	"slices"

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

// tell sends each watcher what concerns it. One that asks for a version which is not there any more is cut off: it comes back,
// and hears why. Callers hold mu.
func (f *feed) tell(ctx context.Context, page []change, found map[objects.Key]apiclient.Raw) error {
	told := make([]*telling, len(page))
	hooks := map[hookCall]*later{}
	for i, c := range page {
		told[i] = &telling{vault: f.store.vault, change: c, events: map[audience]event{}}
		if o, there := found[c.key()]; there {
			told[i].object = &o
		}
		for w := range f.watchers { // before anybody is sent something: what is converted together is converted by the first who needs it
			if !w.scope.covers(c.key()) {
				continue
			}
			ok, err := told[i].prepare(ctx, &w.scope, w.secrets, hooks)
			if err != nil {
				return err
			}
			if !ok {
				f.cut(w)
			}
		}
	}
	for _, t := range told {
		for w := range f.watchers {
			if !w.scope.covers(t.change.key()) {
				continue
			}
			e := t.events[t.audience(&w.scope, w.secrets)]
			e.step = f.steps
			select {
			case w.events <- e:
			default:
				f.cut(w)
			}
		}
	}
	return nil
}

// hookCall is what is converted together: one kind, between two versions.
type hookCall struct {
	known    *knownKind
	from, to string
}

// audience are watchers that are told the same of a change.
type audience struct {
	version       string
	there, secret bool
}

// telling makes the events of one change: each of them once for all watchers.
type telling struct {
	vault  *vault
	change change
	object *apiclient.Raw // nil if it is not there
	events map[audience]event
}

func (t *telling) audience(s *scope, secretsToo bool) audience {
	if t.object == nil || !s.selects(t.object) {
		return audience{}
	}
	return audience{version: s.version, there: true, secret: secretsToo}
}

// prepare makes the event that a watch of a scope is told, or says what has to be converted for that. ok is false if there is no
// such version.
func (t *telling) prepare(ctx context.Context, s *scope, secretsToo bool, hooks map[hookCall]*later) (ok bool, err error) {
	a := t.audience(s, secretsToo)
	if _, made := t.events[a]; made {
		return true, nil
	}
	if !a.there {
		t.events[a] = t.gone()
		return true, nil
	}
	o := *t.object
	j, err := t.vault.jobOf(s.version, &o)
	if err != nil {
		return false, nil //nolint:nilerr // whoever asks again is told
	}
	if j == nil {
		t.events[a], err = putEvent(ctx, t.vault, t.change.place, o, secretsToo)
		return true, err
	}
	call := hookCall{j.known, j.from, j.to}
	if hooks[call] == nil {
		hooks[call] = new(later)
	}
	l := hooks[call]
	at := slices.IndexFunc(l.jobs, func(have *job) bool { return have.name == j.name }) // for those who are shown secrets, or not
	if at < 0 {
		at, l.jobs = len(l.jobs), append(l.jobs, j)
	}
	t.events[a] = event{at: t.change.place, kind: objects.EventPut, revision: o.Revision, object: &o, later: l, job: at}
	return true, nil
}

func (t *telling) gone() event {
	return event{at: t.change.place, kind: objects.EventGone, data: objects.Gone(t.change.key())}
}

// event is what a watch is told of an object that it selects and that is in its version, or of one that has gone.
func (t *telling) event(ctx context.Context, secretsToo bool) (event, error) {
	if t.object == nil {
		return t.gone(), nil
	}
	return putEvent(ctx, t.vault, t.change.place, *t.object, secretsToo)
}

// putEvent shows an object.
func putEvent(ctx context.Context, v *vault, at place, o apiclient.Raw, secretsToo bool) (event, error) {
	if err := v.show(ctx, &o, secretsToo); err != nil {
		return event{}, err
	}
	data, err := json.Marshal(o)
	return event{at: at, kind: objects.EventPut, revision: o.Revision, data: data}, err
}
