package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// grace makes stops short.
func grace(d time.Duration) func(*reconciler.Config) {
	return func(cfg *reconciler.Config) { cfg.Grace = d }
}

// P5: an object whose read hangs at a stop is handed over, and not put to sleep.
func TestStopHandsOverWhatItReads(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.StartWith("a", grace(time.Second), reconciler.For("jobs", work))
		s.Fail(reconcilertest.Fault{Method: http.MethodGet, Path: "/jobs/x", Delay: time.Minute})
		s.put("x", job{Value: 1})
		s.Advance(time.Second)
		require.NoError(t, a.Stop())
		require.Len(t, s.Timeline().Of("jobs", "x").Only(reconciler.StepHandedOver), 1)
		require.Empty(t, s.Timeline().Of("jobs", "x").Only(reconciler.StepRequeued))
	})
}

// P5: what a function made of its object is stored also if it returned after its context was cancelled by a stop.
func TestResultAfterAStopIsStored(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.StartWith("a", grace(time.Second), reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			<-ctx.Done()
			o.Status.Value = o.Spec.Value
			return reconciler.Result{}, nil
		}))
		s.put("x", job{Value: 1})
		s.Advance(time.Second)
		require.NoError(t, a.Stop())
		require.Equal(t, 1, s.get("x").Status.Value)
		require.Equal(t, apiclient.StateReady, s.get("x").Reconciliation.State)
		require.Empty(t, s.Timeline().Only(reconciler.StepHandedOver))
	})
}

// P5: a stop does not wait for an API that cannot store a status. The object is handed over.
func TestStopDoesNotWaitForAnAPIThatCannotStore(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.StartWith("a", grace(time.Second), reconciler.For("jobs", work))
		s.Fail(reconcilertest.Fault{Method: http.MethodPatch, Path: "/x", Status: 503})
		s.put("x", job{Value: 1})
		s.Advance(2 * time.Second)
		began := time.Now()
		require.NoError(t, a.Stop())
		require.Less(t, time.Since(began), 5*time.Second)
		require.Len(t, s.Timeline().Of("jobs", "x").Only(reconciler.StepHandedOver), 1)
	})
}

// P1: a status that the API could not store for half a minute is given up, and the object looked at as it is then.
func TestObjectIsLookedAtAgainWhenItsStatusCouldNotBeStored(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.Fail(reconcilertest.Fault{Method: http.MethodPatch, Path: "/x", Status: 500})
		s.put("x", job{Value: 1})
		s.Advance(time.Minute)
		require.NotEmpty(t, s.Timeline().Of("jobs", "x").Only(reconciler.StepRequeued))
	})
}

// P2: a turn whose lock is lost does not end as one whose lock was released: while its function runs, or while what is
// next cannot be stored.
func TestLostTurnIsNotReleased(t *testing.T) {
	for name, f := range map[string]reconciler.Func[job, done]{
		"in its function": work,
		"behind it": func(context.Context, *jobObject) (reconciler.Result, error) {
			<-time.After(3 * time.Second)
			return reconciler.Result{RequeueAfter: time.Minute}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				a := s.Start("a", reconciler.For("jobs", f))
				s.put("x", job{Millis: 30_000, Value: 1})
				s.Advance(time.Second)
				a.CutNATS()
				s.Advance(time.Minute)
				steps := s.Timeline().Of("jobs", "x").Only(reconciler.StepLost, reconciler.StepReleased, reconciler.StepHandedOver).Steps()
				require.Equal(t, []reconciler.Step{reconciler.StepLost}, steps)
				s.AssertOneWriter()
			})
		})
	}
}

// P1: a result that is refused because of a higher fence, though the lock stands, is made once more, under a fence above
// that. If the lock has passed on, its next holder does it.
func TestRefusedResultIsMadeAgainByWhoHoldsTheLock(t *testing.T) {
	for name, passed := range map[string]bool{"the lock stands": false, "the lock has passed on": true} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				s.Start("a", reconciler.For("jobs", work))
				s.put("x", job{Millis: 1000, Value: 1})
				s.Advance(500 * time.Millisecond)
				_, err := s.jobs.PatchStatus(t.Context(), "x", apiclient.StatusPatch{UID: s.get("x").UID, Fence: 1 << 60})
				require.NoError(t, err)
				if passed {
					nc, _ := s.broker()
					_, err := nc.Request("$KV.evenkeel_locks.lock."+subject.LockKey("jobs", "x"), []byte(`{"session":"other","holder":"other"}`), time.Second)
					require.NoError(t, err)
				}
				s.Advance(700 * time.Millisecond)
				require.Len(t, s.Timeline().Only(reconciler.StepFenced), 1)
				if passed {
					require.Empty(t, s.Timeline().Only(reconciler.StepRequeued))
					return
				}
				s.Advance(5 * time.Second)
				require.Equal(t, 1, s.get("x").Status.Value)
			})
		})
	}
}

// P6: objects that could not be read during a long outage of the API are worked on soon after it, however often they were
// tried: the outage was not their fault.
func TestLongOutageOfTheAPIIsNotTheObjectsFault(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.Advance(2 * time.Second)
		mend := s.Fail(reconcilertest.Fault{Path: "/jobs/x", Status: 503})
		for i := range 5 {
			s.put(fmt.Sprint("x", i), job{Value: 1})
		}
		s.Advance(time.Hour)
		mend()
		s.Advance(45 * time.Second)
		s.AssertConverged()
	})
}
