package reconcilertest_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// loseNotifications removes what is queued, as no code should.
func loseNotifications(t *testing.T, w *reconcilertest.World) {
	nc, err := nats.Connect("", nats.InProcessServer(w))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	work, err := js.Stream(t.Context(), "evenkeel_work")
	require.NoError(t, err)
	require.NoError(t, work.Purge(t.Context(), jetstream.WithPurgeSubject("evenkeel.n.>")))
}

func TestDisabledResyncFindsNothing(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		enable := w.DisableResync("widgets", "gadgets")
		w.DisableResync("widgets")() // it was disabled before, and stays so
		widgets := reconcilertest.Client[spec, status](w, "widgets")
		_, err := widgets.Create(t.Context(), "lost", spec{1})
		require.NoError(t, err)
		w.Advance(time.Second)
		loseNotifications(t, w)
		w.Start("a", reconciler.For("widgets", copySize))
		w.Advance(time.Hour)
		lost, err := widgets.Get(t.Context(), "lost")
		require.NoError(t, err)
		require.Zero(t, lost.Reconciliation.ObservedGeneration, "resync has found it")
		w.AssertNothingLeft() // the lock and its session are the World's own

		enable()
		w.RunUntilSettled()
		w.AssertPromises()
		require.NotEmpty(t, w.Timeline().Only(reconciler.StepResynced))
	})
}

// A replica may be searching when resync is disabled: that search ends first.
func TestDisableResyncWaitsForTheSearchUnderWay(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		w.Fail(reconcilertest.Fault{Method: "GET", Times: 1, Delay: 8 * time.Second})
		w.Start("a", reconciler.For("widgets", copySize))
		w.Advance(5 * time.Second)
		began := time.Now()
		w.DisableResync("widgets")
		require.GreaterOrEqual(t, time.Since(began), 3*time.Second)
		w.AssertNothingLeft()
	})
}
