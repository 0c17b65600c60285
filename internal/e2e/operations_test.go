package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// lines are what a replica logs, at every level.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) sink(cfg *reconciler.Config) {
	cfg.Logger = funcr.NewJSON(func(line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, line)
	}, funcr.Options{Verbosity: 10})
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

// with returns the lines of a message, decoded.
func (l *lines) with(msg string) (found []map[string]any) {
	for line := range strings.Lines(l.text()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["msg"] == msg {
			found = append(found, m)
		}
	}
	return found
}

// A look that somebody asked for at a settled object says why, to the function and on the timeline.
func TestNotifyTellsItsReason(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var reasons []string
		a := s.Start("a", reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			reasons = append(reasons, reconciler.Current(ctx).Reason)
			return work(ctx, o)
		}))
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "the disk is full"))
		s.Advance(time.Second)
		s.put("x", job{Value: 2})
		s.RunUntilSettled()
		_, err := s.jobs.Retry(t.Context(), "x")
		require.NoError(t, err)
		s.RunUntilSettled()
		want := []string{"created", "the disk is full", "changed", "retry"}
		require.Equal(t, want, reasons)
		for i, run := range s.runs("x") {
			require.Equal(t, want[i], run.Reason)
		}
		require.ErrorContains(t, a.Runner.Notify(t.Context(), "jobs", "no name", ""), `name "no name"`)
	})
}

// A function knows which attempt of what it is; the idempotency key stands for one generation of one object.
func TestCurrentTellsWhichCallItIs(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var calls []reconciler.Attempt
		fails := true
		c := reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			calls = append(calls, reconciler.Current(ctx))
			if fails {
				return reconciler.Result{RequeueAfter: time.Minute}, errors.New("fails")
			}
			return work(ctx, o)
		})
		a := s.Start("a", c)
		s.put("x", job{})
		s.Advance(time.Second)
		require.NoError(t, a.Stop())
		s.Start("b", c)
		s.Advance(time.Minute)
		fails = false
		_, err := s.jobs.Retry(t.Context(), "x")
		require.NoError(t, err)
		s.RunUntilSettled()
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		_, err = s.jobs.Delete(t.Context(), "x")
		require.NoError(t, err)
		s.RunUntilSettled() // or the look for the deletion may find the new object
		s.put("x", job{})
		s.RunUntilSettled()

		require.Len(t, calls, 5)
		keys := map[string][]int{}
		for i, call := range calls {
			require.Equal(t, "jobs", call.Kind)
			require.Equal(t, "x", call.Name)
			require.Equal(t, s.runs("x")[i].Fence, call.Fence)
			require.Equal(t, []int{1, 2, 3, 1, 1}[i], call.Number)
			keys[call.IdempotencyKey] = append(keys[call.IdempotencyKey], i)
		}
		require.Equal(t, map[string][]int{
			calls[0].IdempotencyKey: {0, 1, 2},
			calls[3].IdempotencyKey: {3},
			calls[4].IdempotencyKey: {4},
		}, keys)
		require.Zero(t, reconciler.Current(t.Context()))
	})
}

// Whatever is logged about an object can be found by it: by the SDK and by the function, of what goes well and of trouble.
func TestLogLinesNameTheirObject(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var logs lines
		calls := 0
		c := reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			reconciler.Log(ctx).Info("at work on blue")
			reconciler.Log(ctx).V(3).Info("details of blue")
			switch calls++; calls {
			case 1:
				return reconciler.Result{}, errors.New("blue is unwell")
			case 2:
				panic("blue is broken")
			}
			return work(ctx, o)
		})
		s.StartWith("a", func(cfg *reconciler.Config) {
			logs.sink(cfg)
			cfg.Observer = func(e reconciler.Event) { panic(e.Name + " was not expected") }
		}, c)
		s.Advance(2 * time.Second)
		cancelLock := s.FailBroker(reconcilertest.BrokerFault{Subject: "lock.jobs.", Times: 1})
		s.Fail(reconcilertest.Fault{Method: http.MethodGet, Path: "/jobs/blue", Status: http.StatusInternalServerError, Times: 1})
		s.put("blue", job{Millis: 3000, Value: 1})
		s.Advance(time.Minute)
		cancelLock()
		s.Fail(reconcilertest.Fault{Method: http.MethodPatch, Status: http.StatusTeapot, Times: 1})
		s.put("blue", job{Millis: 1000, Value: 2})
		s.Advance(500 * time.Millisecond)
		s.put("blue", job{Millis: 3000, Value: 3}) // waits for the lock
		s.Advance(time.Minute)

		doing := map[any]bool{}
		for line := range strings.Lines(logs.text()) {
			if !strings.Contains(line, "blue") {
				continue
			}
			var m map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &m), line)
			require.Equal(t, "jobs", m["kind"], line)
			require.Equal(t, "blue", m["name"], line)
			require.Contains(t, m, "attempt", line)
			require.Contains(t, m, "fence", line)
			doing[m["doing"]] = true
		}
		for _, what := range []string{"lock", "read", "patch"} {
			require.Contains(t, doing, what)
		}
		for _, msg := range []string{"at work on blue", "details of blue", "the observer panicked", "reconcile failed", "reconciled", "contended"} {
			require.NotEmpty(t, logs.with(msg), msg)
		}
		mine := logs.with("at work on blue")
		require.EqualValues(t, 1, mine[0]["attempt"])
		require.EqualValues(t, 2, mine[1]["attempt"])
		require.Greater(t, mine[1]["fence"], mine[0]["fence"])
	})
}

