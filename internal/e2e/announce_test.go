package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// A run that takes long shows on its object; a short one costs no second write.
func TestLongRunsShow(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.put("long", job{Millis: 10_000, Value: 1})
		s.put("short", job{Millis: 1000, Value: 1})
		s.Advance(5 * time.Second)
		require.Equal(t, apiclient.StateReconciling, s.get("long").Reconciliation.State)
		s.RunUntilSettled()
		require.Equal(t, apiclient.StateReady, s.get("long").Reconciliation.State)
		require.Len(t, s.Timeline().Of("jobs", "long").Only(reconciler.StepPatched), 2)
		require.Len(t, s.Timeline().Of("jobs", "short").Only(reconciler.StepPatched), 1)
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "long", "a watch fired"))
		s.Advance(5 * time.Second)
		require.Equal(t, apiclient.StateReconciling, s.get("long").Reconciliation.State)
		s.Advance(10 * time.Second)
		require.Equal(t, apiclient.StateReady, s.get("long").Reconciliation.State, "also if nothing else has changed")
	})
}

// A look that somebody asked for at a settled object is not forgotten when its replica dies and the broker loses all it had.
func TestNothingIsLostOfALookThatHadBegun(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		a := s.Start("a", c)
		s.put("x", job{Millis: 10_000, Value: 1})
		s.RunUntilSettled()
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
		s.Advance(5 * time.Second)
		a.Kill()
		s.StopBroker()
		s.StartBroker()
		require.Equal(t, apiclient.StateReconciling, s.get("x").Reconciliation.State)
		s.Start("b", c)
		s.Advance(2 * time.Minute)
		require.Len(t, s.runs("x"), 3)
		require.Equal(t, apiclient.StateReady, s.get("x").Reconciliation.State)
		s.AssertOneWriter()
	})
}
