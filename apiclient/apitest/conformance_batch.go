package apitest

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// apply sends a batch.
func (s *suite) apply(items ...apiclient.Item) ([]*apiclient.Raw, error) {
	s.Helper()
	b, err := apiclient.NewBatch(s.config())
	if err != nil {
		s.Fatal(err)
	}
	return b.Apply(s.Context(), items...)
}

var batchRules = []rule{
	{"a batch is applied as a whole", func(s *suite) {
		s.create("green")
		red := s.create("red")
		kept := s.finalized("kept", "a")
		s.Notifications()
		gadget := apiclient.Item{Kind: "gadgets", Name: "one", Spec: []byte(`{}`)}
		got, err := s.apply(s.widgets.Item("blue", widgetSpec{Size: 2}), gadget, s.widgets.Without("green"), s.widgets.Without("absent"),
			s.widgets.Item("red", widgetSpec{Size: 3}, apiclient.IfRevision(red.Revision)), s.widgets.Without("kept"))
		if err != nil {
			s.Fatal(err)
		}
		if len(got) != 6 || got[2] != nil || got[3] != nil || got[5] == nil {
			s.Fatalf("got %+v, want the objects in the order of the items, nil for what has gone", got)
		}
		equal(s, "first", got[0].Name, "blue")
		equal(s, "second", got[1].Kind, "gadgets")
		equal(s, "size of red", s.get("red").Spec.Size, 3)
		equal(s, "uid of kept", got[5].UID, kept.UID)
		s.equalNames("widgets", s.names(s.widgets.All(s.Context())), "blue", "kept", "red")
		heard := map[string]bool{}
		for _, n := range s.Notifications() {
			heard[n] = true
		}
		for _, want := range []string{"widgets/blue created", "gadgets/one created", "widgets/green deleted", "widgets/red changed", "widgets/kept deleted"} {
			equal(s, "heard of "+want, heard[want], true)
		}
		equal(s, "notifications", len(heard), 5)
	}},
	{"of a batch that fails nothing is done", func(s *suite) {
		red := s.create("red")
		green := s.create("green")
		s.finalized("leaving", "a")
		s.ok(s.widgets.Delete(s.Context(), "leaving"))
		s.Notifications()
		for want, bad := range map[error]apiclient.Item{
			apiclient.ErrConflict: s.widgets.Item("leaving", widgetSpec{}),
			apiclient.ErrInvalid:  {Kind: "widgets", Name: "wrong", Spec: []byte(`[]`)},
		} {
			for _, items := range [][]apiclient.Item{{bad}, {bad, s.widgets.Without("green"), s.widgets.Item("red", widgetSpec{Size: 9}), s.widgets.Item("new", widgetSpec{})}} {
				if _, err := s.apply(items...); err == nil || !strings.Contains(err.Error(), "body.items.0") {
					s.Fatalf("got error %v, want one that names body.items.0", err)
				} else {
					s.refused(want)(nil, err)
				}
			}
		}
		_, err := s.apply(s.widgets.Item("blue", widgetSpec{}), s.widgets.Without("red", apiclient.IfRevision(red.Revision+1)))
		s.refused(apiclient.ErrConflict)(nil, err)
		_, err = s.apply(s.widgets.Item("blue", widgetSpec{}), s.widgets.Without("absent", apiclient.IfRevision(1)))
		s.refused(apiclient.ErrConflict)(nil, err)
		s.equalNames("widgets", s.names(s.widgets.All(s.Context())), "green", "leaving", "red")
		s.unchanged(red)
		s.unchanged(green)
	}},
	{"batches that cannot be are refused", func(s *suite) {
		twice := s.widgets.Item("blue", widgetSpec{})
		for want, items := range map[string][]apiclient.Item{
			"body.items: want 1 to 500": {},
			"body.items.1":              {twice, twice},
			"body.items.0.kind":         {{Kind: "Widgets", Name: "blue", Spec: []byte(`{}`)}},
			"body.items.0.name":         {{Kind: "widgets", Name: "Blue", Spec: []byte(`{}`)}},
			"body.items.0.spec":         {{Kind: "widgets", Name: "blue"}},
			"body.items.0.delete":       {{Kind: "widgets", Name: "blue", Spec: []byte(`{}`), Delete: true}},
			"body.items.0.revision":     {{Kind: "widgets", Name: "blue", Spec: []byte(`{}`), Revision: -1}},
			"body.items.0.labels":       {{Kind: "widgets", Name: "blue", Spec: []byte(`{}`), Labels: map[string]string{"": ""}}},
		} {
			if _, err := s.apply(items...); err == nil || !strings.Contains(err.Error(), want) {
				s.Fatalf("got error %v, want %q in it", err, want)
			}
		}
		var many []apiclient.Item
		for i := range 501 {
			many = append(many, s.widgets.Item(fmt.Sprintf("w-%d", i), widgetSpec{}))
		}
		_, err := s.apply(many...)
		s.refused(apiclient.ErrInvalid)(nil, err)
		if _, err := s.apply(many[1:]...); err != nil {
			s.Fatal(err)
		}
	}},
	{"a create that is sent again makes nothing new", func(s *suite) {
		const path, body = "/v1/objects/widgets", `{"name":"blue","spec":{"size":1}}`
		first := s.raw(http.StatusCreated, "POST", path, body, "Idempotency-Key", "k-1")
		s.notified("widgets/blue created")
		again := s.raw(http.StatusCreated, "POST", path, body, "Idempotency-Key", "k-1")
		equal(s, "uid", again.UID, first.UID)
		equal(s, "revision", again.Revision, first.Revision)
		s.notified()
		post := func(body, key string) (*http.Response, []byte) {
			return s.send("POST", path, strings.NewReader(body), "Content-Type", "application/json", "Idempotency-Key", key)
		}
		for _, other := range []string{`{"name":"blue","spec":{"size":2}}`, `{"name":"red","spec":{"size":1}}`} {
			resp, data := post(other, "k-1")
			s.invalid(resp, data, "header.Idempotency-Key")
		}
		resp, data := post(body, strings.Repeat("k", 256))
		s.invalid(resp, data, "header.Idempotency-Key")
		s.refused(apiclient.ErrNotFound)(s.widgets.Get(s.Context(), "red"))
		for _, key := range []string{"", "k-2"} {
			resp, data := post(body, key)
			equal(s, "status", resp.StatusCode, http.StatusConflict)
			equal(s, "already exists", s.problem(resp, data).Is(apiclient.ErrExists), true)
		}
		s.gone(s.widgets.Delete(s.Context(), "blue"))
		resp, data = post(body, "k-1")
		equal(s, "conflict", s.problem(resp, data).Is(apiclient.ErrConflict), true)
		s.create("blue")
		resp, data = post(body, "k-1")
		equal(s, "conflict", s.problem(resp, data).Is(apiclient.ErrConflict), true)
	}},
}
