package reconciler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// What the API says of a controller is an error only if no retry could mend it.
func TestSelfIsComparedWithWhatTheControllerNeeds(t *testing.T) {
	for name, c := range map[string]struct {
		self apiclient.Self
		want string // empty: it may work
	}{
		"an admin":            {apiclient.Self{Role: "admin"}, ""},
		"its prefix":          {apiclient.Self{Role: "controller", Prefix: "ours"}, ""},
		"its kinds":           {apiclient.Self{Role: "controller", Kinds: []string{"trees", "x", "jobs"}}, ""},
		"a role of tomorrow":  {apiclient.Self{Role: "operator"}, ""},
		"another prefix":      {apiclient.Self{Role: "admin", Prefix: "evenkeel"}, `Config.Prefix is "ours", and the API at http://api.test notifies under "evenkeel"`},
		"a viewer":            {apiclient.Self{Name: "x", Role: "viewer"}, "as x, whose role viewer may not write the status of jobs"},
		"an editor":           {apiclient.Self{Name: "x", Role: "editor", Kinds: []string{"jobs"}}, "as x, whose role editor may not write the status of jobs"},
		"other kinds":         {apiclient.Self{Name: "x", Role: "controller", Kinds: []string{"x"}}, "whose role controller is for [x] and not for jobs"},
		"only one of its own": {apiclient.Self{Name: "x", Role: "controller", Kinds: []string{"jobs"}}, "is for [jobs] and not for trees"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newReplica(t, func(c *Config) { c.Prefix, c.API = "ours", "http://user:secret@api.test" }, jobs(), For("trees", doNothing))
			err := s.checkSelf(&c.self)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "secret")
			require.ErrorAs(t, err, new(misconfigured))
		})
	}
}

func TestAdviceIsTheWayOut(t *testing.T) {
	for status, want := range map[int]string{
		401: ": give Config.Token a valid token of role controller",
		403: ": give Config.Token a token of role controller for these kinds",
		503: "; waiting",
		400: "",
	} {
		require.Equal(t, want, advice(fmt.Errorf("get self: %w", &apiclient.Problem{Status: status})))
	}
}

// answers is a transport that answers by path: a status, with an empty page for a body, or the next transport's answer for 0.
type answers struct {
	next   http.RoundTripper
	status map[string]int
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	status := a.status[r.URL.Path]
	if status == 0 {
		return a.next.RoundTrip(r)
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"text/html"}}, Body: io.NopCloser(strings.NewReader("<html>")), Request: r}, nil
}

// A wrong address is told from an API that is older than the question: that one knows objects.
func TestOlderAPIIsToldFromAWrongAddress(t *testing.T) {
	for name, c := range map[string]struct {
		self, object int
		exists       bool
		want         error
	}{
		"one that knows":                {},
		"an older one":                  {self: 404},
		"an older one, with the object": {self: 404, exists: true},
		"a wrong address":               {self: 404, object: 404, want: apiclient.ErrUnexpectedResponse},
		"one that refuses":              {self: 403, want: apiclient.ErrForbidden},
		"one that is away":              {self: 503, want: apiclient.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			a := &answers{status: map[string]int{"/v1/self": c.self, "/v1/objects/jobs/self": c.object}}
			var lines []string
			s := newReplica(t, func(cfg *Config) {
				a.next, cfg.HTTP.Transport = cfg.HTTP.Transport, a
				logsUpTo(1, &lines)(cfg)
			})
			if c.exists {
				_, err := s.kinds[0].api.Create(t.Context(), "self", []byte(`{}`))
				require.NoError(t, err)
			}
			require.ErrorIs(t, s.askSelf(t.Context()), c.want)
			if c.self != http.StatusNotFound || c.want != nil {
				require.Empty(t, lines)
				return
			}
			require.Len(t, lines, 1)
			require.Equal(t, map[string]any{"level": 1.0, "msg": "the API is too old to say who this controller is to it"}, fields(t, lines[0]))
		})
	}
}

// An API that does not answer is asked again and again, each question for seconds at most, and an operator sees why.
func TestAPIIsAskedUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Bool
		var asked atomic.Int32
		s := newReplica(t, func(c *Config) {
			c.HTTP.Transport = &through{next: c.HTTP.Transport, before: func(r *http.Request) error {
				asked.Add(1)
				if !back.Load() {
					<-r.Context().Done()
					return r.Context().Err()
				}
				return nil
			}}
		})
		s.running.Store(true)
		ctx, end := context.WithCancelCause(t.Context())
		defer end(nil)
		done := make(chan struct{})
		go func() { s.introduce(ctx, end); close(done) }()
		time.Sleep(selfWithin)
		synctest.Wait()
		got := s.events()
		require.Len(t, got, 1)
		require.Equal(t, []any{StepTrouble, "ask the API who this controller is"}, []any{got[0].Step, got[0].Reason})
		require.ErrorContains(t, got[0].Err, "the API at http://api.test: ")
		require.ErrorContains(t, got[0].Err, "; waiting")
		require.ErrorContains(t, *s.unknown.Load(), "the API at http://api.test: ")
		time.Sleep(10 * time.Minute)
		require.GreaterOrEqual(t, asked.Load(), int32(30), "at least every 20 s")
		back.Store(true)
		s.lines()
		time.Sleep(time.Minute)
		<-done
		require.Nil(t, s.unknown.Load())
		require.NoError(t, ctx.Err())
		lines := s.lines()
		require.Equal(t, "the API answers", fields(t, lines[len(lines)-1])["msg"])
	})
}

// An API that refuses connections is not asked in a loop, and one failure is enough for the good news.
func TestAPIThatRefusesIsAskedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, fail := 0, 1
		s := newReplica(t, func(c *Config) {
			c.HTTP.Transport = &through{next: c.HTTP.Transport, before: func(*http.Request) error {
				if asked++; asked <= fail {
					return errors.New("refused")
				}
				return nil
			}}
		})
		s.introduce(t.Context(), func(err error) { t.Error(err) })
		require.Equal(t, "the API answers", fields(t, s.lines()[1])["msg"])

		asked, fail = 0, 40
		began := time.Now()
		s.introduce(t.Context(), func(err error) { t.Error(err) })
		require.Greater(t, time.Since(began), time.Minute)
		require.Less(t, time.Since(began), 40*outage.Cap)
	})
}

func TestAPIThatAnswersAtOnceIsNoNews(t *testing.T) {
	s := newReplica(t, nil)
	s.introduce(t.Context(), func(err error) { t.Error(err) })
	require.Empty(t, s.lines())
	require.Empty(t, s.events())
}

// A stop while the API is asked is no trouble.
func TestStopWhileTheAPIIsAsked(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	s := newReplica(t, func(c *Config) {
		c.HTTP.Transport = &through{next: c.HTTP.Transport, before: func(*http.Request) error { stop(); return errors.New("away") }}
	})
	s.introduce(ctx, func(err error) { t.Error(err) })
	require.Empty(t, s.events())
	require.Nil(t, s.unknown.Load())
}

func TestControllerThatCannotWorkEnds(t *testing.T) {
	s := newReplica(t, nil)
	s.api.SetSelf(apiclient.Self{Name: "x", Role: "viewer"})
	var ended error
	s.introduce(t.Context(), func(err error) { ended = err })
	require.ErrorContains(t, ended, "whose role viewer may not write the status of jobs")
	require.Empty(t, s.events())
}
