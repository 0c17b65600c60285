package apitest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

var listRules = []rule{
	{"a list without objects is an empty page", func(s *suite) {
		resp, data := s.send("GET", "/v1/objects/widgets", nil)
		equal(s, "status", resp.StatusCode, http.StatusOK)
		var page map[string]json.RawMessage
		if err := json.Unmarshal(data, &page); err != nil {
			s.Fatal(err)
		}
		equal(s, "items", string(page["items"]), "[]")
		equal(s, "next", string(page["next"]), "")
	}},
	{"450 objects are listed once each", func(s *suite) {
		want := make([]string, 450)
		for i := range want {
			want[i] = fmt.Sprintf("w-%03d", i)
		}
		for i := range want { // in another order than that of the names
			name := want[i*7%len(want)]
			s.ok(s.widgets.Create(s.Context(), name, widgetSpec{}))
		}
		s.equalNames("all", s.names(s.widgets.All(s.Context())), want...)
		s.equalNames("unsettled", s.names(s.widgets.Unsettled(s.Context(), 0)), want...)
		names, _ := s.page("")
		equal(s, "size of a page by default", len(names), 100)
		names, next := s.page("?limit=500")
		equal(s, "size of the largest page", len(names), 450)
		equal(s, "next after the last page", next, "")
		names, next = s.page("?limit=450")
		equal(s, "size of a page that just fits", len(names), 450)
		equal(s, "next after a page that just fits", next, "")
	}},
	{"what stays is listed once while others come and go", func(s *suite) {
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			s.create(name)
		}
		first, next := s.page("?limit=2")
		s.equalNames("first page", first, "a", "b")
		s.gone(s.widgets.Delete(s.Context(), "b")) // where the cursor stands
		s.gone(s.widgets.Delete(s.Context(), "c"))
		s.create("aa")
		s.create("dd")
		second, next := s.page("?limit=2&cursor=" + next)
		third, next := s.page("?limit=2&cursor=" + next)
		s.equalNames("rest", slices.Concat(second, third), "d", "dd", "e")
		equal(s, "next after the last page", next, "")
	}},
	{"unsettled lists what has been owed a reconcile for so long", checkUnsettled},
	{"large objects do not make a page that the client cannot read", func(s *suite) {
		const large = objects.MaxPage / 8
		note := string(slices.Repeat([]byte("x"), large))
		var want []string
		for i := range 10 {
			want = append(want, fmt.Sprintf("w-%d", i))
			s.ok(s.widgets.Create(s.Context(), want[i], widgetSpec{Note: note}))
		}
		first, next := s.page("?limit=500")
		if len(first) == len(want) {
			s.Fatalf("a page of %d bytes, want it to end early, at about %d", len(want)*large, objects.MaxPage)
		}
		rest, next := s.page("?limit=500&cursor=" + next)
		s.equalNames("all", slices.Concat(first, rest), want...)
		equal(s, "next after the last page", next, "")
	}},
}

// page reads one page of widgets.
func (s *suite) page(query string) (names []string, next string) {
	s.Helper()
	resp, data := s.send("GET", "/v1/objects/widgets"+query, nil)
	equal(s, "status of "+query, resp.StatusCode, http.StatusOK)
	var page struct {
		Items []widget `json:"items"`
		Next  string   `json:"next"`
	}
	if err := json.Unmarshal(data, &page); err != nil {
		s.Fatal(err)
	}
	for _, w := range page.Items {
		names = append(names, w.Name)
	}
	return names, page.Next
}

func checkUnsettled(s *suite) {
	ago, later := time.Now().Add(-2*time.Hour), time.Now().Add(time.Hour)
	observed := func(name string, generation int64, state apiclient.State, next *time.Time) {
		s.ok(s.patch(s.get(name), apiclient.StatusPatch{Fence: 1, Reconciliation: &apiclient.Reconciliation{
			State: state, ObservedGeneration: generation, NextAttempt: next,
		}}))
	}
	for _, name := range []string{"asked", "changed", "later", "overdue", "paused", "paused-overdue", "resumed", "settled", "stalled"} {
		s.create(name)
	}
	s.create("never")
	s.deleting("deleting", "f")
	observed("asked", 1, apiclient.StateStalled, nil)
	s.ok(s.widgets.Retry(s.Context(), "asked"))
	observed("changed", 1, apiclient.StateReady, nil)
	s.ok(s.widgets.Put(s.Context(), "changed", widgetSpec{Size: 2}))
	observed("deleting", 2, apiclient.StateWaiting, &later)
	observed("later", 1, apiclient.StateRetrying, &later)
	observed("overdue", 1, apiclient.StateReady, &ago)
	s.ok(s.widgets.Pause(s.Context(), "paused"))
	observed("paused-overdue", 1, apiclient.StateRetrying, &ago)
	s.ok(s.widgets.Pause(s.Context(), "paused-overdue"))
	s.ok(s.widgets.Pause(s.Context(), "resumed"))
	s.ok(s.widgets.Resume(s.Context(), "resumed"))
	observed("settled", 1, apiclient.StateReady, nil)
	observed("stalled", 1, apiclient.StateStalled, nil)

	unsettled := func(atLeast time.Duration) []string { return s.names(s.widgets.Unsettled(s.Context(), atLeast)) }
	now := []string{"asked", "changed", "deleting", "never", "overdue", "resumed"}
	s.equalNames("unsettled at all", unsettled(0), now...)
	s.equalNames("unsettled for an hour", unsettled(time.Hour), "overdue")
	s.equalNames("unsettled for three hours", unsettled(3*time.Hour))

	var owed []string
	for w, err := range s.widgets.All(s.Context()) {
		if _, is := s.ok(w, err).OwedSince(time.Now()); is {
			owed = append(owed, w.Name)
		}
	}
	s.equalNames("owed a reconcile according to OwedSince", owed, now...)

	asked := s.get("asked")
	s.ok(s.patch(asked, apiclient.StatusPatch{Fence: 1, Reconciliation: &apiclient.Reconciliation{
		State: apiclient.StateReady, ObservedGeneration: 1, HandledRetry: asked.RetryRequest,
	}}))
	observed("overdue", 1, apiclient.StateReady, nil)
	observed("changed", 2, apiclient.StateReady, nil)
	s.equalNames("unsettled after some were reconciled", unsettled(0), "deleting", "never", "resumed")
}
