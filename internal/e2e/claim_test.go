package e2e

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// raise records a fence for x that is above that of every lock.
func (s scenario) raise() {
	s.t.Helper()
	s.record(1 << 60)
}

func (s scenario) record(fence uint64) {
	s.t.Helper()
	_, err := s.jobs.PatchStatus(s.t.Context(), "x", apiclient.StatusPatch{UID: s.get("x").UID, Fence: fence})
	require.NoError(s.t, err)
}

// succeed has b take x over from a, which dies with a checkpoint on its way, and calls f when b has read x. deliver lets
// the checkpoint arrive.
func (s scenario) succeed(f func(deliver func() []int), run reconciler.Func[job, done]) {
	s.t.Helper()
	p := &proxy{api: s.API(), hold: statusWrites}
	a := s.StartWith("a", p.install, reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
		o.Status.By = "a"
		return reconciler.Result{}, reconciler.Checkpoint(ctx, o)
	}))
	s.put("x", job{Value: 1})
	s.Advance(time.Second)
	a.Kill()
	read := &afterRead{path: "/jobs/x", f: func() { f(p.deliver) }}
	s.StartWith("b", read.install, reconciler.For("jobs", run))
	s.Advance(20 * time.Second)
	require.Nil(s.t, read.f)
}

func (s scenario) only(steps ...reconciler.Step) []reconciler.Step {
	return s.Timeline().By("b").Of("jobs", "x").Only(steps...).Steps()
}

// P2: what a former holder sent, and what arrives between the next holder's read and its claim, is seen by its function.
func TestWriteThatArrivesBeforeTheClaimIsSeen(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		saw := ""
		s.succeed(func(deliver func() []int) { require.Equal(t, []int{http.StatusOK}, deliver()) },
			func(_ context.Context, o *jobObject) (reconciler.Result, error) {
				saw = o.Status.By
				return reconciler.Result{}, nil
			})
		require.Equal(t, "a", saw)
		require.Equal(t, []reconciler.Step{reconciler.StepClaimed, reconciler.StepStarted}, s.only(reconciler.StepClaimed, reconciler.StepStarted, reconciler.StepRequeued))
	})
}

// P2, P6: a fence that is raised between the read and the claim is outranked at once while the lock stands.
func TestFenceRaisedBeforeTheClaimIsOutranked(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.succeed(func(func() []int) { s.raise() }, work)
		claimed := s.Timeline().Only(reconciler.StepClaimed)
		require.Len(t, claimed, 1)
		require.Greater(t, claimed[0].Fence, uint64(1<<60))
		require.Equal(t, 1, s.get("x").Status.Value)
		require.Empty(t, s.only(reconciler.StepRequeued))
	})
}

// P2: a fence that is raised by the holder that the lock has passed to is not outranked.
func TestFenceOfTheNextHolderIsNotOutranked(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		nc, _ := s.broker()
		s.succeed(func(func() []int) {
			s.raise()
			_, err := nc.Request("$KV.evenkeel_locks.lock."+subject.LockKey("jobs", "x"), []byte(`{"session":"other","holder":"other"}`), time.Second)
			require.NoError(t, err)
			_, err = nc.Request("$KV.evenkeel_locks.session.other", []byte(`{}`), time.Second)
			require.NoError(t, err)
		}, work)
		steps := s.only(reconciler.StepClaimed, reconciler.StepStarted, reconciler.StepRequeued)
		require.NotEmpty(t, steps, "the look is still owed")
		require.Equal(t, reconciler.StepRequeued, steps[0])
		require.Contains(t, s.Timeline().Only(reconciler.StepTrouble).String(), "confirm the lock")
	})
}

// P2: of two holders with the same fence, because a bucket that went back in time gave it twice, the second claims the
// object with a higher one.
func TestEqualFenceIsOutranked(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		read := &afterRead{path: "/jobs/x", before: true, f: func() {
			locked := s.Timeline().Of("jobs", "x").Only(reconciler.StepLocked)
			s.record(locked[len(locked)-1].Fence)
		}}
		s.StartWith("b", read.install, reconciler.For("jobs", work))
		s.put("x", job{Value: 1})
		s.Advance(time.Second)
		require.Len(t, s.only(reconciler.StepClaimed), 1)
		require.Equal(t, 1, s.get("x").Status.Value)
	})
}

