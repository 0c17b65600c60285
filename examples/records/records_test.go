package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// A record is set, set again after its change, and removed, wherever the replica dies in between.
func TestRecordIsKeptWhereverTheReplicaDies(t *testing.T) {
	var zone *memoryZone
	deaths := reconcilertest.CrashEverywhere(t, reconcilertest.Scenario{
		Setup:       func() { zone = newMemoryZone() },
		Controllers: func() []reconciler.Controller { return []reconciler.Controller{Controller(zone)} },
		Do: func(t *testing.T, w *reconcilertest.World) {
			records := reconcilertest.Client[Spec, Status](w, "records")
			for _, host := range []string{"www", "mail"} {
				_, err := records.Create(t.Context(), host, Spec{Host: host, Address: "192.0.2.1"})
				require.NoError(t, err)
			}
			w.Advance(time.Second)
			_, err := records.Put(t.Context(), "www", Spec{Host: "www", Address: "192.0.2.2"})
			require.NoError(t, err)
			_, err = records.Delete(t.Context(), "mail")
			require.NoError(t, err)
		},
		Check: func(t *testing.T, _ *reconcilertest.World) {
			require.Equal(t, map[string]string{"www": "192.0.2.2"}, zone.hosts())
		},
	})
	t.Logf("%d places of death", deaths)
}

// What the zone answers decides what is next; no broker is needed to see it.
func TestWhatIsNextAfterAnError(t *testing.T) {
	for err, state := range map[error]apiclient.State{
		nil:                      apiclient.StateReady,
		ErrQuota:                 apiclient.StateWaiting,
		ErrForeign:               apiclient.StateStalled,
		errors.New("no network"): apiclient.StateRetrying,
	} {
		zone := newMemoryZone()
		zone.err = err
		out := reconcilertest.Call(t, set(zone), &Record{Spec: Spec{Host: "www", Address: "192.0.2.1"}})
		require.Equal(t, state, out.Object.Reconciliation.State, "%v", err)
		require.Equal(t, err == nil, out.StatusChanged)
	}
}

// A zone that is down for an hour is tried again with growing pauses, and then the record is there.
func TestZoneThatIsDownIsTriedAgain(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		zone := newMemoryZone()
		zone.fail(errors.New("down"))
		w.Start("a", Controller(zone))
		records := reconcilertest.Client[Spec, Status](w, "records")
		_, err := records.Create(context.Background(), "www", Spec{Host: "www", Address: "192.0.2.1"})
		require.NoError(t, err)
		w.Advance(time.Hour)
		require.Empty(t, zone.hosts())
		require.Less(t, len(w.Timeline().Runs()), 60)
		zone.fail(nil)
		w.Advance(5 * time.Minute)
		require.Len(t, zone.hosts(), 1)
	})
}
