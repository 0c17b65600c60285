package apitest

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

var objectRules = []rule{
	{"create returns the whole object", func(s *suite) {
		before := time.Now().Add(-time.Minute) // clocks may differ a little
		o := s.raw(http.StatusCreated, "POST", "/v1/objects/widgets", `{"name":"blue","labels":{"a":"b"},"spec":{"size":3}}`)
		equal(s, "kind", o.Kind, "widgets")
		equal(s, "name", o.Name, "blue")
		equal(s, "labels", maps.Equal(o.Labels, map[string]string{"a": "b"}), true)
		equal(s, "generation", o.Generation, 1)
		equal(s, "spec", string(o.Spec), `{"size":3}`)
		equal(s, "status", string(o.Status), `{}`)
		equal(s, "state", o.Reconciliation.State, apiclient.StatePending)
		equal(s, "has a uid", o.UID != "", true)
		equal(s, "has a revision", o.Revision > 0, true)
		equal(s, "createdAt is now", o.CreatedAt.After(before) && o.CreatedAt.Before(before.Add(2*time.Minute)), true)
		equal(s, "changedAt is createdAt", o.ChangedAt.Equal(o.CreatedAt), true)
		equal(s, "createdAt's zone", o.CreatedAt.Location(), time.UTC)
		equal(s, "is being deleted", o.DeletedAt != nil, false)
		s.notified("widgets/blue created")
	}},
	{"create of a name that is there is refused", func(s *suite) {
		w := s.create("blue")
		s.refused(apiclient.ErrExists)(s.widgets.Create(s.Context(), "blue", widgetSpec{Size: 2}))
		s.unchanged(w)
	}},
	{"get returns what was created", func(s *suite) {
		w := s.create("blue", apiclient.WithLabels(map[string]string{"a": "b"}))
		got, want := marshal(s.T, s.get("blue")), marshal(s.T, w)
		equal(s, "object", got, want)
	}},
	{"get of what is not there is not found", func(s *suite) {
		s.refused(apiclient.ErrNotFound)(s.widgets.Get(s.Context(), "blue"))
	}},
	{"kinds are separate", func(s *suite) {
		s.create("blue")
		s.raw(http.StatusCreated, "POST", "/v1/objects/gadgets", `{"name":"blue","spec":{"size":2}}`)
		s.notified("gadgets/blue created")
		equal(s, "size", s.get("blue").Spec.Size, 1)
		s.equalNames("widgets", s.names(s.widgets.All(s.Context())), "blue")
	}},
	{"put creates and then replaces", func(s *suite) {
		s.raw(http.StatusCreated, "PUT", "/v1/objects/widgets/blue", `{"spec":{"size":1}}`)
		s.notified("widgets/blue created")
		before := s.get("blue")
		s.raw(http.StatusOK, "PUT", "/v1/objects/widgets/blue", `{"spec":{"size":2}}`)
		s.notified("widgets/blue changed")
		w := s.get("blue")
		s.written(w, before)
		equal(s, "size", w.Spec.Size, 2)
		equal(s, "generation", w.Generation, 2)
		equal(s, "createdAt stays", w.CreatedAt.Equal(before.CreatedAt), true)
		equal(s, "changedAt is before the change", w.ChangedAt.Before(before.ChangedAt), false)
	}},
	{"put of what is there writes nothing", func(s *suite) {
		s.raw(http.StatusCreated, "PUT", "/v1/objects/widgets/blue",
			`{"labels":{"a":"b","c":"d"},"spec":{"size":1,"note":"é","more":{"x":[1,2.50,null],"y":false}}}`)
		w := s.get("blue")
		s.notified("widgets/blue created")
		o := s.raw(http.StatusOK, "PUT", "/v1/objects/widgets/blue",
			`{"spec":{"more": {"y":false, "x":[1.0, 2.5, null]}, "note":"\u00e9", "size":1}, "labels":{"c":"d","a":"b"}}`)
		equal(s, "revision", o.Revision, w.Revision)
		s.unchanged(w)
	}},
	{"put sees small changes", func(s *suite) {
		specs := []string{
			`{"n":9007199254740992}`, `{"n":9007199254740993}`, `{"n":"9007199254740993"}`, `{"n":null}`, `{}`, `{"n":[]}`,
			`{"n":[1,2]}`, `{"n":[2,1]}`, `{"n":{}}`, `{"n":0.1000000000000000055}`, `{"n":0.1}`, `{"n":""}`, `{"n":false}`,
		}
		for i, spec := range specs {
			s.raw(map[bool]int{true: 201, false: 200}[i == 0], "PUT", "/v1/objects/widgets/blue", `{"spec":`+spec+`}`)
			o := s.raw(http.StatusOK, "GET", "/v1/objects/widgets/blue", "")
			equal(s, "generation after "+spec, o.Generation, int64(i+1))
			equal(s, "stored spec", string(o.Spec), spec)
		}
	}},
	{"put replaces labels and does not notify of labels alone", func(s *suite) {
		w := s.create("blue", apiclient.WithLabels(map[string]string{"a": "b"}))
		other := s.ok(s.widgets.Put(s.Context(), "blue", w.Spec, apiclient.WithLabels(map[string]string{"c": "d"})))
		s.written(other, w)
		equal(s, "labels", maps.Equal(other.Labels, map[string]string{"c": "d"}), true)
		none := s.ok(s.widgets.Put(s.Context(), "blue", w.Spec))
		s.written(none, other)
		equal(s, "number of labels", len(none.Labels), 0)
		equal(s, "generation", none.Generation, w.Generation)
		equal(s, "changedAt stays", none.ChangedAt.Equal(w.ChangedAt), true)
		s.notified()
	}},
	{"a change of spec turns the state to Pending", func(s *suite) {
		w := s.create("blue")
		s.ok(s.patch(w, apiclient.StatusPatch{Fence: 7, Status: json.RawMessage(`{"size":1}`), Reconciliation: &apiclient.Reconciliation{
			State: apiclient.StateReady, ObservedGeneration: 1, LastError: "kept",
		}}))
		w = s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}))
		equal(s, "state", w.Reconciliation.State, apiclient.StatePending)
		equal(s, "observedGeneration", w.Reconciliation.ObservedGeneration, 1)
		equal(s, "fence", w.Reconciliation.Fence, 7)
		equal(s, "lastError", w.Reconciliation.LastError, "kept")
		equal(s, "status", w.Status.Size, 1)
	}},
	{"If-Match lets through what is current and nothing else", func(s *suite) {
		w := s.create("blue")
		current := s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}, apiclient.IfRevision(w.Revision)))
		s.notified("widgets/blue changed")
		s.refused(apiclient.ErrConflict)(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 3}, apiclient.IfRevision(w.Revision)))
		s.refused(apiclient.ErrConflict)(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}, apiclient.IfRevision(w.Revision)))
		s.unchanged(current)
		s.refused(apiclient.ErrConflict)(s.widgets.Put(s.Context(), "red", widgetSpec{}, apiclient.IfRevision(1)))
		s.refused(apiclient.ErrNotFound)(s.widgets.Get(s.Context(), "red"))
	}},
	{"a name used again is another object", func(s *suite) {
		first := s.finalized("blue", "f")
		s.ok(s.patch(first, apiclient.StatusPatch{Fence: 9, Status: json.RawMessage(`{"size":1}`), RemoveFinalizers: []string{"f"}}))
		s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{Size: 2}, apiclient.WithLabels(map[string]string{"a": "b"})))
		s.ok(s.widgets.Pause(s.Context(), "blue"))
		last := s.ok(s.widgets.Retry(s.Context(), "blue"))
		s.gone(s.widgets.Delete(s.Context(), "blue"))
		second := s.ok(s.widgets.Create(s.Context(), "blue", widgetSpec{Size: 3}))
		equal(s, "uid is the first's", second.UID == first.UID, false)
		equal(s, "generation", second.Generation, 1)
		equal(s, "revision is above the first's", second.Revision > last.Revision, true)
		equal(s, "is paused", second.Paused, false)
		equal(s, "retry request", second.RetryRequest, "")
		equal(s, "number of labels", len(second.Labels), 0)
		equal(s, "status", second.Status, widgetStatus{})
		equal(s, "record", second.Reconciliation, apiclient.Reconciliation{State: apiclient.StatePending})
		s.Notifications()
		s.refused(apiclient.ErrConflict)(s.widgets.Put(s.Context(), "blue", widgetSpec{}, apiclient.IfRevision(last.Revision)))
		s.unchanged(second)
		s.ok(s.patch(second, apiclient.StatusPatch{Fence: 1})) // fences are the object's, not the name's
	}},
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}
