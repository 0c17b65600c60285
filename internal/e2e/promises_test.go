package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// job is what the objects of these tests want: so much time, then a status.
type job struct {
	Millis int
	Value  int
}

type done struct {
	Value int
	By    string
}

type jobObject = apiclient.Object[job, done]

// work takes as long as the spec says, unless its context ends.
func work(ctx context.Context, o *jobObject) (reconciler.Result, error) {
	select {
	case <-ctx.Done():
		return reconciler.Result{}, context.Cause(ctx)
	case <-time.After(time.Duration(o.Spec.Millis) * time.Millisecond):
	}
	o.Status.Value = o.Spec.Value
	return reconciler.Result{}, nil
}

// scenario is a World with a client of jobs that fails the test on errors.
type scenario struct {
	*reconcilertest.World
	t    *testing.T
	jobs *apiclient.Client[job, done]
}

func play(t *testing.T, f func(t *testing.T, s scenario)) {
	t.Helper()
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		f(t, scenario{w, t, reconcilertest.Client[job, done](w, "jobs")})
	})
}

func (s scenario) put(name string, j job) {
	s.t.Helper()
	_, err := s.jobs.Put(s.t.Context(), name, j)
	require.NoError(s.t, err)
}

func (s scenario) get(name string) *jobObject {
	s.t.Helper()
	o, err := s.jobs.Get(s.t.Context(), name)
	require.NoError(s.t, err)
	return o
}

func (s scenario) runs(name string) []reconcilertest.RunOf {
	return s.Timeline().Of("jobs", name).Runs()
}

// P1, R7: any number of changes during a run lead to exactly one further run, on whichever replica, which sees the last.
func TestNothingIsLostOfChangesDuringARun(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.Start("b", reconciler.For("jobs", work))
		s.put("x", job{Millis: 10_000, Value: 1})
		s.Advance(time.Second)
		for i := range 100 {
			s.put("x", job{Millis: 10_000, Value: 2 + i})
			s.Advance(50 * time.Millisecond)
		}
		s.RunUntilSettled()
		require.Len(t, s.runs("x"), 2)
		require.Equal(t, 101, s.get("x").Status.Value)
		s.AssertConverged()
		s.AssertOneWriter()
		s.Advance(2 * reconciler.DefaultResync)
		require.Len(t, s.runs("x"), 2, "a controller's own status never wakes it")
	})
}

// P4: a contended object is picked up as soon as its lock is released, without polling.
func TestContendedObjectIsPickedUpAtTheRelease(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Millis: 60_000, Value: 1})
		s.Advance(time.Second)
		for _, name := range []string{"b", "c"} {
			s.Start(name, reconciler.For("jobs", work))
		}
		s.Advance(time.Second)
		s.put("x", job{Value: 2})
		s.RunUntilSettled()
		runs := s.runs("x")
		require.Len(t, runs, 2)
		require.LessOrEqual(t, runs[1].Start.Sub(runs[0].End), 50*time.Millisecond)
		require.Less(t, len(s.Timeline().Of("jobs", "x").Only(reconciler.StepContended)), 3)
	})
}

// R24, R16: a change is handled at once, cancels the pending retry, and starts the count of attempts anew; touching the
// object without changing the spec does neither.
func TestChangeCancelsTheRetryAndATouchDoesNot(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if o.Spec.Value == 0 {
				return reconciler.Result{RequeueAfter: 15 * time.Minute}, errors.New("no value")
			}
			return work(ctx, o)
		})
		a := s.Start("a", c)
		s.put("x", job{})
		s.Advance(time.Minute)
		for range 3 {
			_, err := s.jobs.Put(t.Context(), "x", job{}, apiclient.WithLabels(map[string]string{"touched": time.Now().String()}))
			require.NoError(t, err)
			require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
			s.Advance(time.Minute)
		}
		require.Len(t, s.runs("x"), 1)
		_, err := s.jobs.Retry(t.Context(), "x")
		require.NoError(t, err)
		s.Advance(time.Minute)
		require.Len(t, s.runs("x"), 2)
		require.Equal(t, 2, s.get("x").Reconciliation.Failures, "a request to retry does not reset the count")
		require.NoError(t, a.Stop())
		s.Start("b", c)
		s.Advance(20 * time.Minute)
		require.Equal(t, 3, s.get("x").Reconciliation.Failures, "nor does another replica")
		s.put("x", job{Value: 7})
		s.Advance(time.Second)
		require.Equal(t, 1, s.runs("x")[3].Attempt)
		s.AssertConverged()
		s.Advance(time.Hour)
		require.Len(t, s.runs("x"), 4, "the pending retry is cancelled")
	})
}

