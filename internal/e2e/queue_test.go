package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

func name(i int) string { return fmt.Sprintf("o%d", i) }

// broker looks into the scenario's broker.
func (s scenario) broker() (*nats.Conn, jetstream.JetStream) {
	s.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(s.World))
	require.NoError(s.t, err)
	s.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(s.t, err)
	return nc, js
}

func (s scenario) stream(js jetstream.JetStream, name string) *jetstream.StreamInfo {
	s.t.Helper()
	stream, err := js.Stream(s.t.Context(), name)
	require.NoError(s.t, err)
	return stream.CachedInfo()
}

// R2: however the spec is changed, a run follows that sees it.
func TestEveryWayOfChangingASpecIsFollowedByARun(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		changes := map[string]func() (*jobObject, error){
			"create":  func() (*jobObject, error) { return s.jobs.Create(t.Context(), "x", job{Value: 1}) },
			"replace": func() (*jobObject, error) { return s.jobs.Put(t.Context(), "x", job{Value: 2}) },
			"edit": func() (*jobObject, error) {
				x := s.get("x")
				x.Spec.Value++
				return s.jobs.Put(t.Context(), "x", x.Spec, apiclient.IfRevision(x.Revision))
			},
		}
		for i, how := range []string{"create", "replace", "edit"} {
			x, err := changes[how]()
			require.NoError(t, err)
			s.Advance(time.Second)
			runs := s.runs("x")
			require.Len(t, runs, i+1, how)
			require.Equal(t, x.Generation, runs[i].Generation)
			require.Equal(t, i+1, s.get("x").Status.Value)
		}
	})
}

// R9: what was worked off leaves nothing on the server but the sentinel, and what is set aside is bounded.
func TestNothingGrowsOnTheServer(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.ForWithCleanup("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if reconciler.Current(ctx).Number <= o.Spec.Value%3 {
				return reconciler.Result{}, errors.New("a passing fault")
			}
			return work(ctx, o)
		}, work)
		a, b := s.Start("a", c), s.Start("b", c)
		nc, js := s.broker()
		for i := range 200 {
			s.put(name(i), job{Millis: 100, Value: i})
		}
		s.Advance(time.Second)
		for i := range 50 {
			_, err := s.jobs.Delete(t.Context(), name(i))
			require.NoError(t, err)
			s.put(name(100+i), job{Millis: 100, Value: 500 + i})
			require.NoError(t, a.Runner.Notify(t.Context(), "jobs", name(100+i), "a watch fired"))
		}
		for i := range notify.HistoryPerSubject + 100 {
			require.NoError(t, nc.Publish(fmt.Sprintf("evenkeel.n.jobs.poison.%d", i), nil))
		}
		s.Advance(time.Minute)
		s.RunUntilSettled()
		s.AssertConverged()
		require.NoError(t, a.Stop())
		require.NoError(t, b.Stop())
		s.Advance(lock.DefaultTTL + time.Second) // as long as it is remembered that a session was closed

		require.EqualValues(t, 1, s.stream(js, "evenkeel_work").State.Msgs, "the sentinel")
		require.Zero(t, s.stream(js, "KV_evenkeel_locks").State.Msgs)
		history := s.stream(js, "evenkeel_history")
		require.EqualValues(t, notify.HistoryPerSubject, history.State.Msgs)
		require.EqualValues(t, notify.HistoryBytes, history.Config.MaxBytes)
	})
}

// R25: an object that never stops changing keeps its place in the queue, and its turn comes with those of the others.
func TestObjectThatAlwaysChangesGetsItsTurn(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		c.Workers = 1
		s.Start("a", c)
		for i := range 200 {
			s.put(name(i), job{Millis: 100, Value: 1})
		}
		for i := range 3000 {
			s.put("hot", job{Millis: 100, Value: i})
			s.Advance(20 * time.Millisecond)
			if i%5 == 0 { // as fast as they are worked off: the backlog stands
				s.put(name(i/5), job{Millis: 100, Value: 2})
			}
		}
		hot := s.runs("hot")
		others := len(s.Timeline().Runs()) - len(hot)
		require.GreaterOrEqual(t, len(hot), 2, "each time that the 200 before it are done")
		require.Greater(t, others, 500, "and the others' turns come")
		s.RunUntilSettled()
		s.AssertConverged()
		require.Equal(t, 2999, s.get("hot").Status.Value)
	})
}

