package apitest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// in gives an object a state.
func (s *suite) in(state apiclient.State, w *widget, status string) {
	s.Helper()
	s.ok(s.patch(w, apiclient.StatusPatch{Fence: 1, Status: []byte(status), Reconciliation: &apiclient.Reconciliation{
		State: state, ObservedGeneration: w.Generation,
	}}))
}

var selectRules = []rule{
	{"lists select by state", func(s *suite) {
		for i := range 7 {
			w := s.create(fmt.Sprintf("w-%d", i))
			if i%3 == 0 {
				s.in(apiclient.StateStalled, w, "{}")
			}
		}
		listed := func(state apiclient.State, want ...string) {
			s.Helper()
			s.equalNames(string(state), s.names(s.widgets.All(s.Context(), apiclient.InState(state))), want...)
		}
		listed(apiclient.StateStalled, "w-0", "w-3", "w-6")
		listed(apiclient.StatePending, "w-1", "w-2", "w-4", "w-5")
		listed(apiclient.StateReady)
		s.ok(s.widgets.Put(s.Context(), "w-3", widgetSpec{Size: 9})) // which makes it Pending
		s.gone(s.widgets.Delete(s.Context(), "w-6"))
		listed(apiclient.StateStalled, "w-0")
		first, next := s.page("?state=Pending&limit=3")
		s.equalNames("first page", first, "w-1", "w-2", "w-3")
		second, next := s.page("?state=Pending&limit=3&cursor=" + next)
		s.equalNames("second page", second, "w-4", "w-5")
		equal(s, "next", next, "")
	}},
	{"lists select by fields", func(s *suite) {
		uid := map[string]string{}
		for name, spec := range map[string]string{
			"a": `{"region":"eu","size":3,"parts":[{"n":1},{"n":2}],"on":true,"none":null}`,
			"b": `{"region":"us","size":3.0,"parts":[],"on":"true"}`,
			"c": `{"size":"3"}`,
		} {
			uid[name] = s.raw(http.StatusCreated, "POST", "/v1/objects/widgets", `{"name":"`+name+`","spec":`+spec+`}`).UID
		}
		anything, err := apiclient.New[json.RawMessage, json.RawMessage](s.config(), "widgets")
		if err != nil {
			s.Fatal(err)
		}
		listed := func(fields string, want ...string) {
			s.Helper()
			var names []string
			for o, err := range anything.All(s.Context(), apiclient.WithFields(strings.Split(fields, ",")...)) {
				if err != nil {
					s.Fatal(fields, err)
				}
				names = append(names, o.Name)
			}
			s.equalNames(fields, names, want...)
		}
		listed("spec.region=eu", "a")
		listed("spec.region!=eu", "b", "c")
		listed("spec.size=3", "a", "b", "c")
		listed("spec.size=3,spec.region=us", "b")
		listed("spec.parts.1.n=2", "a")
		listed("spec.parts.2.n=2")
		listed("spec.on=true", "a", "b")
		listed("spec.none=null", "a")
		listed("status.phase=x")
		s.raw(http.StatusOK, "PATCH", "/v1/objects/widgets/c/status", `{"uid":"`+uid["c"]+`","fence":1,"status":{"phase":"x"}}`)
		listed("status.phase=x", "c")
	}},
	{"lists are in the order that is asked for", func(s *suite) {
		var want, changed []string
		for _, name := range []string{"b", "a", "d", "c", "e"} {
			s.create(name)
			want = append(want, name)
		}
		for _, name := range []string{"e", "b", "a", "d", "c"} {
			s.ok(s.widgets.Put(s.Context(), name, widgetSpec{Size: 7}))
			changed = append(changed, name)
		}
		ordered := func(sort string, want ...string) {
			s.Helper()
			s.equalNames(sort, s.names(s.widgets.All(s.Context(), apiclient.SortedBy(sort))), want...)
			var paged []string
			for query := "?limit=2&sort=" + sort; ; {
				names, next := s.page(query)
				paged = append(paged, names...)
				if next == "" {
					break
				}
				query = "?limit=2&sort=" + sort + "&cursor=" + next
			}
			s.equalNames(sort+", page by page", paged, want...)
		}
		ordered("name", "a", "b", "c", "d", "e")
		ordered("-name", "e", "d", "c", "b", "a")
		ordered("created", want...)
		ordered("-created", reversed(want)...)
		ordered("changed", changed...)
		ordered("-changed", reversed(changed)...)
	}},
	{"lists that cannot be are refused", func(s *suite) {
		_, next := s.pageOf(3, "?limit=1&sort=created")
		for _, q := range []string{
			"state=Broken", "sort=size", "sort=--name", "fields=region=eu", "fields=spec=1", "fields=spec.a", "fields=spec..a=1",
			"fields=spec.a=1,", "limit=0", "limit=501", "limit=x", "cursor=" + next, "sort=changed&cursor=" + next, "cursor=!", "sort=created&cursor=YQ",
		} {
			resp, data := s.send("GET", "/v1/objects/widgets?"+q, nil)
			equal(s, "status of "+q, resp.StatusCode, http.StatusUnprocessableEntity)
			s.problem(resp, data)
		}
	}},
}

// pageOf makes some widgets and reads a page.
func (s *suite) pageOf(n int, query string) ([]string, string) {
	s.Helper()
	for i := range n {
		s.create(fmt.Sprintf("w-%d", i))
	}
	return s.page(query)
}

func reversed(names []string) []string {
	var r []string
	for i := range names {
		r = append(r, names[len(names)-1-i])
	}
	return r
}
