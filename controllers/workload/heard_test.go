package workload

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// slowly has the API take a second for each status of an instance: longer than changes are gathered for, see telling.
func (w *world) slowly() {
	w.Fail(reconcilertest.Fault{Method: http.MethodPatch, Path: "/v1/objects/" + Instances + "/", Delay: time.Second})
}

// R38: a rollout goes on as soon as an instance is ready, however long it takes to store that it is: it is not found out later,
// when the definition looks by itself.
func TestRolloutHearsOfEachInstance(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.slowly()
		w.leads(t, "main", stand(t).cluster)
		_, err := w.definitions.Put(ctx, "row", DefinitionSpec{Manifests: one, Rollout: Rollout{AtOnce: 1, Patience: 600}})
		require.NoError(t, err)
		const n = 10
		for k := range n {
			_, err := w.instances.Put(ctx, fmt.Sprintf("row-%d", k), InstanceSpec{Definition: "row", Runtime: "main"})
			require.NoError(t, err)
		}
		w.Advance(time.Minute)
		_, err = w.definitions.Patch(ctx, "row", map[string]any{"manifests": one + "data: {colour: red}\n"})
		require.NoError(t, err)
		// Each instance stores twice, what it is going to apply and that it is ready, and what it tells is gathered. One that was
		// not heard of takes at least the 15 seconds after which the definition looks by itself.
		w.Advance(n * (2*time.Second + 2*gathered))
		d, err := w.definitions.Get(ctx, "row")
		require.NoError(t, err)
		require.True(t, d.Ready())
		require.Equal(t, d.Generation, d.Status.Rollout.Generation)
		require.Equal(t, n, d.Status.Rollout.Updated)
	})
}

// What waits for an instance to be gone hears of it, however long it takes to store that it is.
func TestOthersHearThatAnInstanceIsGone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.leads(t, "shop", stand(t).cluster)
		_, err := w.definitions.Put(ctx, "shop", DefinitionSpec{Manifests: one})
		require.NoError(t, err)
		_, err = w.instances.Put(ctx, "shop", InstanceSpec{Definition: "shop", Runtime: "shop", OnDelete: OnDeleteAbandon})
		require.NoError(t, err)
		w.Advance(time.Minute)
		_, err = w.definitions.Delete(ctx, "shop")
		require.NoError(t, err)
		_, err = w.runtimes.Delete(ctx, "shop")
		require.NoError(t, err)
		w.Advance(time.Second)
		w.slowly()
		_, err = w.instances.Delete(ctx, "shop")
		require.NoError(t, err)
		w.Advance(time.Second + 2*gathered)
		require.ErrorIs(t, get(ctx, w.instances), apiclient.ErrNotFound)
		require.ErrorIs(t, get(ctx, w.definitions), apiclient.ErrNotFound)
		require.ErrorIs(t, get(ctx, w.runtimes), apiclient.ErrNotFound)
	})
}