// R16: delays grow with the attempts and never exceed the cap.
func TestBackoffFollowsTheAttempts(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", func(context.Context, *jobObject) (reconciler.Result, error) {
			return reconciler.Result{}, errors.New("never")
		})
		c.Backoff.Cap = 20 * time.Second
		s.Start("a", c)
		s.put("x", job{})
		s.Advance(20 * time.Minute)
		longest := time.Duration(0)
		for i, d := range s.Timeline().Requeues() {
			require.LessOrEqual(t, d, min(time.Second<<min(i, 5), 20*time.Second))
			longest = max(longest, d)
		}
		require.Greater(t, longest, 10*time.Second)
		require.Greater(t, len(s.runs("x")), 1200/20, "it is never given up")
		require.Equal(t, apiclient.StateRetrying, s.get("x").Reconciliation.State)
		require.Equal(t, "never", s.get("x").Reconciliation.LastError)
	})
}

// R4, R22, P4: a thousand objects that sleep and some that run for an hour do not delay another.
func TestNoWaitingOnOthers(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if o.Spec.Value < 0 {
				return reconciler.Result{RequeueAfter: 30 * time.Minute}, errors.New("sleeps")
			}
			return work(ctx, o)
		})
		c.Workers = 4
		s.Start("a", c)
		for i := range 1000 {
			s.put(fmt.Sprintf("sleeper%d", i), job{Value: -1})
		}
		for i := range 3 {
			s.put(fmt.Sprintf("slow%d", i), job{Millis: 3_600_000})
		}
		s.Advance(time.Minute)
		s.put("quick", job{Value: 1})
		s.Advance(time.Second)
		require.Equal(t, 1, s.get("quick").Status.Value)
	})
}

// R17, R5: workers are honoured, for each kind its own; a run of an hour is one run.
func TestWorkersAreHonoured(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var mu sync.Mutex
		now, most := map[string]int{}, map[string]int{}
		counted := func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			mu.Lock()
			now[o.Kind]++
			most[o.Kind] = max(most[o.Kind], now[o.Kind])
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				now[o.Kind]--
			}()
			return work(ctx, o)
		}
		jobs, tasks := reconciler.For("jobs", counted), reconciler.For("tasks", counted)
		jobs.Workers, tasks.Workers = 3, 2
		jobs.Timeout, tasks.Timeout = 3*time.Hour, 3*time.Hour
		s.Start("a", jobs, tasks)
		others := reconcilertest.Client[job, done](s.World, "tasks")
		for i := range 5 {
			s.put(fmt.Sprintf("o%d", i), job{Millis: 3_600_000, Value: 1})
			_, err := others.Create(t.Context(), fmt.Sprintf("o%d", i), job{Millis: 1000, Value: 1})
			require.NoError(t, err)
		}
		s.Advance(125 * time.Minute) // three of the jobs run for an hour, then the other two
		s.AssertConverged()
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, map[string]int{"jobs": 3, "tasks": 2}, most)
		for i := range 5 {
			require.Len(t, s.runs(fmt.Sprintf("o%d", i)), 1)
		}
	})
}

// R23, R28: a panic and a missed deadline are errors of that object alone; an observer that panics is called again.
func TestOneBadObjectIsAloneWithIt(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if o.Spec.Value < 0 {
				panic("a bug")
			}
			return work(ctx, o)
		})
		c.Timeout = time.Minute
		observed := 0
		var mu sync.Mutex
		s.StartWith("a", func(cfg *reconciler.Config) {
			inner := cfg.Observer
			cfg.Observer = func(e reconciler.Event) {
				inner(e)
				mu.Lock()
				observed++
				mu.Unlock()
				panic("a bad observer")
			}
		}, c)
		s.put("panics", job{Value: -1})
		s.put("hangs", job{Millis: 3_600_000})
		s.put("good", job{Value: 1})
		s.Advance(2 * time.Minute)
		require.Equal(t, apiclient.StateReady, s.get("good").Reconciliation.State)
		require.Equal(t, "panic: a bug", s.get("panics").Reconciliation.LastError)
		require.Contains(t, s.get("hangs").Reconciliation.LastError, "deadline of 1m0s exceeded")
		mu.Lock()
		defer mu.Unlock()
		require.Greater(t, observed, 10)
	})
}

