package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// P1: an object whose cleanup asks to come back is not gone: its finalizer stays until the cleanup is done.
func TestFinalizerStaysUntilTheCleanupIsDone(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		calls := 0
		s.Start("a", reconciler.ForWithCleanup("jobs", work, func(context.Context, *jobObject) (reconciler.Result, error) {
			if calls++; calls < 3 {
				return reconciler.Result{RequeueAfter: time.Minute}, nil
			}
			return reconciler.Result{}, nil
		}))
		s.put("x", job{Value: 1})
		s.Advance(time.Second)
		_, err := s.jobs.Delete(t.Context(), "x")
		require.NoError(t, err)
		for want := 1; want < 3; want++ {
			s.Advance(30 * time.Second)
			require.Equal(t, want, calls)
			require.Equal(t, apiclient.StateDeleting, s.get("x").Reconciliation.State)
			require.NotEmpty(t, s.get("x").Finalizers)
			s.Advance(30 * time.Second)
		}
		s.Advance(2 * time.Second)
		_, err = s.jobs.Get(t.Context(), "x")
		require.ErrorIs(t, err, apiclient.ErrNotFound)
		require.Equal(t, 3, calls)
		s.AssertPromises()
	})
}

// P4: all notifications that waited for one turn are done with it: none comes back to be looked at again.
func TestAllNotificationsThatWaitedAreTaken(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Millis: 10_000, Value: 1})
		nc, js := s.broker()
		queued := func() uint64 { return s.stream(js, "evenkeel_work").State.Msgs }
		s.Advance(time.Second)
		idle := queued()
		publisher, err := notify.NewPublisher(nc, notify.Config{})
		require.NoError(t, err)
		put, err := publisher.PublishLater(t.Context(), "jobs", "x", "resync")
		require.NoError(t, err)
		require.True(t, put)
		s.put("x", job{Value: 2})
		s.Advance(time.Second)
		require.Equal(t, idle+2, queued(), "they wait until the call is over")
		s.Advance(9 * time.Second)
		require.Len(t, s.runs("x"), 2)
		require.Equal(t, idle, queued())
	})
}

// P4: a release that got lost on the way is sent again, so that the object is not locked for as long as its holder lives.
func TestReleaseThatGotLostIsSentAgain(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Millis: 500, Value: 1})
		s.Advance(100 * time.Millisecond)
		mend := s.FailBroker(reconcilertest.BrokerFault{Replica: a.Name, Subject: ".lock.jobs."})
		s.Advance(time.Second)
		require.Len(t, s.Timeline().Only(reconciler.StepReleased), 1)
		mend()
		s.Advance(2 * time.Second)
		began := time.Now()
		require.NoError(t, a.Stop())
		require.Less(t, time.Since(began), time.Second, "a stop waits until all is released")
		began = time.Now()
		s.put("x", job{Value: 2})
		s.Start("b", reconciler.For("jobs", work))
		s.RunUntilSettled()
		require.Less(t, s.runs("x")[1].Start.Sub(began), time.Second)
	})
}

// P4: what waits at a replica for a lock is given back when the replica stops, so that it is done as soon as the lock is free.
func TestStopGivesBackWhatWaitsForALock(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", oneWorker(work))
		s.put("x", job{Millis: 20_000, Value: 1})
		s.Advance(time.Second)
		b := s.Start("b", oneWorker(work)) // a has no free worker
		s.Advance(time.Second)
		s.put("x", job{Value: 2})
		s.Advance(16 * time.Second)
		require.Len(t, s.Timeline().Only(reconciler.StepContended), 1)
		require.NoError(t, b.Stop())
		s.Advance(4 * time.Second)
		require.Len(t, s.runs("x"), 2)
		require.Less(t, s.runs("x")[1].Start.Sub(s.runs("x")[0].End), time.Second)
		s.AssertConverged()
	})
}
