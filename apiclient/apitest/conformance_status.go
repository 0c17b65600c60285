package apitest

import (
	"encoding/json"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

var statusRules = []rule{
	{"a status patch writes and does not notify", func(s *suite) {
		w := s.create("blue")
		at := time.Now().UTC().Truncate(time.Second)
		record := apiclient.Reconciliation{
			ObservedGeneration: 1, State: apiclient.StateRetrying, Failures: 3, LastError: "no", LastAttempt: &at, NextAttempt: &at,
			HandledRetry: "r",
		}
		got := s.ok(s.patch(w, apiclient.StatusPatch{Fence: 5, Status: json.RawMessage(`{"size":4}`), Reconciliation: &record}))
		s.written(got, w)
		equal(s, "generation", got.Generation, w.Generation)
		equal(s, "changedAt stays", got.ChangedAt.Equal(w.ChangedAt), true)
		equal(s, "status", got.Status.Size, 4)
		record.Fence = 5
		equal(s, "record", marshal(s.T, got.Reconciliation), marshal(s.T, record))
		equal(s, "stored object", marshal(s.T, s.get("blue")), marshal(s.T, got))
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 5, AddFinalizers: []string{"a"}}))
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 5, RemoveFinalizers: []string{"a"}}))
		s.notified()
	}},
	{"what a status patch does not give stays", func(s *suite) {
		w := s.create("blue")
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Status: json.RawMessage(`{"size":4}`), AddFinalizers: []string{"a"}}))
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 2, Reconciliation: &apiclient.Reconciliation{State: apiclient.StateStalled, LastError: "no"}}))
		got := s.ok(s.patch(w, apiclient.StatusPatch{Fence: 3}))
		equal(s, "status", got.Status.Size, 4)
		equal(s, "state", got.Reconciliation.State, apiclient.StateStalled)
		equal(s, "fence", got.Reconciliation.Fence, 3)
		s.equalNames("finalizers", got.Finalizers, "a")
		equal(s, "size in the spec", got.Spec.Size, 1)
	}},
	{"a status patch of uid and fence alone claims the object and says nothing", func(s *suite) {
		w := s.create("blue")
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Status: json.RawMessage(`{"size":4}`), Reconciliation: &apiclient.Reconciliation{
			State: apiclient.StateRetrying, ObservedGeneration: 1, Failures: 1, LastError: "no",
		}}))
		before := s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}))
		s.Notifications()
		events := s.told("blue")
		got := s.ok(s.patch(w, apiclient.StatusPatch{Fence: 7}))
		s.written(got, before)
		want := *before
		want.Revision, want.Reconciliation.Fence = got.Revision, 7
		equal(s, "object", marshal(s.T, got), marshal(s.T, &want))
		equal(s, "stored object", marshal(s.T, s.get("blue")), marshal(s.T, &want))
		s.refused(apiclient.ErrFenced)(s.patch(w, apiclient.StatusPatch{Fence: 6}))
		s.notified()
		s.equalNames("events", s.told("blue"), events...)
	}},
	{"since when a reconcile runs is kept while it does", func(s *suite) {
		w := s.create("blue")
		at := time.Now().UTC().Add(-time.Hour).Truncate(time.Second)
		running := func(state apiclient.State) *widget {
			record := apiclient.Reconciliation{State: state, ObservedGeneration: 1, RunningSince: &at}
			return s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Reconciliation: &record}))
		}
		for _, state := range apiclient.States {
			since := running(state).Reconciliation.RunningSince
			if state != apiclient.StateReconciling && state != apiclient.StateDeleting {
				equal(s, string(state)+" has runningSince", since != nil, false)
				continue
			}
			equal(s, string(state)+" has runningSince", since != nil && since.Equal(at), true)
		}
		running(apiclient.StateReconciling)
		s.equalNames("owed for half an hour", s.names(s.widgets.Unsettled(s.Context(), 30*time.Minute)), "blue")
		s.equalNames("owed for two hours", s.names(s.widgets.Unsettled(s.Context(), 2*time.Hour)))
		changed := s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}))
		equal(s, "Pending has runningSince", changed.Reconciliation.RunningSince != nil, false)
	}},
	{"a record is replaced as a whole", func(s *suite) {
		w := s.create("blue")
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Reconciliation: &apiclient.Reconciliation{State: apiclient.StateRetrying, Failures: 3, LastError: "no"}}))
		got := s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Reconciliation: &apiclient.Reconciliation{State: apiclient.StateWaiting}}))
		equal(s, "record", got.Reconciliation, apiclient.Reconciliation{State: apiclient.StateWaiting, Fence: 1})
	}},
	{"a status is replaced as a whole", func(s *suite) {
		w := s.create("blue")
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Status: json.RawMessage(`{"size":4,"other":1}`)}))
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Status: json.RawMessage(`{"third":9007199254740993}`)}))
		o := s.raw(200, "GET", "/v1/objects/widgets/blue", "")
		equal(s, "status", string(o.Status), `{"third":9007199254740993}`)
	}},
	{"a lower fence is refused and changes nothing", func(s *suite) {
		w := s.ok(s.patch(s.create("blue"), apiclient.StatusPatch{Fence: 5, Status: json.RawMessage(`{"size":5}`)}))
		s.refused(apiclient.ErrFenced)(s.patch(w, apiclient.StatusPatch{
			Fence: 4, Status: json.RawMessage(`{"size":4}`), AddFinalizers: []string{"a"}, Reconciliation: &apiclient.Reconciliation{Fence: 9},
		}))
		s.refused(apiclient.ErrFenced)(s.patch(w, apiclient.StatusPatch{}))
		equal(s, "status", s.get("blue").Status.Size, 5)
		s.unchanged(w)
	}},
	{"an equal and a higher fence pass, and the highest is kept", func(s *suite) {
		w := s.create("blue")
		for _, fence := range []uint64{0, 5, 5, 6, 1 << 53, 1<<53 + 1} {
			got := s.ok(s.patch(w, apiclient.StatusPatch{Fence: fence, Reconciliation: &apiclient.Reconciliation{Fence: 99}}))
			equal(s, "fence", got.Reconciliation.Fence, fence)
			equal(s, "stored fence", s.get("blue").Reconciliation.Fence, fence)
		}
		s.refused(apiclient.ErrFenced)(s.patch(w, apiclient.StatusPatch{Fence: 1 << 53}))
	}},
	{"a fence outlives a change of spec and a deletion", func(s *suite) {
		w := s.ok(s.patch(s.create("blue"), apiclient.StatusPatch{Fence: 5, AddFinalizers: []string{"a"}}))
		s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}))
		s.refused(apiclient.ErrFenced)(s.patch(w, apiclient.StatusPatch{Fence: 4}))
		s.ok(s.widgets.Delete(s.Context(), "blue"))
		s.refused(apiclient.ErrFenced)(s.patch(w, apiclient.StatusPatch{Fence: 4, RemoveFinalizers: []string{"a"}}))
		s.get("blue")
	}},
	{"a status patch for an earlier object of the name is a conflict", func(s *suite) {
		first := s.create("blue")
		s.gone(s.widgets.Delete(s.Context(), "blue"))
		second := s.create("blue")
		s.refused(apiclient.ErrConflict)(s.patch(first, apiclient.StatusPatch{Fence: 99, Status: json.RawMessage(`{"size":9}`)}))
		s.unchanged(second)
		equal(s, "fence", s.get("blue").Reconciliation.Fence, 0)
	}},
	{"a status patch of another revision is a conflict", func(s *suite) {
		read := s.create("blue")
		record := &apiclient.Reconciliation{State: apiclient.StateReconciling}
		w := s.ok(s.patch(read, apiclient.StatusPatch{Fence: 1, Revision: read.Revision, Reconciliation: record}))
		equal(s, "state", w.Reconciliation.State, apiclient.StateReconciling)
		for _, other := range []int64{read.Revision, w.Revision + 1, -1} {
			s.refused(apiclient.ErrConflict)(s.patch(read, apiclient.StatusPatch{Fence: 1, Revision: other, Status: json.RawMessage(`{"size":9}`)}))
		}
		s.unchanged(w)
		s.ok(s.patch(read, apiclient.StatusPatch{Fence: 1, Revision: w.Revision}))
	}},
	{"a status patch of what is not there is not found", func(s *suite) {
		s.refused(apiclient.ErrNotFound)(s.patch(&widget{Name: "blue", UID: "x"}, apiclient.StatusPatch{Fence: 1}))
	}},
	{"Ready of an older generation is stored as Pending", func(s *suite) {
		w := s.create("blue")
		s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}))
		got := s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Reconciliation: &apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 1}}))
		equal(s, "state", got.Reconciliation.State, apiclient.StatePending)
		equal(s, "observedGeneration", got.Reconciliation.ObservedGeneration, 1)
		got = s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Reconciliation: &apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 2}}))
		equal(s, "state", got.Reconciliation.State, apiclient.StateReady)
	}},
}

