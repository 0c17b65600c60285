package apitest

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// told are the events of an object in the order in which they happened, each as "Reason generation x count: message".
func (s *suite) told(name string) []string {
	s.Helper()
	events, err := s.widgets.Events(s.Context(), name)
	if err != nil {
		s.Fatal(err)
	}
	var all []string
	for i := range events {
		h := &events[len(events)-1-i]
		if h.At.IsZero() || h.FirstAt.After(h.At) || h.UID == "" || h.Revision == 0 {
			s.Fatalf("event %+v", h)
		}
		text := fmt.Sprintf("%s %d", h.Reason, h.Generation)
		if h.Count > 1 {
			text += fmt.Sprintf(" x %d", h.Count)
		}
		if h.Message != "" {
			text += ": " + h.Message
		}
		all = append(all, text)
	}
	return all
}

// came patches the record of an object.
func (s *suite) came(w *widget, record apiclient.Reconciliation) {
	s.Helper()
	s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Reconciliation: &record}))
}

var eventRules = []rule{
	{"events tell what happened", func(s *suite) {
		w := s.create("blue")
		ready := apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 1}
		s.came(w, ready)
		s.came(w, ready) // again, and nothing new
		s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 1}, apiclient.WithLabels(map[string]string{"a": "b"})))
		s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}))
		for failures := range 3 {
			s.came(w, apiclient.Reconciliation{State: apiclient.StateRetrying, ObservedGeneration: 2, Failures: failures + 1, LastError: "no room"})
		}
		s.came(w, apiclient.Reconciliation{State: apiclient.StateRetrying, ObservedGeneration: 2, Failures: 4, LastError: "no air"})
		s.ok(s.widgets.Pause(s.Context(), "blue"))
		s.ok(s.widgets.Resume(s.Context(), "blue"))
		s.ok(s.widgets.Retry(s.Context(), "blue"))
		s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 3}))
		s.came(w, apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 2}) // stored as Pending
		s.equalNames("events", s.told("blue"),
			"Created 1", "Ready 1", "Changed 2", "Retrying 2 x 3: no room", "Retrying 2: no air", "Paused 2", "Resumed 2", "RetryRequested 2",
			"Changed 3", "Ready 2")
		s.create("green")
		s.equalNames("events of another object", s.told("green"), "Created 1")
	}},
	{"events outlive their object", func(s *suite) {
		w := s.create("blue")
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, AddFinalizers: []string{"a"}}))
		s.ok(s.widgets.Delete(s.Context(), "blue"))
		s.gone(s.patch(w, apiclient.StatusPatch{Fence: 1, RemoveFinalizers: []string{"a"}}))
		s.equalNames("events", s.told("blue"), "Created 1", "DeletionRequested 2", "Deleted 2")
		again := s.create("blue")
		s.equalNames("events", s.told("blue"), "Created 1", "DeletionRequested 2", "Deleted 2", "Created 1")
		events, err := s.widgets.Events(s.Context(), "blue")
		if err != nil {
			s.Fatal(err)
		}
		equal(s, "uid of the latest", events[0].UID, again.UID)
		equal(s, "uid of the one before", events[1].UID, w.UID)
		s.gone(s.widgets.Delete(s.Context(), "blue"))
		equal(s, "latest", s.told("blue")[4], "Deleted 2")
		_, err = s.widgets.Events(s.Context(), "never-heard-of")
		equal(s, "not found", errors.Is(err, apiclient.ErrNotFound), true)
	}},
	{"events are bounded", func(s *suite) {
		w := s.create("blue")
		for i := range 120 {
			s.came(w, apiclient.Reconciliation{State: apiclient.StateRetrying, Failures: i + 1, LastError: fmt.Sprint(strings.Repeat("ä", 600), i)})
		}
		told := s.told("blue")
		equal(s, "events", len(told), 1) // the first 1,000 bytes say the same
		equal(s, "event", told[0], "Retrying 0 x 100: "+strings.Repeat("ä", 500))
		equal(s, "last error", len(s.get("blue").Reconciliation.LastError) > 1000, true)
	}},
	{"an error may have any text", func(s *suite) {
		w := s.create("blue")
		s.came(w, apiclient.Reconciliation{State: apiclient.StateRetrying, Failures: 1, LastError: "a\x00b"})
		equal(s, "last error", s.get("blue").Reconciliation.LastError, "a\x00b")
		s.equalNames("events", s.told("blue"), "Created 1", "Retrying 0: a\uFFFDb")
	}},
	{"a note is told as an event", func(s *suite) {
		w := s.create("blue")
		at := time.Now().UTC().Truncate(time.Second)
		note := apiclient.Note{Reason: apiclient.HappenedTakenOver, Message: "replica a died"}
		got := s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Note: &note}))
		s.written(got, w)
		equal(s, "record", got.Reconciliation, apiclient.Reconciliation{State: apiclient.StatePending, Fence: 1})
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 2, Note: &note})) // again
		running := apiclient.Reconciliation{State: apiclient.StateReconciling, RunningSince: &at}
		late := apiclient.Note{Reason: apiclient.HappenedOverdue, Message: strings.Repeat("ä", 600) + "\x00"}
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 2, Reconciliation: &running, Note: &late})) // instead of Reconciling
		equal(s, "state", s.get("blue").Reconciliation.State, apiclient.StateReconciling)
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 2, Reconciliation: &apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 1}}))
		s.equalNames("events", s.told("blue"), "Created 1", "TakenOver 1 x 2: replica a died", "Overdue 1: "+strings.Repeat("ä", 500), "Ready 1")
		s.notified()
	}},
	{"a note of a deletion that ends leaves it the event", func(s *suite) {
		w := s.finalized("blue", "a")
		s.ok(s.widgets.Delete(s.Context(), "blue"))
		note := apiclient.Note{Reason: apiclient.HappenedTakenOver}
		s.gone(s.patch(w, apiclient.StatusPatch{Fence: 1, RemoveFinalizers: []string{"a"}, Note: &note}))
		s.equalNames("events", s.told("blue"), "Created 1", "DeletionRequested 2", "Deleted 2")
	}},
	{"a note of another reason is refused", func(s *suite) {
		w := s.create("blue")
		for _, reason := range []string{"", "Created", "Ready", "takenover", "Whatever"} {
			s.refused(apiclient.ErrInvalid)(s.patch(w, apiclient.StatusPatch{Fence: 1, Note: &apiclient.Note{Reason: reason, Message: "a"}}))
		}
		s.unchanged(w)
		s.equalNames("events", s.told("blue"), "Created 1")
	}},
	{"a batch that is refused tells nothing", func(s *suite) {
		names := []string{"blue", "red", "white", "black", "grey", "pink"} // some of which are written before the one that fails
		items := []apiclient.Item{{Kind: "widgets", Name: "green", Spec: []byte(`{"size":9}`), Revision: 7}}
		for _, name := range names {
			s.create(name)
			items = append(items, apiclient.Item{Kind: "widgets", Name: name, Spec: []byte(`{"size":9}`)})
		}
		_, err := s.apply(items...)
		equal(s, "refused", errors.Is(err, apiclient.ErrConflict), true)
		for _, name := range names {
			s.equalNames("events", s.told(name), "Created 1")
		}
		_, err = s.apply(apiclient.Item{Kind: "widgets", Name: "blue", Spec: []byte(`{"size":9}`)}, apiclient.Item{Kind: "widgets", Name: "green", Spec: []byte(`{"size":9}`)})
		if err != nil {
			s.Fatal(err)
		}
		s.equalNames("events", s.told("blue"), "Created 1", "Changed 2")
		s.equalNames("events", s.told("green"), "Created 1")
		s.raw(http.StatusUnprocessableEntity, "GET", "/v1/objects/widgets/Blue/events", "")
	}},
}
