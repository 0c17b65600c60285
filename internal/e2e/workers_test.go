package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/e2e/wire"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// oneWorker is a controller of jobs with one worker.
func oneWorker(f reconciler.Func[job, done]) reconciler.Controller {
	c := reconciler.For("jobs", f)
	c.Workers = 1
	return c
}

// P4: objects whose status the API cannot store hold no worker, and are stored when it can.
func TestStatusThatCannotBeStoredHoldsNoWorker(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		mend := s.Fail(reconcilertest.Fault{Method: "PATCH", Path: "/bad", Status: 500})
		s.Start("a", oneWorker(work))
		for i := range 5 {
			s.put(fmt.Sprintf("bad%d", i), job{Value: 1})
		}
		s.Advance(time.Second)
		s.put("good", job{Value: 1})
		s.Advance(10 * time.Second)
		require.Equal(t, 1, s.get("good").Status.Value)
		s.put("good", job{Value: 2})
		s.Advance(3 * time.Second)
		require.Equal(t, 2, s.get("good").Status.Value, "nor does it later")
		mend()
		s.RunUntilSettled()
		s.AssertConverged()
		s.AssertOneWriter()
	})
}

// P4, P1: requeues that the broker does not store hold no worker, however long that lasts and however many they are, and
// none is lost.
func TestRequeueThatCannotBeStoredHoldsNoWorker(t *testing.T) {
	for objects, outage := range map[int]time.Duration{3: time.Hour, 100: 15 * time.Minute} {
		t.Run(fmt.Sprint(objects), func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				failing := true
				s.Start("a", oneWorker(func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
					if strings.HasPrefix(o.Name, "bad") && failing {
						return reconciler.Result{RequeueAfter: 5 * time.Second}, errors.New("fails")
					}
					return work(ctx, o)
				}))
				s.Advance(time.Second)
				mend := s.FailBroker(reconcilertest.BrokerFault{Subject: ".s.jobs."})
				for i := range objects {
					s.put(fmt.Sprintf("bad%d", i), job{Value: 1})
				}
				s.Advance(outage)
				s.put("good", job{Value: 1})
				s.Advance(10 * time.Second)
				require.Equal(t, 1, s.get("good").Status.Value)
				mend()
				failing = false
				began := time.Now()
				s.RunUntilSettled()
				require.Less(t, time.Since(began), 15*time.Minute)
				s.AssertConverged()
				s.AssertOneWriter()
			})
		})
	}
}

// P6: objects that the API refuses to show are asked for ever more rarely, each for itself.
func TestUnreadableObjectsBackOff(t *testing.T) {
	for _, status := range []int{500, 403, 404} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				s.Start("a", reconciler.For("jobs", work))
				s.Advance(2 * time.Second)
				mend := s.Fail(reconcilertest.Fault{Method: "GET", Path: "/jobs/o", Status: status})
				const objects = 20
				for i := range objects {
					s.put(fmt.Sprintf("o%d", i), job{Value: 1})
				}
				s.Advance(30 * time.Minute)
				before := len(s.Timeline())
				s.Advance(10 * time.Minute)
				reads := s.Timeline()[before:].Only(reconciler.StepTrouble)
				require.Less(t, len(reads), 10*objects, "once a minute, at the most")
				mend()
				s.Advance(6 * time.Minute)
				s.AssertConverged()
			})
		})
	}
}

// P6: a broker that lost everything is refilled soon after the API is back, though the search for what it lost failed
// while the API was away.
func TestRefillComesSoonAfterTheAPI(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", oneWorker(work))
		s.Start("b", oneWorker(work))
		s.Advance(5 * time.Minute)
		for i := range 50 {
			s.put(fmt.Sprintf("o%d", i), job{Millis: 100, Value: 1})
		}
		s.Advance(time.Second)
		s.StopBroker() // and the notifications of most are lost
		mend := s.Fail(reconcilertest.Fault{Status: 503})
		s.Advance(10 * time.Second)
		s.StartBroker()
		s.Advance(2 * time.Minute)
		mend()
		s.Advance(25 * time.Second)
		s.AssertConverged()
		s.AssertOneWriter()
	})
}

// stubborn ignores its context for as long as the spec says.
func stubborn(_ context.Context, o *jobObject) (reconciler.Result, error) {
	<-time.After(time.Duration(o.Spec.Millis) * time.Millisecond)
	o.Status.Value = o.Spec.Value
	return reconciler.Result{}, nil
}

