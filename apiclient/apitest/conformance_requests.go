package apitest

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

var requestRules = []rule{
	{"wrong requests name the field and write nothing", checkWrongRequests},
	{"a garbled If-Match is refused", func(s *suite) {
		w := s.create("blue")
		for _, garbage := range []string{`3`, `"x"`, `*`, `W/"3"`, `"-1"`, `""`, `"1","2"`, `"`, `"99999999999999999999"`} {
			resp, data := s.send("PUT", "/v1/objects/widgets/blue", strings.NewReader(`{"spec":{"size":2}}`),
				"Content-Type", "application/json", "If-Match", garbage)
			s.invalid(resp, data, "If-Match")
		}
		s.unchanged(w)
	}},
	{"a body is at most 8 MiB", func(s *suite) {
		const before, after = `{"name":"blue","spec":{"note":"`, `"}}`
		body := func(size int) string { return before + strings.Repeat("x", size-len(before)-len(after)) + after }
		send := func(body io.Reader) (*http.Response, []byte) {
			return s.send("POST", "/v1/objects/widgets", body, "Content-Type", "application/json")
		}
		for _, large := range []io.Reader{
			strings.NewReader(body(objects.MaxBody + 1)),
			io.MultiReader(strings.NewReader(body(objects.MaxBody + 1))), // of a size not announced
		} {
			resp, data := send(large)
			equal(s, "status", resp.StatusCode, http.StatusRequestEntityTooLarge)
			s.invalid(resp, data, "body")
		}
		resp, data := s.send("PATCH", "/v1/objects/widgets/blue/status", strings.NewReader(body(objects.MaxBody+1)), "Content-Type", "application/json")
		equal(s, "status", resp.StatusCode, http.StatusRequestEntityTooLarge)
		s.invalid(resp, data, "body")
		s.notified()
		resp, data = send(strings.NewReader(body(objects.MaxBody)))
		if resp.StatusCode != http.StatusCreated {
			s.Fatalf("8 MiB: status %d, want 201: %.200s", resp.StatusCode, data)
		}
	}},
	{"an unknown path is a problem that is not about an object", func(s *suite) {
		s.create("blue")
		for _, path := range []string{
			"/", "/v1", "/v1/objects", "/v1/objects/", "/v1/objects/widgets/", "/v1/objects//blue", "/v1/objects/widgets/blue/spec",
			"/v1/objects/widgets/blue/status/x", "/v2/objects/widgets/blue", "/v1/objects/widgets/../widgets/blue",
		} {
			resp, data := s.send("GET", path, nil)
			if resp.StatusCode != http.StatusNotFound {
				s.Fatalf("GET %s: status %d, want 404", path, resp.StatusCode)
			}
			if p := s.problem(resp, data); errors.Is(p, apiclient.ErrNotFound) {
				s.Fatalf("GET %s: a controller would take %+v for a deletion", path, p)
			}
		}
	}},
	{"an unknown method is a problem that says which there are", func(s *suite) {
		s.create("blue")
		for request, allow := range map[string]string{
			"DELETE /v1/objects/widgets":             "GET",
			"POST /v1/objects/widgets/blue":          "DELETE",
			"GET /v1/objects/widgets/blue/status":    "PATCH",
			"PUT /v1/objects/widgets/blue/retry":     "POST",
			"GET /v1/objects/widgets/blue/pause":     "POST",
			"DELETE /v1/objects/widgets/blue/resume": "POST",
		} {
			method, path, _ := strings.Cut(request, " ")
			resp, data := s.send(method, path, nil)
			equal(s, "status of "+request, resp.StatusCode, http.StatusMethodNotAllowed)
			equal(s, "Allow of "+request+" has "+allow, strings.Contains(resp.Header.Get("Allow"), allow), true)
			s.problem(resp, data)
		}
		s.notified()
	}},
}

// invalid wants a problem of type "invalid" that names the field.
func (s *suite) invalid(resp *http.Response, data []byte, field string) {
	s.Helper()
	p := s.problem(resp, data)
	equal(s, "last segment of the type", p.Type[strings.LastIndex(p.Type, "/")+1:], apiclient.TypeInvalid)
	equal(s, "is ErrInvalid", errors.Is(p, apiclient.ErrInvalid), true)
	for _, e := range p.Errors {
		if strings.Contains(e.Location, field) || strings.Contains(e.Message, field) {
			return
		}
	}
	if field != "" {
		s.Fatalf("no error names %q in %s", field, data)
	}
}

