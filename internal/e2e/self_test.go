package e2e

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// A controller that could never do its work says so at its start, instead of waiting for notifications that never come.
func TestRunEndsWhenTheAPISaysThatItCannotWork(t *testing.T) {
	for name, c := range map[string]struct {
		self apiclient.Self
		want string // empty: it works
	}{
		"another prefix":     {apiclient.Self{Name: "x", Role: "controller", Prefix: "ours"}, `Config.Prefix is "evenkeel", and the API at http://api.test notifies under "ours"`},
		"the role viewer":    {apiclient.Self{Name: "x", Role: "viewer"}, "as x, whose role viewer may not write the status of jobs: give Config.Token a token of role controller"},
		"the role editor":    {apiclient.Self{Name: "x", Role: "editor", Prefix: "evenkeel"}, "whose role editor may not write the status of jobs"},
		"other kinds":        {apiclient.Self{Name: "x", Role: "controller", Kinds: []string{"tools"}}, "whose role controller is for [tools] and not for jobs"},
		"its kind":           {apiclient.Self{Name: "x", Role: "controller", Kinds: []string{"tools", "jobs"}, Prefix: "evenkeel"}, ""},
		"an admin":           {apiclient.Self{Name: "x", Role: "admin"}, ""},
		"a role of tomorrow": {apiclient.Self{Name: "x", Role: "operator"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				s.API().(*apitest.Memory).SetSelf(c.self)
				a := s.StartWith("a", func(cfg *reconciler.Config) { cfg.API = "http://user:secret@api.test" }, reconciler.For("jobs", work))
				s.Advance(10 * time.Second)
				if c.want == "" {
					require.NoError(t, a.Stop())
					return
				}
				err := s.ended(a)
				require.ErrorContains(t, err, c.want)
				require.NotContains(t, err.Error(), "secret")
			})
		})
	}
}

// An API that is away at the start is said within seconds, with its address, then ever more rarely, and when it is there.
func TestAPIAwayAtTheStartIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		fault reconcilertest.Fault
		want  string
	}{
		"refuses connections": {reconcilertest.Fault{Err: http.ErrServerClosed}, "the API at http://api.test: "},
		"never answers":       {reconcilertest.Fault{Delay: time.Hour}, "the API at http://api.test: "},
		"knows no token":      {reconcilertest.Fault{Status: http.StatusUnauthorized}, "give Config.Token a valid token of role controller"},
		"is something else":   {reconcilertest.Fault{Status: http.StatusNotFound}, "is Config.URL the base URL of the API"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				var log lines
				c.fault.Path = "/v1/"
				back := s.Fail(c.fault)
				a := s.StartWith("a", func(cfg *reconciler.Config) {
					log.sink(cfg)
					cfg.API = "http://user:secret@api.test"
				}, reconciler.For("jobs", work))
				s.Advance(6 * time.Second)
				require.Contains(t, log.text(), c.want)
				require.ErrorContains(t, a.Runner.Ready(), c.want, "although no object was read yet")
				require.NotContains(t, log.text(), "secret")
				s.Advance(10 * time.Minute)
				said := 0
				for _, line := range log.with("trouble, will be retried") {
					if line["doing"] == "ask the API who this controller is" {
						said++
					}
				}
				require.Less(t, said, 30)
				require.Greater(t, said, 5)
				back()
				s.Advance(30 * time.Second)
				require.Len(t, log.with("the API answers"), 1)
				require.NoError(t, a.Runner.Ready())
			})
		})
	}
}

// older is an API from before it could be asked who one is.
type older struct{ next http.RoundTripper }

func (o older) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Path != "/v1/self" {
		return o.next.RoundTrip(req)
	}
	answer := httptest.NewRecorder()
	http.NotFound(answer, req)
	return answer.Result(), nil
}

func TestAnOlderAPIIsNoTrouble(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.StartWith("a", func(cfg *reconciler.Config) { cfg.HTTP.Transport = older{cfg.HTTP.Transport} }, reconciler.For("jobs", work))
		s.put("x", job{Value: 1})
		s.Advance(time.Minute)
		require.Empty(t, s.Timeline().Only(reconciler.StepTrouble))
		s.AssertConverged()
	})
}