// P4, P2: a function that ignores its deadline is reported, and gives its worker up after the grace period; it keeps its
// lock, so nothing runs twice at once.
func TestFunctionThatIgnoresItsDeadlineIsReported(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var logs lines
		c := oneWorker(stubborn)
		c.Timeout = 10 * time.Second
		began := time.Now()
		s.StartWith("a", func(cfg *reconciler.Config) {
			logs.sink(cfg)
			cfg.Grace = 5 * time.Second
		}, c)
		s.put("slow", job{Millis: 600_000, Value: 1})
		s.Advance(12 * time.Second)
		slow := s.get("slow")
		require.Equal(t, apiclient.StateReconciling, slow.Reconciliation.State)
		require.Contains(t, slow.Reconciliation.LastError, "after its deadline of 10s: the function ignores its context")
		require.WithinDuration(t, began, *slow.Reconciliation.RunningSince, time.Second)
		overdue := s.Timeline().Of("jobs", "slow").Only(reconciler.StepOverdue)
		require.Len(t, overdue, 1)
		require.Contains(t, overdue[0].Stack, "e2e.stubborn")
		events, err := s.jobs.Events(t.Context(), "slow")
		require.NoError(t, err)
		require.Equal(t, apiclient.HappenedOverdue, events[0].Reason)

		s.Advance(5 * time.Second)
		for i := range 4 {
			s.put(fmt.Sprintf("quick%d", i), job{Value: 2})
		}
		s.Advance(2 * time.Second)
		for i := range 4 {
			require.Equal(t, 2, s.get(fmt.Sprintf("quick%d", i)).Status.Value, "the worker is free")
		}
		s.Start("b", c)
		s.put("slow", job{Millis: 1, Value: 3})
		s.Advance(15 * time.Minute)
		require.Equal(t, 3, s.get("slow").Status.Value)
		require.Nil(t, s.get("slow").Reconciliation.RunningSince)
		s.AssertConverged()
		s.AssertOneWriter()
	})
}

// What a report of a function past its deadline has stored does not outlive the call, also if that found nothing to change.
func TestReportOfAnOverdueFunctionIsReplacedByItsOutcome(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", stubborn)
		c.Timeout = 100 * time.Millisecond
		a := s.Start("a", c)
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		s.put("x", job{Value: 1, Millis: 1500})
		s.RunUntilSettled()
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
		s.Advance(1300 * time.Millisecond)
		require.Equal(t, apiclient.StateReconciling, s.get("x").Reconciliation.State)
		s.Advance(time.Second)
		require.Equal(t, apiclient.StateReady, s.get("x").Reconciliation.State)
		require.Empty(t, s.get("x").Reconciliation.LastError)
	})
}

// P4: even more functions that never return than there may be without a worker leave the workers that are left, and a
// stop names them.
func TestFunctionsThatNeverReturnAreBounded(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := oneWorker(func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if strings.HasPrefix(o.Name, "slow") {
				return stubborn(ctx, o)
			}
			return work(ctx, o)
		})
		c.Timeout = time.Second
		a := s.StartWith("a", func(cfg *reconciler.Config) { cfg.Grace = time.Second }, c)
		for i := range 100 {
			s.put(fmt.Sprintf("slow%d", i), job{Millis: 3_600_000})
		}
		s.Advance(30 * time.Minute)
		running := 0
		for _, run := range s.Timeline().Runs() {
			if run.End.IsZero() {
				running++
			}
		}
		require.Equal(t, 65, running, "64 without a worker and one with it")
		require.ErrorContains(t, a.Stop(), "jobs/slow")
		s.Advance(2 * time.Hour)
	})
}

// A RequeueAfter below zero is a mistake that shows.
func TestNegativeRequeueAfterIsAnError(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", func(context.Context, *jobObject) (reconciler.Result, error) {
			return reconciler.Result{RequeueAfter: -time.Second}, nil
		}))
		s.put("x", job{})
		s.Advance(time.Second)
		require.Equal(t, apiclient.StateRetrying, s.get("x").Reconciliation.State)
		require.Equal(t, "the function returned RequeueAfter -1s: want 0 or more", s.get("x").Reconciliation.LastError)
	})
}

// P4: a thousand notifications that wait for locks keep no worker from objects that can be worked on, also over a link
// that takes its time, and are handled when the locks are released.
func TestWaitingForLocksHoldsNoWorker(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		const locked = 1000
		all := reconciler.For("jobs", work)
		all.Workers, all.Timeout = locked, 2*time.Hour
		s.Start("a", all)
		for i := range locked {
			s.put(fmt.Sprintf("slow%d", i), job{Millis: 300_000, Value: 1})
		}
		s.Advance(5 * time.Second)
		_, nc := wire.New(t, s.World, 2*time.Millisecond)
		t.Cleanup(nc.Close)
		s.StartWith("b", func(cfg *reconciler.Config) { cfg.NATS = nc }, oneWorker(work))
		s.Advance(5 * time.Second)
		for i := range locked {
			s.put(fmt.Sprintf("slow%d", i), job{Value: 2})
		}
		s.Advance(time.Minute) // and b has found out that they are locked
		for i := range 12 {
			s.put("quick", job{Value: i + 1})
			s.Advance(time.Second)
			require.Equal(t, i+1, s.get("quick").Status.Value, "window %d", i)
			s.Advance(9 * time.Second)
		}
		s.Advance(5 * time.Minute)
		require.Equal(t, 2, s.get("slow7").Status.Value)
		s.AssertConverged()
		s.AssertOneWriter()
	})
}