const (
	widgetsPath = "/v1/objects/widgets"
	bluePath    = widgetsPath + "/blue"
	statusPath  = bluePath + "/status"
)

// wrongRequests are sent while widgets/blue is there, with $uid standing for its uid member; field is what the problem
// has to name.
var wrongRequests = []struct{ method, path, body, field string }{
	{"POST", widgetsPath, ``, "body"},
	{"POST", widgetsPath, `{`, "body"},
	{"POST", widgetsPath, `{"name":"red","spec":{}} {}`, "body"},
	{"POST", widgetsPath, `[]`, "body"},
	{"POST", widgetsPath, `null`, ""},
	{"POST", widgetsPath, "{\"name\":\"red\",\"spec\":{\"note\":\"\xff\"}}", "body"},
	{"POST", widgetsPath, `{"name":"red","spec":{},"speck":{}}`, "speck"},
	{"POST", widgetsPath, `{"spec":{}}`, "name"},
	{"POST", widgetsPath, `{"name":"","spec":{}}`, "name"},
	{"POST", widgetsPath, `{"name":7,"spec":{}}`, "name"},
	{"POST", widgetsPath, `{"name":"Red","spec":{}}`, "name"},
	{"POST", widgetsPath, `{"name":"a.b","spec":{}}`, "name"},
	{"POST", widgetsPath, `{"name":"` + strings.Repeat("a", 64) + `","spec":{}}`, "name"},
	{"POST", widgetsPath, `{"name":"red"}`, "spec"},
	{"POST", widgetsPath, `{"name":"red","spec":null}`, "spec"},
	{"POST", widgetsPath, `{"name":"red","spec":[1]}`, "spec"},
	{"POST", widgetsPath, `{"name":"red","spec":"x"}`, "spec"},
	{"POST", widgetsPath, `{"name":"red","spec":{},"labels":{"a":1}}`, "labels"},
	{"POST", "/v1/objects/Widgets", `{"name":"red","spec":{}}`, "kind"},
	{"GET", "/v1/objects/wid.gets", ``, "kind"},
	{"GET", "/v1/objects/widgets/Blue", ``, "name"},
	{"GET", "/v1/objects/widgets/a%2Fb", ``, "name"},
	{"DELETE", "/v1/objects/widgets/Blue", ``, "name"},
	{"POST", "/v1/objects/widgets/Blue/retry", ``, "name"},
	{"PUT", "/v1/objects/widgets/-red", `{"spec":{}}`, "name"},
	{"PUT", bluePath, `{"name":"blue","spec":{"size":2}}`, "name"},
	{"PUT", bluePath, `{"labels":{}}`, "spec"},
	{"PUT", bluePath, `{"spec":7}`, "spec"},
	{"GET", widgetsPath + "?limit=0", ``, "limit"},
	{"GET", widgetsPath + "?limit=-1", ``, "limit"},
	{"GET", widgetsPath + "?limit=501", ``, "limit"},
	{"GET", widgetsPath + "?limit=x", ``, "limit"},
	{"GET", widgetsPath + "?cursor=!!", ``, "cursor"},
	{"GET", widgetsPath + "?cursor=" + base64.RawURLEncoding.EncodeToString([]byte("Bad Name")), ``, "cursor"},
	{"GET", widgetsPath + "?unsettled=5", ``, "unsettled"},
	{"GET", widgetsPath + "?unsettled=x", ``, "unsettled"},
	{"GET", widgetsPath + "?unsettled=-1s", ``, "unsettled"},
	{"PATCH", statusPath, `{"fence":1}`, "uid"},
	{"PATCH", statusPath, `{"uid":"","fence":1}`, "uid"},
	{"PATCH", statusPath, `{$uid,"status":{}}`, "fence"},
	{"PATCH", statusPath, `{$uid,"fence":-1}`, "fence"},
	{"PATCH", statusPath, `{$uid,"fence":"1"}`, "fence"},
	{"PATCH", statusPath, `{$uid,"fence":9223372036854775808}`, "fence"},
	{"PATCH", statusPath, `{$uid,"fence":1,"status":5}`, "status"},
	{"PATCH", statusPath, `{$uid,"fence":1,"status":null}`, "status"},
	{"PATCH", statusPath, `{$uid,"fence":1,"spec":{}}`, "spec"},
	{"PATCH", statusPath, `{$uid,"fence":1,"reconciliation":{"stale":true}}`, "stale"},
	{"PATCH", statusPath, `{$uid,"fence":1,"reconciliation":{"nextAttempt":"soon"}}`, ""},
	{"PATCH", statusPath, `{$uid,"fence":1,"addFinalizers":[""]}`, "addFinalizers"},
}

