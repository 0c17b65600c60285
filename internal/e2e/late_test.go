package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// proxy stands between a replica and the API. It keeps requests back, also from replicas that have died or timed out,
// and delivers them later.
type proxy struct {
	next http.RoundTripper
	api  http.Handler
	hold func(*http.Request) bool

	mu   sync.Mutex
	held []*http.Request
}

func (p *proxy) install(cfg *reconciler.Config) {
	p.next = cfg.HTTP.Transport
	cfg.HTTP = &http.Client{Transport: p}
}

func (p *proxy) RoundTrip(req *http.Request) (*http.Response, error) {
	if !p.hold(req) {
		return p.next.RoundTrip(req)
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	late := req.Clone(context.Background())
	late.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	p.held = append(p.held, late)
	p.mu.Unlock()
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// deliver sends what was kept back, and returns the status codes of the answers.
func (p *proxy) deliver() (codes []int) {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	for _, req := range held {
		answer := httptest.NewRecorder()
		p.api.ServeHTTP(answer, req)
		codes = append(codes, answer.Code)
	}
	return codes
}

func statusWrites(req *http.Request) bool {
	return req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/status")
}

// P2: a status of a former holder that arrives while the next one runs, after it has read the object, is refused, also if
// the next one finds nothing to change: whether the former holder died, or could not learn what became of its write.
func TestLateStatusIsRefusedWhileTheNextHolderRuns(t *testing.T) {
	for name, end := range map[string]func(s scenario, former interface{ Kill() }){
		"the holder died":    func(_ scenario, former interface{ Kill() }) { former.Kill() },
		"the holder gave up": func(s scenario, _ interface{ Kill() }) { s.Advance(45 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				var world atomic.Int64
				sees := func(delay time.Duration) reconciler.Controller {
					return reconciler.For("jobs", func(_ context.Context, o *jobObject) (reconciler.Result, error) {
						<-time.After(delay)
						o.Status.Value = int(world.Load())
						return reconciler.Result{}, nil
					})
				}
				p := &proxy{api: s.API(), hold: func(*http.Request) bool { return false }}
				a := s.StartWith("a", p.install, sees(0))
				s.put("x", job{})
				s.RunUntilSettled()
				p.hold = statusWrites
				world.Store(1)
				require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
				s.Advance(time.Second) // the status is on its way
				world.Store(0)
				b := s.Start("b", sees(1500*time.Millisecond))
				end(s, a)
				if name == "the holder gave up" {
					a.Cut() // so that b is next
					require.NoError(t, b.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
				}
				running := func() bool {
					runs := s.Timeline().By("b").Of("jobs", "x").Runs()
					return len(runs) > 0 && runs[len(runs)-1].End.IsZero()
				}
				for limit := time.Now().Add(time.Minute); !running(); s.Advance(100 * time.Millisecond) {
					require.True(t, time.Now().Before(limit), "b does not start")
				}
				s.Advance(500 * time.Millisecond)
				codes := p.deliver()
				require.NotEmpty(t, codes)
				for _, code := range codes {
					require.Equal(t, http.StatusConflict, code)
				}
				s.RunUntilSettled()
				require.Equal(t, 0, s.get("x").Status.Value)
				s.AssertConverged()
			})
		})
	}
}

// P2: the same holds for a checkpoint of a call whose lock is lost.
func TestLateCheckpointIsRefusedWhileTheNextHolderRuns(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		p := &proxy{api: s.API(), hold: statusWrites}
		a := s.StartWith("a", p.install, reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			o.Status.By = "a"
			return reconciler.Result{}, reconciler.Checkpoint(ctx, o)
		}))
		s.put("x", job{})
		s.Advance(time.Second)
		a.Kill()
		s.Start("b", reconciler.For("jobs", func(context.Context, *jobObject) (reconciler.Result, error) {
			<-time.After(time.Second)
			return reconciler.Result{}, nil
		}))
		for limit := time.Now().Add(time.Minute); s.Timeline().By("b").Runs() == nil; s.Advance(100 * time.Millisecond) {
			require.True(t, time.Now().Before(limit), "b does not start")
		}
		require.Equal(t, []int{http.StatusConflict}, p.deliver())
		s.RunUntilSettled()
		require.Empty(t, s.get("x").Status.By)
	})
}

// A takeover is told in the events of the object, which name the replica that died.
func TestTakeoverIsTold(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Millis: 5000, Value: 1})
		s.Advance(time.Second)
		var logs lines
		s.StartWith("b", logs.sink, reconciler.For("jobs", work))
		a.Kill()
		s.RunUntilSettled()
		events, err := s.jobs.Events(t.Context(), "x")
		require.NoError(t, err)
		told := ""
		for _, e := range events {
			if e.Reason == apiclient.HappenedTakenOver {
				told = e.Message
			}
		}
		require.Equal(t, "b takes over from a, which died or lost its lock", told)
		took := logs.with("took over")
		require.Len(t, took, 1)
		require.Equal(t, "a", took[0]["from"])
		require.Equal(t, "x", took[0]["name"])
	})
}

// P6: fences that go backwards, because the lock bucket was restored from a copy or was made by a host whose clock was
// ahead and then lost, keep nothing from being reconciled, and need no operator.
func TestFencesThatGoBackwardsNeedNoOperator(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		_, js := s.broker()
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: "KV_evenkeel_locks", Subjects: []string{"$KV.evenkeel_locks.>"}, Storage: jetstream.MemoryStorage, MaxMsgsPerSubject: 1,
			Discard: jetstream.DiscardNew, DenyDelete: true, AllowDirect: true, AllowMsgTTL: true,
			FirstSeq: uint64(time.Now().Add(time.Minute).UnixMicro()),
		})
		require.NoError(t, err)
		s.Start("a", reconciler.For("jobs", work))
		s.Start("b", reconciler.For("jobs", work))
		for i := range 20 {
			s.put(fmt.Sprintf("o%d", i), job{Value: 1})
		}
		s.RunUntilSettled()
		s.AssertConverged()
		require.NoError(t, js.DeleteStream(t.Context(), "KV_evenkeel_locks")) // and it is made again, with a clock that is right
		s.Advance(10 * time.Second)
		for round := range 3 {
			before := len(s.Timeline().Runs())
			for i := range 20 {
				s.put(fmt.Sprintf("o%d", i), job{Value: 2 + round})
			}
			s.Advance(2 * time.Second)
			s.AssertConverged()
			require.Equal(t, before+20, len(s.Timeline().Runs()), "each is reconciled once")
		}
		require.Contains(t, s.Timeline().Only(reconciler.StepTrouble).String(), "the bucket was restored from a copy")
		require.Empty(t, s.Timeline().Only(reconciler.StepFenced))
	})
}