// A replica may be called anything: others can read its locks.
func TestLockOfAHolderWithAnyNameIsHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stopA := l.start("a \"b\" \x00\x7f\u00e9\xff")
		defer stopA()
		b, stopB := l.start("b")
		defer stopB()
		lk, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		defer lk.Unlock()
		_, err = b.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, lock.ErrHeld)
		require.ErrorContains(t, err, "by a \"b\" ")
	})
}

// When a broker lost everything, one replica searches at a time, and no faster than what it finds is worked off.
func TestResyncIsPacedAndDoneByOne(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		const owed = 3000
		for i := range owed {
			s.put(fmt.Sprintf("o%d", i), job{Millis: 50, Value: 1})
		}
		s.Advance(time.Minute)
		s.StopBroker()
		s.StartBroker()
		c := reconciler.For("jobs", work)
		c.Workers = 4
		s.Start("a", c)
		s.Start("b", c)
		_, js := s.broker()
		var most uint64
		for range 600 {
			s.Advance(50 * time.Millisecond)
			later, err := js.Consumer(t.Context(), "evenkeel_work", "jobs_later")
			require.NoError(t, err)
			most = max(most, later.CachedInfo().NumPending)
		}
		s.RunUntilSettled()
		s.AssertConverged()
		require.LessOrEqual(t, most, uint64(1000))
		require.Greater(t, most, uint64(500))
		resynced := map[string]int{}
		for _, e := range s.Timeline().Only(reconciler.StepResynced) {
			resynced[e.Name]++
		}
		require.Len(t, resynced, owed)
		for name, n := range resynced {
			require.Equal(t, 1, n, name)
		}
		require.Len(t, s.Timeline().Runs(), owed)
	})
}

// R20, P6: the broker is away for five minutes and comes back empty, the API is away for parts of that.
func TestOutageOfEverything(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.Start("b", reconciler.For("jobs", work))
		for i := range 200 {
			s.put(fmt.Sprintf("o%d", i), job{Value: 1})
		}
		for i := range 5 {
			s.put(fmt.Sprintf("long%d", i), job{Millis: 60_000, Value: 1})
		}
		s.Advance(20 * time.Second)
		down := reconcilertest.Fault{Status: http.StatusServiceUnavailable}
		s.StopBroker()
		s.Advance(time.Minute)
		mend := s.Fail(down)
		for i := range 100 {
			s.put(fmt.Sprintf("o%d", i), job{Value: 2})
			s.put(fmt.Sprintf("n%d", i), job{Value: 1})
		}
		s.Advance(2 * time.Minute)
		mend()
		s.Advance(2 * time.Minute)
		mend = s.Fail(down)
		s.StartBroker()
		s.Advance(30 * time.Second)
		mend()
		began := time.Now()
		s.RunUntilSettled()
		require.LessOrEqual(t, time.Since(began), 3*time.Minute)
		s.AssertConverged()
		s.AssertOneWriter()
		require.Less(t, len(s.Timeline().Only(reconciler.StepTrouble)), 300, "two replicas at one try in up to 15 s each, for each thing that they miss")
		require.Equal(t, 2, s.get("o7").Status.Value)
	})
}

// A readiness probe learns what keeps a replica from working.
func TestReadySaysWhatIsMissing(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.Advance(time.Second)
		require.NoError(t, a.Runner.Ready())
		a.CutNATS()
		s.Advance(time.Second)
		require.ErrorContains(t, a.Runner.Ready(), "not connected to NATS")
		a.Heal()
		s.Advance(time.Second)
		require.NoError(t, a.Runner.Ready())
		mend := s.Fail(reconcilertest.Fault{Status: 503})
		for i := range 5 {
			s.put(fmt.Sprintf("o%d", i), job{Value: 1})
		}
		s.Advance(time.Second)
		require.ErrorContains(t, a.Runner.Ready(), "the API is out of reach")
		mend()
		s.RunUntilSettled()
		require.NoError(t, a.Runner.Ready())
		require.NoError(t, a.Stop())
		require.ErrorContains(t, a.Runner.Ready(), "not running")
	})
}

// The log says in one line what came of a call and what is next, and does not repeat what an object waits for.
func TestLogSaysWhatIsNext(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var logs lines
		calls := 0
		s.StartWith("a", logs.sink, reconciler.For("jobs", func(context.Context, *jobObject) (reconciler.Result, error) {
			switch calls++; calls {
			case 1:
				return reconciler.Result{RequeueAfter: 7 * time.Second}, errors.New("a passing fault")
			case 2:
				panic("a bug")
			case 3, 4, 5:
				return reconciler.Result{}, reconciler.Throttled(errors.New("the quota is used up"), time.Minute)
			}
			return reconciler.Result{RequeueAfter: time.Hour}, nil
		}))
		s.put("x", job{})
		s.Advance(10 * time.Minute)
		failed := logs.with("reconcile failed")
		require.Len(t, failed, 2)
		require.Equal(t, "Retrying", failed[0]["state"])
		require.Equal(t, "7s", failed[0]["retryIn"])
		require.Contains(t, fmt.Sprint(failed[1]["stack"]), "operations_test.go")
		var loud []any
		for _, line := range logs.with("waiting") {
			if line["level"] == 0.0 {
				loud = append(loud, line["for"])
			}
		}
		require.Equal(t, []any{"the quota is used up"}, loud)
		reconciled := logs.with("reconciled")
		require.Len(t, reconciled, 1)
		require.Equal(t, "Ready", reconciled[0]["state"])
		require.Equal(t, "1h0m0s", reconciled[0]["retryIn"])
	})
}
