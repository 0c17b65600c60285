package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// P4: a function that ignores its deadline keeps its worker for the grace period; what waits then begins in that instant.
func TestWorkerOfAStubbornFunctionIsFreeAtOnce(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := oneWorker(func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if o.Name == "slow" {
				return stubborn(ctx, o)
			}
			return work(ctx, o)
		})
		c.Timeout = 3 * time.Second
		s.StartWith("a", func(cfg *reconciler.Config) { cfg.Grace = 4 * time.Second }, c)
		s.put("slow", job{Millis: 60_000})
		s.Advance(time.Second)
		s.put("x", job{Value: 1})
		s.Advance(30 * time.Second)
		waited := s.runs("x")[0].Start.Sub(s.runs("slow")[0].Start)
		s.Advance(time.Minute) // the function must end before the test does
		require.Equal(t, 8*time.Second, waited.Truncate(100*time.Millisecond), "the deadline, the second after it, the grace period")
	})
}

// P4: all kinds begin when the replica has its session, and not only the first.
func TestAllKindsBeginWithTheSession(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		tasks := reconcilertest.Client[job, done](s.World, "tasks")
		s.put("x", job{Value: 1})
		_, err := tasks.Put(t.Context(), "x", job{Value: 1})
		require.NoError(t, err)
		mend := s.FailBroker(reconcilertest.BrokerFault{Subject: ".session."})
		s.Start("a", reconciler.For("jobs", work), reconciler.For("tasks", work))
		s.Advance(20 * time.Second)
		require.Empty(t, s.Timeline().Runs())
		mend()
		s.Advance(20 * time.Second)
		session := s.Timeline().Only(reconciler.StepRunning)
		require.Len(t, session, 1)
		for _, kind := range []string{"jobs", "tasks"} {
			runs := s.Timeline().Of(kind, "x").Runs()
			require.Len(t, runs, 1)
			require.Less(t, runs[0].Start.Sub(session[0].Time), 100*time.Millisecond, kind)
		}
	})
}