// Terminal errors stall the object until the spec changes or a retry is asked for.
func TestTerminalErrorsStall(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if o.Spec.Value < 0 {
				return reconciler.Result{}, reconciler.Terminal(errors.New("no such region"))
			}
			return work(ctx, o)
		}))
		s.put("x", job{Value: -1})
		s.Advance(2 * reconciler.DefaultResync)
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
		s.Advance(2 * reconciler.DefaultResync)
		require.Equal(t, apiclient.StateStalled, s.get("x").Reconciliation.State)
		require.Equal(t, "no such region", s.get("x").Reconciliation.LastError)
		require.Len(t, s.runs("x"), 1)
		_, err := s.jobs.Retry(t.Context(), "x")
		require.NoError(t, err)
		s.Advance(time.Minute)
		require.Len(t, s.runs("x"), 2)
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		s.AssertConverged()
	})
}

// R6, R27: a creation that failed is not repeated after the deletion, also one asked for while nobody was there.
func TestDeletionWhileNobodyWatches(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var mu sync.Mutex
		var calls []string
		c := reconciler.ForWithCleanup("jobs",
			func(context.Context, *jobObject) (reconciler.Result, error) {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, "create")
				return reconciler.Result{RequeueAfter: 10 * time.Minute}, errors.New("fails")
			},
			func(context.Context, *jobObject) (reconciler.Result, error) {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, "clean up")
				return reconciler.Result{}, nil
			})
		a := s.Start("a", c)
		s.put("x", job{})
		s.Advance(time.Minute)
		require.NoError(t, a.Stop())
		_, err := s.jobs.Delete(t.Context(), "x")
		require.NoError(t, err)
		s.Advance(time.Hour)
		s.Start("b", c)
		s.Advance(15 * time.Minute)
		_, err = s.jobs.Get(t.Context(), "x")
		require.ErrorIs(t, err, apiclient.ErrNotFound)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []string{"create", "clean up"}, calls)
	})
}

// P5, R13: a stop lets functions finish; past the grace period it cancels them, hands over, and leaves nothing locked.
func TestCleanStopHandsOver(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.StartWith("a", func(cfg *reconciler.Config) { cfg.Grace = 10 * time.Second }, reconciler.For("jobs", work))
		s.put("short", job{Millis: 5000, Value: 1})
		s.put("long", job{Millis: 60_000, Value: 1})
		s.Advance(time.Second)
		s.Start("b", reconciler.For("jobs", work))
		stopped := time.Now()
		require.NoError(t, a.Stop())
		require.Len(t, s.runs("short"), 1)
		require.NoError(t, s.runs("short")[0].Err)
		s.RunUntilSettled()
		long := s.runs("long")
		require.Len(t, long, 2)
		require.ErrorIs(t, long[0].Err, reconciler.ErrStopping)
		require.Equal(t, "b", long[1].Replica)
		require.LessOrEqual(t, long[1].Start.Sub(stopped), 11*time.Second, "at once, not when the lease ends")
		require.Zero(t, s.get("long").Reconciliation.Failures, "a stop is no failure")
		s.AssertConverged()
		s.AssertOneWriter()
	})
}

// R13: a function that ignores its cancelled context keeps its lock; the stop says which.
func TestStopDoesNotUnlockWhatStillRuns(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.StartWith("a", func(cfg *reconciler.Config) { cfg.Grace = time.Second }, reconciler.For("jobs",
			func(context.Context, *jobObject) (reconciler.Result, error) {
				<-time.After(time.Minute)
				return reconciler.Result{}, nil
			}))
		s.put("x", job{})
		s.Advance(time.Second)
		require.ErrorContains(t, a.Stop(), "jobs/x")
		require.Empty(t, s.Timeline().Of("jobs", "x").Only(reconciler.StepReleased))
		s.Advance(2 * time.Minute)
	})
}