var askingRules = []rule{
	{"each retry is a new request and notifies", func(s *suite) {
		w := s.create("blue")
		first := s.ok(s.widgets.Retry(s.Context(), "blue"))
		s.notified("widgets/blue retry")
		second := s.ok(s.widgets.Retry(s.Context(), "blue"))
		s.notified("widgets/blue retry")
		s.written(first, w)
		s.written(second, first)
		equal(s, "first has an id", first.RetryRequest != "", true)
		equal(s, "second has the id of the first", second.RetryRequest == first.RetryRequest, false)
		equal(s, "has the time of the request", second.RetryRequestedAt != nil, true)
		equal(s, "generation", second.Generation, w.Generation)
		equal(s, "stored id", s.get("blue").RetryRequest, second.RetryRequest)
	}},
	{"pause and resume notify", func(s *suite) {
		w := s.create("blue")
		paused := s.ok(s.widgets.Pause(s.Context(), "blue"))
		s.notified("widgets/blue paused")
		s.written(paused, w)
		equal(s, "is paused", paused.Paused && s.get("blue").Paused, true)
		resumed := s.ok(s.widgets.Resume(s.Context(), "blue"))
		s.notified("widgets/blue resumed")
		s.written(resumed, paused)
		equal(s, "is paused", resumed.Paused || s.get("blue").Paused, false)
		equal(s, "generation", resumed.Generation, w.Generation)
	}},
	{"pause of what is paused and resume of what is not write nothing", func(s *suite) {
		w := s.create("blue")
		s.ok(s.widgets.Resume(s.Context(), "blue"))
		s.unchanged(w)
		w = s.ok(s.widgets.Pause(s.Context(), "blue"))
		s.notified("widgets/blue paused")
		s.ok(s.widgets.Pause(s.Context(), "blue"))
		s.unchanged(w)
	}},
	{"a paused object can be changed and notifies", func(s *suite) {
		s.create("blue")
		s.ok(s.widgets.Pause(s.Context(), "blue"))
		s.Notifications()
		w := s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}))
		equal(s, "is paused", w.Paused, true)
		s.notified("widgets/blue changed")
	}},
	{"retry, pause and resume of what is not there are not found", func(s *suite) {
		s.refused(apiclient.ErrNotFound)(s.widgets.Retry(s.Context(), "blue"))
		s.refused(apiclient.ErrNotFound)(s.widgets.Pause(s.Context(), "blue"))
		s.refused(apiclient.ErrNotFound)(s.widgets.Resume(s.Context(), "blue"))
		s.notified()
	}},
}