func checkWrongRequests(s *suite) {
	w := s.create("blue")
	for _, r := range wrongRequests {
		body := strings.ReplaceAll(r.body, "$uid", `"uid":"`+w.UID+`"`)
		resp, data := s.send(r.method, r.path, strings.NewReader(body), "Content-Type", "application/json")
		s.Logf("%s %s %.80s: %d %s", r.method, r.path, body, resp.StatusCode, data)
		s.invalid(resp, data, r.field)
	}
	resp, data := s.send("POST", widgetsPath, strings.NewReader(`{"name":"red","spec":{}}`), "Content-Type", "application/x-www-form-urlencoded")
	s.invalid(resp, data, "body")
	s.equalNames("list", s.names(s.widgets.All(s.Context())), "blue")
	s.unchanged(w)
}

var raceRules = []rule{
	{"of concurrent creates of a name one wins", func(s *suite) {
		won := s.race(20, func(int) error {
			_, err := s.widgets.Create(s.Context(), "blue", widgetSpec{})
			return err
		}, apiclient.ErrExists)
		equal(s, "number that won", won, 1)
		s.notified("widgets/blue created")
	}},
	{"of concurrent puts to one revision one wins", func(s *suite) {
		w := s.create("blue")
		won := s.race(20, func(i int) error {
			_, err := s.widgets.Put(s.Context(), "blue", widgetSpec{Size: int64(100 + i)}, apiclient.IfRevision(w.Revision))
			return err
		}, apiclient.ErrConflict)
		equal(s, "number that won", won, 1)
		equal(s, "generation", s.get("blue").Generation, 2)
	}},
	{"concurrent puts all count", func(s *suite) {
		s.race(20, func(i int) error {
			_, err := s.widgets.Put(s.Context(), "blue", widgetSpec{Size: int64(100 + i)})
			return err
		})
		equal(s, "generation", s.get("blue").Generation, 20)
	}},
	{"concurrent status patches end at the highest fence", func(s *suite) {
		w := s.create("blue")
		s.race(50, func(i int) error {
			_, err := s.patch(w, apiclient.StatusPatch{Fence: uint64(i + 1), AddFinalizers: []string{string(rune('A' + i))}})
			return err
		}, apiclient.ErrFenced)
		w = s.get("blue")
		equal(s, "fence", w.Reconciliation.Fence, 50)
		s.notified()
	}},
	{"concurrent changes of different parts are all kept", func(s *suite) {
		w := s.create("blue")
		s.race(30, func(i int) (err error) {
			switch i % 3 {
			case 0:
				_, err = s.widgets.Put(s.Context(), "blue", widgetSpec{Size: int64(100 + i)})
			case 1:
				_, err = s.patch(w, apiclient.StatusPatch{Fence: 1, AddFinalizers: []string{string(rune('A' + i))}})
			case 2:
				_, err = s.widgets.Retry(s.Context(), "blue")
			}
			return err
		})
		w = s.get("blue")
		equal(s, "generation", w.Generation, 11)
		equal(s, "number of finalizers", len(w.Finalizers), 10)
		equal(s, "has a retry request", w.RetryRequest != "", true)
	}},
}

// race runs n calls at once, wants each to succeed or to fail with one of the allowed errors, and counts the former.
func (s *suite) race(n int, call func(i int) error, allowed ...error) (won int) {
	s.Helper()
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = call(i)
		})
	}
	close(start)
	wg.Wait()
	for i, err := range errs {
		lost := false
		for _, a := range allowed {
			lost = lost || errors.Is(err, a)
		}
		switch {
		case err == nil:
			won++
		case !lost:
			s.Errorf("call %d: %v", i, err)
		}
	}
	return won
}