// R7: hundreds of changes of one object cost the others no more than one run does.
func TestHotObjectHoldsNobodyUp(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		c.Workers = 1
		s.Start("a", c)
		s.put("hot", job{Millis: 1000})
		s.Advance(500 * time.Millisecond)
		for i := range 500 {
			s.put("hot", job{Millis: 1000, Value: i})
		}
		began := time.Now()
		s.put("other", job{Value: 1})
		s.Advance(3 * time.Second)
		other := s.runs("other")
		require.Len(t, other, 1)
		require.LessOrEqual(t, other[0].Start.Sub(began), 1600*time.Millisecond)
		require.Len(t, s.runs("hot"), 2)
		require.Equal(t, 499, s.get("hot").Status.Value)
	})
}

// R26: notifications far beyond any buffer, for one object that is locked elsewhere and for many that are not, block
// neither the one worker nor the stop.
func TestFloodOfNotificationsBlocksNothing(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		c.Workers = 1
		a := s.Start("a", c)
		s.put("held", job{Millis: 60_000, Value: 1})
		s.Advance(time.Second)
		b := s.Start("b", c) // a's worker is busy: everything is b's
		s.Advance(time.Second)
		flood := func() {
			for i := range 500 {
				require.NoError(t, b.Runner.Notify(t.Context(), "jobs", "held", "a watch fired"))
				if i%10 == 0 {
					s.Advance(time.Millisecond)
				}
			}
			for i := range 500 {
				s.put(name(i), job{Value: i})
			}
		}
		flood()
		s.Advance(30 * time.Second)
		require.Len(t, s.runs("held"), 1, "it is still locked")
		require.NotEmpty(t, s.Timeline().By("b").Of("jobs", "held").Only(reconciler.StepContended))
		require.Equal(t, 499, s.get(name(499)).Status.Value, "what waits for a lock needs no worker")
		flood()
		s.RunUntilSettled()
		s.AssertConverged()
		s.AssertOneWriter()
		require.Len(t, s.runs("held"), 2)
		flood()
		require.NoError(t, b.Stop())
		require.NoError(t, a.Stop())
	})
}

// Resync adds no work where there is some: not for what is queued, nor for what is being worked on.
func TestResyncLeavesAloneWhatIsNotForgotten(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		c.Workers = 1
		s.StartWith("a", func(cfg *reconciler.Config) { cfg.Resync = 20 * time.Second }, c)
		s.put("x", job{Millis: 200_000, Value: 1})
		s.Advance(time.Second)
		s.put("x", job{Millis: 1000, Value: 2})
		s.put("y", job{Value: 1})
		s.RunUntilSettled()
		require.Len(t, s.runs("x"), 2)
		require.Len(t, s.runs("y"), 1)
		require.Empty(t, s.Timeline().Only(reconciler.StepResynced))
	})
}

// Resync adds no work where there has been some since it looked: an object that was forgotten may have been changed, and so
// reconciled, meanwhile.
func TestResyncLooksTwice(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		require.NoError(t, s.Start("a", c).Stop())
		s.put("x", job{Value: 1})
		s.put("y", job{Value: 1})
		s.Advance(time.Second)
		s.StopBroker() // and with it what was queued
		s.StartBroker()
		s.Advance(time.Minute)
		s.Fail(reconcilertest.Fault{Replica: "b", Method: http.MethodGet, Path: "/jobs/x", Delay: 5 * time.Second, Times: 1})
		s.Start("b", c)
		s.Advance(3 * time.Second)
		s.put("x", job{Value: 2})
		s.RunUntilSettled()
		require.Len(t, s.runs("x"), 1)
		found := s.Timeline().Only(reconciler.StepResynced)
		require.Len(t, found, 1)
		require.Equal(t, "y", found[0].Name)
	})
}

// A search whose object cannot be read because the API is away ends, and begins anew when it is back: to queue all that was
// listed would ask for turns that find nothing to do.
func TestResyncQueuesNothingWhileTheAPIIsAway(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		require.NoError(t, s.Start("a", c).Stop())
		for _, name := range []string{"x", "y"} {
			s.put(name, job{Value: 1})
		}
		s.Advance(time.Second)
		s.StopBroker() // and with it what was queued
		s.StartBroker()
		s.Advance(time.Minute)
		mend := s.Fail(reconcilertest.Fault{Method: http.MethodGet, Path: "/jobs/", Status: http.StatusServiceUnavailable})
		s.Start("b", c)
		s.Advance(30 * time.Second)
		require.NotEmpty(t, s.Timeline().Only(reconciler.StepTrouble))
		require.Empty(t, s.Timeline().Only(reconciler.StepResynced))
		mend()
		s.Advance(time.Minute)
		require.Len(t, s.Timeline().Only(reconciler.StepResynced), 2)
		s.AssertConverged()
	})
}
