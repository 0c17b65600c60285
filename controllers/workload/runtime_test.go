package workload

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// A runtime says how its cluster is, and since when; its instances hear when it is back or was declared anew, and at no other time.
func TestRuntimeTellsHowItsClusterIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := byHand(t)
		there := &far{version: "v1.36.3", uid: "a", cut: errCut}
		r := h.leads("main", there.connect(t))
		h.instance("one", "web", InstanceStatus{})
		look := func() reconcilertest.Outcome[RuntimeSpec, RuntimeStatus] {
			t.Helper()
			time.Sleep(time.Minute)
			o := reconcilertest.Call(t, h.reconcileRuntime, r)
			r = o.Object
			return o
		}
		back := []string{"workload-instances/one: the cluster of runtime main answers"}
		o := look()
		require.Equal(t, apiclient.StateWaiting, r.Reconciliation.State)
		require.Contains(t, r.Reconciliation.LastError, "the cluster does not answer: ")
		requireAbout(t, lookedAt/2, next(o))
		since := time.Now().UTC()
		require.False(t, r.Status.Healthy)
		require.Contains(t, r.Status.Message, "cut off")
		require.NotNil(t, r.Status.Since)
		require.WithinDuration(t, since, *r.Status.Since, 0)
		look()
		require.WithinDuration(t, since, *r.Status.Since, 0, "it is as it was")
		require.Empty(t, h.heard())

		there.cut = nil
		o = look()
		since = time.Now().UTC()
		require.Equal(t, RuntimeStatus{Healthy: true, Version: "v1.36.3", Cluster: "a", Since: &since}, r.Status)
		require.Equal(t, back, h.heard())
		requireAbout(t, lookedAt, next(o))
		look()
		require.WithinDuration(t, since, *r.Status.Since, 0)
		require.Empty(t, h.heard())
		r.Generation++
		look()
		require.Equal(t, back, h.heard(), "it was declared anew")

		there.cut = errCut
		look()
		since = time.Now().UTC()
		require.False(t, r.Status.Healthy)
		require.WithinDuration(t, since, *r.Status.Since, 0)
		require.Equal(t, "v1.36.3", r.Status.Version, "as far as is known")
		require.Empty(t, h.heard())
		there.cut = nil
		look()
		require.Equal(t, back, h.heard())
		there.uid = "b"
		look()
		require.Equal(t, "b", r.Status.Cluster, "it was built anew at the same address")
	})
}

// Another cluster than the runtime wants is none of its, and is looked at again.
func TestRuntimeRefusesAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := byHand(t)
		r := h.leads("main", (&far{uid: "a"}).connect(t))
		spec := somewhere
		spec.Cluster = "b"
		var err error
		_, h.clusters["main"].version, err = connection(&spec, "")
		require.NoError(t, err)
		r.Spec = spec
		o := reconcilertest.Call(t, h.reconcileRuntime, r)
		require.Equal(t, apiclient.StateWaiting, o.Object.Reconciliation.State)
		require.Equal(t, "it leads to another cluster: cluster b is wanted, and a answers: correct spec.cluster or the address", o.Object.Status.Message)
		require.Equal(t, o.Object.Status.Message, o.Object.Reconciliation.LastError)
		requireAbout(t, lookedAt, next(o))
	})
}

// What is wrong in a runtime waits for another declaration, unless it is in a file, which may be mended.
func TestWrongRuntimes(t *testing.T) {
	h := byHand(t)
	o := reconcilertest.Call(t, h.reconcileRuntime, &Runtime{Name: "main"})
	require.Equal(t, apiclient.StateStalled, o.Object.Reconciliation.State)
	require.Contains(t, o.Object.Status.Message, "want exactly one of")
	o = reconcilertest.Call(t, h.reconcileRuntime, &Runtime{Name: "main", Spec: RuntimeSpec{KubeconfigFile: "a"}})
	require.Equal(t, apiclient.StateWaiting, o.Object.Reconciliation.State)
	require.Contains(t, o.Object.Status.Message, "has no folder of kubeconfigs")
}

// A runtime that goes lets go of its cluster, and of no other, when no instance needs it.
func TestRuntimeLetsGoOfItsCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := byHand(t)
		r := h.leads("main", (&far{}).connect(t))
		h.leads("other", (&far{}).connect(t))
		h.instance("one", "web", InstanceStatus{})
		o := reconcilertest.Call(t, h.cleanupRuntime, r)
		require.Equal(t, "in use by instance one", o.Object.Reconciliation.LastError)
		h.instance("two", "web", InstanceStatus{})
		o = reconcilertest.Call(t, h.cleanupRuntime, r)
		require.Equal(t, "in use by 2 instances, one among them", o.Object.Reconciliation.LastError)
		requireAbout(t, stillInUse, next(o))
		require.Len(t, h.clusters, 2)
		for _, name := range []string{"one", "two"} {
			_, err := h.instances.Delete(t.Context(), name)
			require.NoError(t, err)
		}
		cl := h.clusters["main"]
		o = reconcilertest.Call(t, h.cleanupRuntime, r)
		require.NoError(t, o.Err)
		require.Error(t, cl.watches.ctx.Err())
		require.NotContains(t, h.clusters, "main")
		require.NoError(t, h.clusters["other"].watches.ctx.Err())
	})
}
