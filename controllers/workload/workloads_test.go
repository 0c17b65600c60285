package workload

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// A workload is no way to somebody else's definition or instance of its name, neither to change nor to delete it.
func TestWorkloadTakesNothingForeign(t *testing.T) {
	for text, foreign := range map[string]func(t *testing.T, h *hand) error{
		"there is a definition web already, and it is not this workload's": func(t *testing.T, h *hand) error {
			_, err := h.definitions.Put(t.Context(), "web", DefinitionSpec{Manifests: "theirs"})
			return err
		},
		"there is an instance web already, and it is not this workload's": func(t *testing.T, h *hand) error {
			_, err := h.instances.Put(t.Context(), "web", InstanceSpec{Definition: "theirs", Runtime: "main"})
			return err
		},
	} {
		t.Run(text, func(t *testing.T) {
			h := byHand(t)
			require.NoError(t, foreign(t, h))
			w := &Workload{Name: "web", UID: "w", Spec: WorkloadSpec{Manifests: "ours", Runtime: "main"}}
			o := reconcilertest.Call(t, h.reconcileWorkload, w)
			require.Equal(t, apiclient.StateWaiting, o.Object.Reconciliation.State)
			require.Equal(t, text, o.Object.Reconciliation.LastError)
			o = reconcilertest.Call(t, h.cleanupWorkload, w)
			require.NoError(t, o.Err, "there is nothing of it")
			d, err1 := h.definitions.Get(t.Context(), "web")
			in, err2 := h.instances.Get(t.Context(), "web")
			if err1 == nil {
				require.Equal(t, "theirs", d.Spec.Manifests)
			}
			if err2 == nil {
				require.Equal(t, "theirs", in.Spec.Definition)
			}
			require.NotEqual(t, err1 == nil, err2 == nil, "nothing was made, and nothing deleted")
		})
	}
}

// A workload passes on what it says, tells how its instance is, and goes in order: the instance, then the definition.
func TestWorkloadIsADefinitionAndAnInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := byHand(t)
		w := &Workload{Name: "web", UID: "w", Spec: WorkloadSpec{
			Manifests: "ours", Runtime: "main", Namespace: "home", Labels: map[string]string{"team": "a"}, Drift: DriftReport,
		}}
		o := reconcilertest.Call(t, h.reconcileWorkload, w)
		require.Equal(t, "the instance is Pending", o.Object.Reconciliation.LastError)
		in, err := h.instances.Get(t.Context(), "web")
		require.NoError(t, err)
		require.Equal(t, InstanceSpec{Definition: "web", Runtime: "main", Namespace: "home", Labels: w.Spec.Labels, Drift: DriftReport}, in.Spec)
		in.Status = InstanceStatus{Namespace: "home", Ready: "1/2", Waiting: "no room"}
		in.Reconciliation = apiclient.Reconciliation{State: apiclient.StateWaiting, ObservedGeneration: 1}
		in = keeps(h, h.instances, in)
		o = reconcilertest.Call(t, h.reconcileWorkload, w)
		require.Equal(t, "no room", o.Object.Reconciliation.LastError)
		require.Equal(t, WorkloadStatus{Made: Made{1, 1, 1}, Namespace: "home", Ready: "1/2", Waiting: "no room"}, o.Object.Status)
		in.Reconciliation.State = apiclient.StateReady
		in.Status.Waiting = ""
		in = keeps(h, h.instances, in)
		o = reconcilertest.Call(t, h.reconcileWorkload, w)
		require.Equal(t, "the instance has generation 0 of the definition, and is to have 1", o.Object.Reconciliation.LastError)
		in.Status.DefinitionGeneration = 1
		keeps(h, h.instances, in)
		o = reconcilertest.Call(t, h.reconcileWorkload, w)
		require.Equal(t, apiclient.StateReady, o.Object.Reconciliation.State)
		writes := h.writes
		o = reconcilertest.Call(t, h.reconcileWorkload, o.Object)
		require.Equal(t, apiclient.StateReady, o.Object.Reconciliation.State)
		require.Equal(t, writes, h.writes, "there is nothing to write")
		requireAbout(t, time.Minute, next(o))

		held := func(add, remove []string) {
			_, err := h.instances.PatchStatus(t.Context(), "web", apiclient.StatusPatch{UID: in.UID, Fence: 1, AddFinalizers: add, RemoveFinalizers: remove})
			require.NoError(t, err)
		}
		held([]string{"test"}, nil)
		d, err := h.definitions.Get(t.Context(), "web")
		require.NoError(t, err)
		_, err = h.definitions.PatchStatus(t.Context(), "web", apiclient.StatusPatch{UID: d.UID, Fence: 1, AddFinalizers: []string{"test"}})
		require.NoError(t, err)
		for range 2 {
			o = reconcilertest.Call(t, h.cleanupWorkload, w)
			require.Equal(t, "waiting for the instance to be gone", o.Object.Reconciliation.LastError)
		}
		d, err = h.definitions.Get(t.Context(), "web")
		require.NoError(t, err)
		require.Nil(t, d.DeletedAt, "the instance goes first")
		held(nil, []string{"test"})
		for range 2 {
			o = reconcilertest.Call(t, h.cleanupWorkload, w)
			require.Equal(t, "waiting for the definition to be gone", o.Object.Reconciliation.LastError)
		}
		_, err = h.definitions.PatchStatus(t.Context(), "web", apiclient.StatusPatch{UID: d.UID, Fence: 1, RemoveFinalizers: []string{"test"}})
		require.NoError(t, err)
		require.NoError(t, reconcilertest.Call(t, h.cleanupWorkload, w).Err)
	})
}