// P6, R20: an outage of the API fails no object and causes no storm; everything converges by itself afterwards. A token that
// the API does not take any more is one, too.
func TestOutageOfTheAPI(t *testing.T) {
	for _, status := range []int{503, 401} {
		t.Run(strconv.Itoa(status), func(t *testing.T) { play(t, outageOfTheAPI(status)) })
	}
}

func outageOfTheAPI(status int) func(t *testing.T, s scenario) {
	return func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.Start("b", reconciler.For("jobs", work))
		s.Advance(time.Second)
		mend := s.Fail(reconcilertest.Fault{Status: status})
		for i := range 200 {
			s.put(fmt.Sprintf("o%d", i), job{Value: 1})
		}
		s.Advance(10 * time.Minute)
		tries := len(s.Timeline().Only(reconciler.StepTrouble))
		require.Less(t, tries, 600, "two replicas at one probe in up to 15 s, and the resync")
		mend()
		s.RunUntilSettled()
		s.AssertConverged()
		s.AssertOneWriter()
		require.Zero(t, s.get("o7").Reconciliation.Failures)
	}
}

// P1, P2: the replica dies before and after each thing that it does to the world while an object fails, is retried, is
// changed and is deleted; every time somebody else finishes the work, and soon: not only when resync finds it.
func TestNothingIsLostWhereverTheReplicaDies(t *testing.T) {
	var mu sync.Mutex
	failures := 0
	flaky := func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		if failures++; failures%2 == 1 {
			return reconciler.Result{RequeueAfter: 5 * time.Second}, errors.New("a passing fault")
		}
		return work(ctx, o)
	}
	deaths := reconcilertest.CrashEverywhere(t, reconcilertest.Scenario{
		Setup: func() { failures = 0 },
		Controllers: func() []reconciler.Controller {
			return []reconciler.Controller{reconciler.ForWithCleanup("jobs", flaky, flaky)}
		},
		Do: func(t *testing.T, w *reconcilertest.World) {
			s := scenario{w, t, reconcilertest.Client[job, done](w, "jobs")}
			s.put("x", job{Value: 1})
			s.put("y", job{Value: 1})
			w.Advance(time.Second)
			s.put("x", job{Value: 2})
			w.Advance(10 * time.Second)
			_, err := s.jobs.Delete(t.Context(), "y")
			require.NoError(t, err)
		},
		Check: func(t *testing.T, w *reconcilertest.World) {
			for _, run := range w.Timeline().Runs() {
				require.Less(t, run.Start.Sub(w.Timeline()[0].Time), 50*time.Second, "%+v", run)
			}
		},
	})
	t.Logf("%d places of death", deaths)
	require.Greater(t, deaths, 40)
}

// A replica that starts begins with what waits at once, not at its next poll.
func TestWorkBeginsAtOnce(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.put("x", job{Value: 1})
		s.Start("a", reconciler.For("jobs", work))
		s.Advance(100 * time.Millisecond)
		require.Len(t, s.runs("x"), 1)
		s.put("x", job{Value: 2})
		s.Advance(100 * time.Millisecond)
		require.Len(t, s.runs("x"), 2)
	})
}

// Two tries for a lock in a row whose answers do not come: whichever of them holds it, it is freed, and the object is
// reconciled although its replica lives on.
func TestNothingIsLostOfLocksInDoubt(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.Advance(100 * time.Millisecond)
		s.FailBroker(reconcilertest.BrokerFault{Subject: "locks.lock.jobs.", Times: 1, Lose: true}) // taken
		s.FailBroker(reconcilertest.BrokerFault{Subject: "locks.lock.jobs.", Times: 1})             // not taken
		mend := s.FailBroker(reconcilertest.BrokerFault{Subject: "STREAM.MSG.GET.KV_"})
		s.put("x", job{Value: 1})
		s.Advance(20 * time.Second)
		mend()
		s.Advance(30 * time.Second)
		s.AssertConverged()
		s.AssertOneWriter()
	})
}
