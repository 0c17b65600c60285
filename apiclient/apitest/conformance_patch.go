package apitest

import (
	"fmt"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

type labels = map[string]string

var patchRules = []rule{
	{"a patch changes what it gives and notifies", func(s *suite) {
		w := s.ok(s.widgets.Create(s.Context(), "blue", widgetSpec{Size: 1}, apiclient.WithLabels(labels{"a": "1", "b": "2"})))
		s.Notifications()
		got := s.ok(s.widgets.Patch(s.Context(), "blue", map[string]any{"size": 5}))
		s.written(got, w)
		s.notified("widgets/blue changed")
		equal(s, "generation", got.Generation, w.Generation+1)
		equal(s, "size", s.get("blue").Spec.Size, 5)
		equal(s, "labels", fmt.Sprint(s.get("blue").Labels), "map[a:1 b:2]")
	}},
	{"null removes, and what is not given stays", func(s *suite) {
		s.raw(201, "POST", "/v1/objects/widgets", `{"name":"blue","labels":{"a":"1","b":"2"},"spec":{"size":1,"deep":{"x":1,"y":9007199254740993}}}`)
		o := s.raw(200, "PATCH", "/v1/objects/widgets/blue", `{"labels":{"a":null,"c":"3"},"spec":{"deep":{"x":null,"z":[1]}}}`)
		equal(s, "labels", fmt.Sprint(o.Labels), "map[b:2 c:3]")
		equal(s, "spec", apiclient.SameJSON(o.Spec, []byte(`{"size":1,"deep":{"y":9007199254740993,"z":[1]}}`)), true)
	}},
	{"a patch that changes nothing writes nothing, one of labels alone does not notify", func(s *suite) {
		w := s.create("blue")
		s.ok(s.widgets.Patch(s.Context(), "blue", map[string]any{"size": 1, "absent": nil}))
		s.unchanged(w)
		got := s.ok(s.widgets.Patch(s.Context(), "blue", nil, apiclient.WithLabels(labels{"a": "1"})))
		equal(s, "revision grows", got.Revision > w.Revision, true)
		equal(s, "generation", got.Generation, w.Generation)
		s.notified()
	}},
	{"a patch heeds If-Match", func(s *suite) {
		w := s.create("blue")
		s.refused(apiclient.ErrConflict)(s.widgets.Patch(s.Context(), "blue", map[string]any{"size": 2}, apiclient.IfRevision(w.Revision+1)))
		s.unchanged(w)
		s.ok(s.widgets.Patch(s.Context(), "blue", map[string]any{"size": 2}, apiclient.IfRevision(w.Revision)))
	}},
	{"a patch of what is not there is not found, of what is being deleted a conflict", func(s *suite) {
		s.refused(apiclient.ErrNotFound)(s.widgets.Patch(s.Context(), "blue", map[string]any{"size": 2}))
		w := s.deleting("blue", "a")
		s.refused(apiclient.ErrConflict)(s.widgets.Patch(s.Context(), "blue", map[string]any{"size": 2}))
		s.unchanged(w)
	}},
	{"a wrong patch is refused and names the field", func(s *suite) {
		w := s.create("blue")
		for body, field := range map[string]string{
			`{}`:                     "body",
			`{"spec":5}`:             "body.spec",
			`{"labels":5}`:           "body.labels",
			`{"labels":{"a":1}}`:     "body.labels",
			`{"labels":{"a b":"1"}}`: "body.labels",
			`{"status":{"size":1}}`:  "body.status",
		} {
			resp, data := s.send("PATCH", "/v1/objects/widgets/blue", strings.NewReader(body), "Content-Type", "application/merge-patch+json")
			p := s.problem(resp, data)
			if len(p.Errors) == 0 || !strings.HasPrefix(p.Errors[0].Location, field) {
				s.Fatalf("patch %s: want a problem at %s, got %d %+v", body, field, resp.StatusCode, p)
			}
		}
		s.unchanged(w)
	}},
	{"lists select by labels", func(s *suite) {
		for i := range 250 {
			l := labels{"tier": fmt.Sprint(i % 2), "all": "yes"}
			s.ok(s.widgets.Create(s.Context(), fmt.Sprintf("w-%03d", i), widgetSpec{}, apiclient.WithLabels(l)))
		}
		count := func(l labels) int {
			return len(s.names(s.widgets.All(s.Context(), apiclient.Labeled(l))))
		}
		equal(s, "one label", count(labels{"tier": "1"}), 125)
		equal(s, "two labels", count(labels{"tier": "1", "all": "yes"}), 125)
		equal(s, "none", count(labels{}), 250)
		equal(s, "another value", count(labels{"tier": "2"}), 0)
		equal(s, "another name", count(labels{"none": "1"}), 0)
		names, next := s.page("?labels=all=yes&limit=100")
		equal(s, "size of a page", len(names), 100)
		names, _ = s.page("?labels=all=yes&limit=500&cursor=" + next)
		equal(s, "the rest", len(names), 150)
		names, _ = s.page("?labels=tier=1&limit=500&unsettled=0s")
		equal(s, "unsettled ones", len(names), 125)
	}},
	{"lists follow the labels", func(s *suite) {
		s.ok(s.widgets.Create(s.Context(), "blue", widgetSpec{}, apiclient.WithLabels(labels{"a": "1"})))
		listed := func(l labels, want ...string) {
			s.Helper()
			s.equalNames(fmt.Sprint(l), s.names(s.widgets.All(s.Context(), apiclient.Labeled(l))), want...)
		}
		s.ok(s.widgets.Put(s.Context(), "blue", widgetSpec{}, apiclient.WithLabels(labels{"a": "2", "b": ""})))
		listed(labels{"a": "1"})
		listed(labels{"a": "2"}, "blue")
		listed(labels{"b": ""}, "blue")
		s.gone(s.widgets.Delete(s.Context(), "blue"))
		listed(labels{"a": "2"})
		s.create("blue")
		listed(labels{"a": "2"})
	}},
	{"a wrong label or selector is refused", func(s *suite) {
		long := strings.Repeat("x", 254)
		for _, l := range []labels{{"": "1"}, {"a b": "1"}, {"ä": "1"}, {long: "1"}, {"a": "1,2"}, {"a": long}} {
			s.refused(apiclient.ErrInvalid)(s.widgets.Create(s.Context(), "blue", widgetSpec{}, apiclient.WithLabels(l)))
			s.refused(apiclient.ErrInvalid)(s.widgets.Put(s.Context(), "blue", widgetSpec{}, apiclient.WithLabels(l)))
		}
		for _, q := range []string{"a", "a=1,a=2", "=1", "a=1,", "a%20b=1"} {
			resp, data := s.send("GET", "/v1/objects/widgets?labels="+q, nil)
			equal(s, "status of "+q, resp.StatusCode, 422)
			s.problem(resp, data)
		}
	}},
}
