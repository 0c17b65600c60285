package apitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Server is one API under test.
type Server struct {
	// URL is its base, and HTTP what reaches it.
	URL  string
	HTTP *http.Client
	// Notifications waits until the API has nothing left to notify, and returns what it notified since the last call, in
	// order, each as "kind/name reason". The relay owes every notification from the moment in which the write is
	// answered, so what is not in the list was not notified and never will be: neither presence nor absence takes a sleep.
	Notifications func() []string
}

// config makes a client that asks once, so that a rule sees each answer.
func (s *Server) config() apiclient.Config {
	return apiclient.Config{URL: s.URL, HTTP: s.HTTP, Tries: 1}
}

// Conformance is the checklist of the rules in package apiclient. Each rule is a subtest of its own, with a server of its
// own: setup starts an empty one, whose relay runs, and cleans it up with t.Cleanup.
//
// An implementation's test is:
//
//	func TestConformance(t *testing.T) { apitest.Conformance(t, setup) }
func Conformance(t *testing.T, setup func(t *testing.T) Server) {
	t.Helper()
	for _, r := range slices.Concat(objectRules, deletionRules, statusRules, askingRules, patchRules, listRules, requestRules, raceRules, batchRules, selectRules, watchRules, eventRules, selfRules) {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			s := setup(t)
			widgets, err := apiclient.New[widgetSpec, widgetStatus](s.config(), "widgets")
			if err != nil {
				t.Fatal(err)
			}
			r.check(&suite{T: t, Server: s, widgets: widgets})
		})
	}
}

// rule is one rule of the wire and its check.
type rule struct {
	name  string
	check func(s *suite)
}

type widgetSpec struct {
	Size int64  `json:"size"`
	Note string `json:"note,omitempty"`
}

type widgetStatus struct {
	Size int64 `json:"size"`
}

type widget = apiclient.Object[widgetSpec, widgetStatus]

// suite is what a rule checks with. Its methods end the test when something is not as it must be.
type suite struct {
	*testing.T
	Server
	widgets *apiclient.Client[widgetSpec, widgetStatus]
}

// create makes widgets/name of size 1 and drops its notification.
func (s *suite) create(name string, opts ...apiclient.Option) *widget {
	s.Helper()
	w := s.ok(s.widgets.Create(s.Context(), name, widgetSpec{Size: 1}, opts...))
	s.Notifications()
	return w
}

func (s *suite) get(name string) *widget {
	s.Helper()
	return s.ok(s.widgets.Get(s.Context(), name))
}

// patch writes the status of w's object.
func (s *suite) patch(w *widget, p apiclient.StatusPatch) (*widget, error) {
	p.UID = w.UID
	return s.widgets.PatchStatus(s.Context(), w.Name, p)
}

// finalized makes an object with finalizers.
func (s *suite) finalized(name string, finalizers ...string) *widget {
	s.Helper()
	return s.ok(s.patch(s.create(name), apiclient.StatusPatch{Fence: 1, AddFinalizers: finalizers}))
}

// deleting makes an object that is being deleted.
func (s *suite) deleting(name string, finalizers ...string) *widget {
	s.Helper()
	s.finalized(name, finalizers...)
	w := s.ok(s.widgets.Delete(s.Context(), name))
	s.Notifications()
	return w
}

// ok wants an object.
func (s *suite) ok(w *widget, err error) *widget {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
	if w == nil {
		s.Fatal("want an object, got an answer without one")
	}
	return w
}

// gone wants an answer without an object.
func (s *suite) gone(w *widget, err error) {
	s.Helper()
	if w != nil || err != nil {
		s.Fatalf("want the object gone, got %+v, error %v", w, err)
	}
}

// refused wants an error.
func (s *suite) refused(want error) func(*widget, error) {
	return func(w *widget, err error) {
		s.Helper()
		if !errors.Is(err, want) {
			s.Fatalf("want error %q, got %+v, error %v", want, w, err)
		}
	}
}

// notified wants exactly these notifications since the last look.
func (s *suite) notified(want ...string) {
	s.Helper()
	if got := s.Notifications(); !slices.Equal(got, want) {
		s.Fatalf("notified %q, want %q", got, want)
	}
}

// unchanged wants that nothing has been written since w was read.
func (s *suite) unchanged(w *widget) {
	s.Helper()
	equal(s, "revision", s.get(w.Name).Revision, w.Revision)
	s.notified()
}

// written wants that now is a later write of the same object than before.
func (s *suite) written(now, before *widget) {
	s.Helper()
	equal(s, "uid", now.UID, before.UID)
	if now.Revision <= before.Revision {
		s.Fatalf("revision is %d after %d, want a higher one", now.Revision, before.Revision)
	}
}

func equal[V comparable](s *suite, what string, got, want V) {
	s.Helper()
	if got != want {
		s.Fatalf("%s is %v, want %v", what, got, want)
	}
}

func (s *suite) equalNames(what string, got []string, want ...string) {
	s.Helper()
	if !slices.Equal(got, want) {
		s.Fatalf("%s: %q, want %q", what, got, want)
	}
}

// names ranges over a list to its end.
func (s *suite) names(list iter.Seq2[*widget, error]) []string {
	s.Helper()
	var names []string
	for w, err := range list {
		if err != nil {
			s.Fatal(err)
		}
		names = append(names, w.Name)
	}
	return names
}

// send makes a request that the client would not make. header is in pairs. It returns the answer and its body.
func (s *suite) send(method, path string, body io.Reader, header ...string) (*http.Response, []byte) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, s.URL+path, body)
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.HTTP.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return resp, data
}

// raw sends a JSON body and wants a status; it returns the object.
func (s *suite) raw(status int, method, path, body string, header ...string) *apiclient.Raw {
	s.Helper()
	resp, data := s.send(method, path, strings.NewReader(body), append(header, "Content-Type", "application/json")...)
	if resp.StatusCode != status {
		s.Fatalf("%s %s: status %d, want %d: %s", method, path, resp.StatusCode, status, data)
	}
	o := new(apiclient.Raw)
	if err := json.Unmarshal(data, o); err != nil {
		s.Fatalf("%s %s: %v in %s", method, path, err, data)
	}
	return o
}

// problem wants an answer that is a problem, and returns it.
func (s *suite) problem(resp *http.Response, data []byte) *apiclient.Problem {
	s.Helper()
	if ct := resp.Header.Get("Content-Type"); !strings.HasPrefix(ct, "application/problem+json") {
		s.Fatalf("status %d is of type %q, want application/problem+json: %s", resp.StatusCode, ct, data)
	}
	p := new(apiclient.Problem)
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields() // a server must not echo what it was sent: it may be secret
	if err := d.Decode(p); err != nil {
		s.Fatalf("%v in %s", err, data)
	}
	equal(s, "status in the problem", p.Status, resp.StatusCode)
	return p
}
