package apitest

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// watchWithin bounds the wait for an event: far above what the slowest store takes.
const watchWithin = 30 * time.Second

// eyes is a watch that is read event by event.
type eyes struct {
	s    *suite
	next func() (apiclient.Event[widgetSpec, widgetStatus], error, bool)
	stop func()
	last string // the cursor of the last event
}

func (s *suite) watch(opts ...apiclient.WatchOption) *eyes {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), watchWithin)
	next, stop := iter.Pull2(s.widgets.Watch(ctx, opts...))
	e := &eyes{s: s, next: next, stop: func() { stop(); cancel() }}
	s.Cleanup(e.stop)
	return e
}

// see wants these events next: "reset", "synced", "put NAME SIZE/STATUS" or "gone NAME". One that says what the one before
// said may come in between.
func (e *eyes) see(want ...string) {
	e.s.Helper()
	before := ""
	for _, w := range want {
		got := before
		for got == before {
			event, err, _ := e.next()
			if err != nil {
				e.s.Fatalf("watch: want %q, got error %v", w, err)
			}
			got, e.last = said(event), event.Cursor
		}
		if got != w {
			e.s.Fatalf("watch: got %q, want %q", got, w)
		}
		before = got
	}
}

func said(e apiclient.Event[widgetSpec, widgetStatus]) string {
	switch e.Type {
	case apiclient.EventPut:
		return fmt.Sprintf("put %s %d/%d", e.Name, e.Object.Spec.Size, e.Object.Status.Size)
	case apiclient.EventGone:
		return "gone " + e.Name
	case apiclient.EventReset, apiclient.EventSynced:
	}
	return string(e.Type)
}

var watchRules = []rule{
	{"a watch begins with everything there is", func(s *suite) {
		s.watch().see("reset", "synced")
		s.create("red")
		s.create("blue")
		s.watch().see("reset", "put blue 1/0", "put red 1/0", "synced")
	}},
	{"a watch tells of every write", func(s *suite) {
		w := s.watch()
		w.see("reset", "synced")
		o := s.create("blue")
		w.see("put blue 1/0")
		s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}))
		w.see("put blue 2/0")
		s.ok(s.patch(o, apiclient.StatusPatch{Fence: 1, Status: []byte(`{"size":2}`), AddFinalizers: []string{"a"}}))
		w.see("put blue 2/2")
		o = s.ok(s.widgets.Delete(s.Context(), "blue"))
		w.see("put blue 2/2")
		s.gone(s.patch(o, apiclient.StatusPatch{Fence: 1, RemoveFinalizers: []string{"a"}}))
		w.see("gone blue")
		s.create("blue")
		w.see("put blue 1/0")
		s.gone(s.widgets.Delete(s.Context(), "blue"))
		w.see("gone blue")
	}},
	{"a watch tells of no other kind", func(s *suite) {
		w := s.watch()
		w.see("reset", "synced")
		s.raw(http.StatusCreated, "POST", "/v1/objects/gadgets", `{"name":"other","spec":{}}`)
		s.create("blue")
		w.see("put blue 1/0")
	}},
	{"a watch goes on where an earlier one was", func(s *suite) {
		for _, name := range []string{"blue", "green", "red"} {
			s.create(name)
		}
		w := s.watch()
		w.see("reset", "put blue 1/0", "put green 1/0", "put red 1/0", "synced")
		w.stop()
		s.gone(s.widgets.Delete(s.Context(), "green"))
		s.ok(s.widgets.Put(s.Context(), "red", widgetSpec{Size: 7}))
		s.create("yellow")
		w = s.watch(apiclient.From(w.last))
		w.see("gone green", "put red 7/0", "put yellow 1/0")
		w.stop()
		s.ok(s.widgets.Put(s.Context(), "yellow", widgetSpec{Size: 8}))
		s.watch(apiclient.From(w.last)).see("put yellow 8/0")
	}},
	{"a watch of labels tells when an object gets and loses them", func(s *suite) {
		s.create("blue", apiclient.WithLabels(map[string]string{"tier": "front"}))
		s.create("red")
		w := s.watch(apiclient.WatchLabeled(map[string]string{"tier": "front"}))
		w.see("reset", "put blue 1/0", "synced")
		s.ok(s.widgets.Put(s.Context(), "red", widgetSpec{Size: 1}, apiclient.WithLabels(map[string]string{"tier": "front"})))
		w.see("put red 1/0")
		s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 1}))
		w.see("gone blue")
	}},
	{"a watch of one object tells of no other", func(s *suite) {
		s.create("blue")
		s.create("red")
		w := s.watch(apiclient.WatchNamed("red"))
		w.see("reset", "put red 1/0", "synced")
		s.gone(s.widgets.Delete(s.Context(), "blue"))
		s.gone(s.widgets.Delete(s.Context(), "red"))
		w.see("gone red")
	}},
	{"one can wait for an object", func(s *suite) {
		absent := func(o *widget) bool { return o == nil }
		if w, err := s.widgets.WaitFor(s.Context(), "blue", absent); w != nil || err != nil {
			s.Fatalf("got %+v, error %v, want neither", w, err)
		}
		o := s.create("blue")
		s.ok(s.patch(o, apiclient.StatusPatch{
			Fence: 1, Reconciliation: &apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: o.Generation},
		}))
		equal(s, "name", s.ok(s.widgets.WaitFor(s.Context(), "blue", (*widget).Ready)).Name, "blue")
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		defer cancel()
		s.refused(context.DeadlineExceeded)(s.widgets.WaitFor(ctx, "blue", absent))
	}},
	{"watches that cannot be are refused", func(s *suite) {
		for _, query := range []string{"cursor=x", "cursor=a.b.c.d", "cursor=-1", "name=Blue", "labels=x"} {
			resp, data := s.send("GET", "/v1/watch/widgets?"+query, strings.NewReader(""))
			equal(s, "status of "+query, resp.StatusCode, http.StatusUnprocessableEntity)
			s.problem(resp, data)
		}
		resp, data := s.send("GET", "/v1/watch/Widgets", strings.NewReader(""))
		equal(s, "status", resp.StatusCode, http.StatusUnprocessableEntity)
		s.problem(resp, data)
		resp, _ = s.send("POST", "/v1/watch/widgets", strings.NewReader(""))
		equal(s, "status of a POST", resp.StatusCode, http.StatusMethodNotAllowed)
	}},
}
