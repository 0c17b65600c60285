package explore

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// The promises hold for each disturbance at each message of a turn. The function stores a checkpoint, and it and its cleanup
// fail once for each generation; but they succeed at once where the object is changed, because the retry of a failure would
// find a change that was lost. EVENKEEL_DISTURB=all, as make integration sets it, tries every disturbance.
func TestPromisesHoldWhateverHappensToAMessage(t *testing.T) {
	var mu sync.Mutex
	succeeds, failed := false, map[int64]bool{} // by generation
	fail := func(o *jobObject) error {
		mu.Lock()
		defer mu.Unlock()
		if succeeds || failed[o.Generation] {
			return nil
		}
		failed[o.Generation] = true
		return errors.New("a passing fault")
	}
	create := func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
		if o.Status.Value != o.Spec.Value {
			o.Status = done{Value: o.Spec.Value}
			if err := reconciler.Checkpoint(ctx, o); err != nil {
				return reconciler.Result{}, err
			}
		}
		return reconciler.Result{}, fail(o)
	}
	cleanup := func(_ context.Context, o *jobObject) (reconciler.Result, error) { return reconciler.Result{}, fail(o) }
	with := []reconcilertest.Disturbance{reconcilertest.Change, reconcilertest.Recreate, reconcilertest.Delay}
	if os.Getenv("EVENKEEL_DISTURB") == "all" {
		with = nil
	}
	put := func(t *testing.T, w *reconcilertest.World, value int) {
		_, err := reconcilertest.Client[job, done](w, "jobs").Put(t.Context(), "x", job{Value: value})
		require.NoError(t, err)
	}
	made := reconcilertest.Scenario{
		Setup: func() { succeeds, failed = false, map[int64]bool{} },
		Controllers: func() []reconciler.Controller {
			return []reconciler.Controller{reconciler.ForWithCleanup("jobs", create, cleanup)}
		},
		Do: func(t *testing.T, w *reconcilertest.World) { put(t, w, 1) },
		Change: func(t *testing.T, w *reconcilertest.World) {
			jobs := reconcilertest.Client[job, done](w, "jobs")
			for o, err := range jobs.All(t.Context()) {
				require.NoError(t, err)
				if _, err := jobs.Put(t.Context(), o.Name, job{Value: 2}); err != nil {
					require.ErrorIs(t, err, apiclient.ErrConflict) // it is being deleted
				}
			}
		},
		Check: func(t *testing.T, w *reconcilertest.World) {
			for o, err := range reconcilertest.Client[job, done](w, "jobs").All(t.Context()) {
				require.NoError(t, err)
				require.Equal(t, o.Spec.Value, o.Status.Value)
			}
		},
	}
	deleted := made
	deleted.Before = func(t *testing.T, w *reconcilertest.World) {
		put(t, w, 1)
		w.RunUntilSettled()
	}
	deleted.Do = func(t *testing.T, w *reconcilertest.World) {
		_, err := reconcilertest.Client[job, done](w, "jobs").Delete(t.Context(), "x")
		require.NoError(t, err)
	}
	changed := deleted
	changed.Setup = func() { succeeds = true }
	changed.Do = func(t *testing.T, w *reconcilertest.World) { put(t, w, 3) }
	for name, s := range map[string]reconcilertest.Scenario{"created": made, "changed": changed, "deleted": deleted} {
		t.Run(name, func(t *testing.T) { reconcilertest.DisturbEverywhere(t, s, with...) })
	}
}