// An object that is gone when it is claimed is owed nothing.
func TestObjectThatIsGoneBeforeTheClaimIsDone(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.succeed(func(func() []int) {
			_, err := s.jobs.Delete(t.Context(), "x")
			require.NoError(t, err)
		}, work)
		require.Empty(t, s.only(reconciler.StepStarted, reconciler.StepRequeued, reconciler.StepTrouble))
	})
}

// An object that others write to all the time is tried again later, and holds no worker.
func TestClaimIsGivenUpWhileOthersWrite(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		value := 1
		p := &proxy{api: s.API(), hold: statusWrites}
		a := s.StartWith("a", p.install, reconciler.For("jobs", work))
		s.put("x", job{Value: value})
		s.Advance(time.Second)
		a.Kill()
		read := &afterRead{path: "/jobs/x"}
		reads := 0 // of the turn that gives up
		read.f = func() {
			value++
			if len(s.only(reconciler.StepRequeued)) == 0 {
				reads++
			}
			s.put("x", job{Value: value})
			if value < 9 {
				read.again = true
			}
		}
		s.StartWith("b", read.install, reconciler.For("jobs", work))
		s.Advance(30 * time.Second)
		require.Contains(t, s.only(reconciler.StepRequeued), reconciler.StepRequeued)
		require.Equal(t, 5, reads)
		require.Equal(t, 9, s.get("x").Status.Value)
	})
}

// P5, P1: a claim that is not answered is no end: at a stop the object is handed over, else it is tried again.
func TestClaimThatFailsIsTriedAgain(t *testing.T) {
	for name, fault := range map[string]reconcilertest.Fault{
		"refused":  {Times: 1, Status: 500},
		"stopping": {Times: 1, Delay: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				fault.Replica, fault.Method, fault.Path = "b", http.MethodPatch, "/x"
				s.Fail(fault)
				a := s.Start("a", reconciler.For("jobs", work))
				s.put("x", job{Millis: 5000, Value: 1})
				s.Advance(time.Second)
				a.Kill()
				b := s.StartWith("b", grace(time.Second), reconciler.For("jobs", work))
				if name == "refused" {
					s.Advance(30 * time.Second)
					require.Equal(t, 1, s.get("x").Status.Value)
					return
				}
				for limit := time.Now().Add(time.Minute); s.only(reconciler.StepLocked) == nil; s.Advance(100 * time.Millisecond) {
					require.True(t, time.Now().Before(limit))
				}
				require.NoError(t, b.Stop())
				require.Len(t, s.only(reconciler.StepHandedOver), 1)
				require.Empty(t, s.only(reconciler.StepRequeued))
			})
		})
	}
}

// A long run shows on its object also if it began with a claim, which is a write.
func TestLongRunAfterATakeoverShows(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Millis: 60_000, Value: 1})
		s.Advance(time.Second)
		a.Kill()
		s.Start("b", reconciler.For("jobs", work))
		s.Advance(30 * time.Second)
		began := s.Timeline().By("b").Runs()[0].Start
		require.NotNil(t, s.get("x").Reconciliation.RunningSince)
		require.WithinDuration(t, began, *s.get("x").Reconciliation.RunningSince, time.Second)
		require.Equal(t, apiclient.StateReconciling, s.get("x").Reconciliation.State)
		s.RunUntilSettled()
		require.Empty(t, s.Timeline().By("b").Only(reconciler.StepTrouble))
	})
}

// A run that follows a claim knows that there is nothing left to claim.
func TestClaimIsMadeOnce(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Millis: 1000, Value: 1})
		s.RunUntilSettled()
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
		s.Advance(500 * time.Millisecond)
		a.Kill()
		b := s.Start("b", reconciler.For("jobs", work))
		for range 3 {
			s.Advance(30 * time.Second)
			require.NoError(t, b.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
		}
		s.Advance(10 * time.Second)
		require.Len(t, s.only(reconciler.StepClaimed), 1)
		require.Len(t, s.only(reconciler.StepStarted), 4)
	})
}
