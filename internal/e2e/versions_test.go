package e2e

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
	"github.com/evenkeel-io/evenkeel/requeue"
)

// hooked is the way to an API whose hook fails: what is asked for in a version gets no answer, what is asked for as it is stored
// does.
type hooked struct {
	next http.RoundTripper
	down *atomic.Bool
}

func (h hooked) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := h.next.RoundTrip(req)
	if err != nil || !h.down.Load() || !strings.HasPrefix(req.URL.Path, "/v1/objects/jobs") || req.URL.Query().Get("version") == apiclient.AsStored {
		return resp, err
	}
	resp.Body.Close()
	resp.StatusCode = http.StatusServiceUnavailable
	resp.Header.Set("Content-Type", "application/problem+json")
	resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(`{"type":"/problems/conversion","status":503,"detail":"jobs/a: the hook cannot be reached"}`)), -1
	return resp, nil
}

// P4, P6: while the hook of a kind fails, another kind goes on, and resync finds what is owed a reconcile; the gate stays open.
// When the hook is back, its kind goes on as well.
func TestFailingHookDelaysNoOtherKind(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var down atomic.Bool
		down.Store(true)
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			s.put(name, job{Value: 1})
		}
		s.Advance(time.Minute)
		s.StopBroker()
		s.StartBroker() // and it has forgotten what is to be done
		jobs := reconciler.For("jobs", work)
		jobs.Version = "v1"
		s.StartWith("r", func(cfg *reconciler.Config) { cfg.HTTP.Transport = hooked{cfg.HTTP.Transport, &down} }, jobs, reconciler.For("tools", work))
		s.Advance(2 * time.Minute)
		require.Len(t, s.Timeline().Only(reconciler.StepResynced), 5, "resync needs no hook")
		for _, e := range s.Timeline().Only(reconciler.StepTrouble) {
			require.ErrorIs(t, e.Err, apiclient.ErrConversion)
		}
		require.Greater(t, len(s.Timeline().Only(reconciler.StepTrouble)), 10, "they are tried again")
		tools := reconcilertest.Client[job, done](s.World, "tools")
		for _, name := range []string{"x", "y", "z"} {
			_, err := tools.Put(t.Context(), name, job{Value: 2})
			require.NoError(t, err)
			s.Advance(100 * time.Millisecond)
			o, err := tools.Get(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, 2, o.Status.Value, "the gate is open")
		}
		down.Store(false)
		s.Advance(requeue.DefaultCap)
		require.Equal(t, 1, s.get("a").Status.Value)
		require.Equal(t, 1, s.get("e").Status.Value)
	})
}
