package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// P1: a run whose result is refused because of its fence, and which cannot find out whether it still has the lock, is
// followed by another one: nothing else stands for the work if the lock was its own.
func TestRefusedResultIsTriedAgainIfTheLockCannotBeConfirmed(t *testing.T) {
	for name, end := range map[string]func(s scenario, a *reconcilertest.Replica){
		"the broker does not answer": func(s scenario, _ *reconcilertest.Replica) {
			s.FailBroker(reconcilertest.BrokerFault{Subject: "MSG.GET.KV_evenkeel_locks", Times: 1, Lose: true})
		},
		"the replica is stopping": func(s scenario, a *reconcilertest.Replica) {
			go func() { _ = a.Stop() }() // ends with the World
			s.Advance(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				a := s.StartWith("a", func(cfg *reconciler.Config) {
					cfg.Grace, cfg.Resync = time.Second, 100*time.Hour
				}, reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
					select {
					case <-ctx.Done(): // it is stopped, and is done all the same
					case <-time.After(time.Duration(o.Spec.Millis) * time.Millisecond):
					}
					o.Status.Value = o.Spec.Value
					return reconciler.Result{}, nil
				}))
				s.Advance(2 * time.Minute) // no search follows
				s.put("x", job{Value: 1, Millis: 5_000})
				s.Advance(time.Second)
				o := s.get("x")
				_, err := s.jobs.PatchStatus(t.Context(), "x", apiclient.StatusPatch{UID: o.UID, Fence: uint64(time.Now().Add(time.Hour).UnixMicro())})
				require.NoError(t, err)
				end(s, a)
				s.Advance(20 * time.Second)
				require.Len(t, s.Timeline().Only(reconciler.StepFenced), 1)
				if name == "the replica is stopping" {
					s.Start("b", reconciler.For("jobs", work))
				}
				s.Advance(10 * time.Second)
				require.Empty(t, s.Timeline().Only(reconciler.StepResynced))
				require.Equal(t, 1, s.get("x").Status.Value)
				s.AssertConverged()
			})
		})
	}
}

// P4: objects whose status the API is slow to answer hold no worker meanwhile.
func TestStatusThatIsNotAnsweredHoldsNoWorker(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		mend := s.Fail(reconcilertest.Fault{Method: "PATCH", Path: "/bad", Delay: time.Hour})
		s.Start("a", oneWorker(work))
		for i := range 5 {
			s.put(fmt.Sprintf("bad%d", i), job{Value: 1})
		}
		s.Advance(time.Second)
		s.put("good", job{Value: 1})
		s.Advance(6 * time.Second)
		require.Equal(t, 1, s.get("good").Status.Value)
		mend()
		s.RunUntilSettled()
		s.AssertConverged()
		s.AssertOneWriter()
	})
}

// P1: what a run says of itself while it goes on past its deadline is replaced by its outcome, also if that is what the
// object said before.
func TestObjectIsReadyAfterAFunctionThatIgnoredAShortDeadline(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		slow := false
		c := reconciler.For("jobs", func(context.Context, *jobObject) (reconciler.Result, error) {
			if slow {
				<-time.After(1700 * time.Millisecond)
			}
			return reconciler.Result{}, nil
		})
		c.Timeout = 500 * time.Millisecond
		a := s.Start("a", c)
		s.put("x", job{})
		s.RunUntilSettled()
		slow = true
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
		s.Advance(3 * time.Second)
		require.Len(t, s.Timeline().Only(reconciler.StepOverdue), 1)
		require.Equal(t, apiclient.StateReady, s.get("x").Reconciliation.State)
		require.False(t, errors.Is(s.runs("x")[1].Err, context.DeadlineExceeded))
	})
}

// However long it takes to mark objects as ones that must be cleaned up, no more functions run than there are workers.
func TestNoMoreFunctionsRunThanWorkersAfterSlowFinalizers(t *testing.T) {
	for name, fault := range map[string]reconcilertest.Fault{
		"refused for a while": {Method: "PATCH", Status: 500},
		"answered late":       {Method: "PATCH", Delay: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				var running, most atomic.Int64
				f := func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
					most.Store(max(most.Load(), running.Add(1)))
					defer running.Add(-1)
					return work(ctx, o)
				}
				c := reconciler.ForWithCleanup("jobs", f, f)
				c.Workers = 1
				mend := s.Fail(fault)
				s.Start("a", c)
				for i := range 10 {
					s.put(fmt.Sprintf("o%d", i), job{Value: 1, Millis: 5_000})
				}
				s.Advance(3 * time.Second)
				mend()
				s.RunUntilSettled()
				s.AssertConverged()
				require.EqualValues(t, 1, most.Load())
			})
		})
	}
}
