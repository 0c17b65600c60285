package workload

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// A connection is kept until its runtime says otherwise; the one before is closed then.
func TestConnectionsAreReplaced(t *testing.T) {
	h := byHand(t)
	r := &Runtime{Name: "main", Spec: somewhere}
	first, err := h.cluster(r)
	require.NoError(t, err)
	same, err := h.cluster(r)
	require.NoError(t, err)
	require.Same(t, first, same)
	r.Spec.Token = "another"
	second, err := h.cluster(r)
	require.NoError(t, err)
	require.NotSame(t, first, second)
	require.Error(t, first.watches.ctx.Err(), "it is closed")
	require.NoError(t, second.watches.ctx.Err())
}

// Connections of runtimes that another replica has cleaned up are closed in time, unless nobody can say which those are; the rest
// when the controller ends.
func TestConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := byHand(t)
		h.bound = make(chan struct{})
		h.leads("main", (&far{}).connect(t))
		h.leads("gone", (&far{}).connect(t))
		_, err := h.runtimes.Delete(t.Context(), "gone")
		require.NoError(t, err)
		main, gone := h.clusters["main"], h.clusters["gone"]
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			h.Run(ctx, func(context.Context, string, string, string) error { return nil })
			close(ended)
		}()
		h.cut.Store(true)
		time.Sleep(tidyEvery + time.Minute)
		synctest.Wait()
		require.Len(t, h.clusters, 2)
		h.cut.Store(false)
		time.Sleep(tidyEvery)
		synctest.Wait()
		require.Error(t, gone.watches.ctx.Err())
		require.NoError(t, main.watches.ctx.Err())
		require.Len(t, h.clusters, 1)
		cancel()
		<-ended
		require.Error(t, main.watches.ctx.Err())
		require.Empty(t, h.clusters)
	})
}

// Asking waits until the controller runs.
func TestAskingWaitsForTheRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := byHand(t)
		h.bound = make(chan struct{})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errOnce)
		defer cancel()
		require.ErrorIs(t, h.ask(ctx, Instances, "i", "x"), errOnce)
		require.Empty(t, h.heard())
	})
}

// What keeps an instance from its cluster is waited for, and takes none of the places at work there.
func TestInstancesWaitForTheirCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := byHand(t)
		in := &Instance{Name: "i", Spec: InstanceSpec{Definition: "web", Runtime: "main"}}
		waits := func(text string, after time.Duration) {
			t.Helper()
			o := reconcilertest.Call(t, h.reconcileInstance, in)
			require.Equal(t, apiclient.StateWaiting, o.Object.Reconciliation.State)
			require.Contains(t, o.Object.Reconciliation.LastError, text)
			requireAbout(t, after, next(o))
		}
		waits("runtime main does not exist", 30*time.Second)
		there := &far{uid: "a"}
		r := h.leads("main", there.connect(t))
		cl := h.clusters["main"]
		there.cut = errCut
		for range atOnce + 1 {
			waits("runtime main: ", downFor)
			time.Sleep(downAtMost)
		}
		require.Empty(t, cl.health.slots)
		there.cut = nil
		time.Sleep(downAtMost)
		in.Status.Cluster, in.Status.Resources = "b", []Resource{entry(configMap("m", "i"))}
		for range atOnce + 1 {
			waits("runtime main: it leads to another cluster", time.Minute)
		}
		require.Empty(t, cl.health.slots)
		in.Status = InstanceStatus{}
		waits("definition web: it does not exist", time.Minute)
		require.Empty(t, cl.health.slots)

		for range atOnce {
			cl.health.slots <- struct{}{}
		}
		o := reconcilertest.Call(t, h.reconcileInstance, in)
		require.Equal(t, "runtime main: "+errBusy.Error(), o.Object.Reconciliation.LastError, "which is no fault of the cluster's")
		require.LessOrEqual(t, next(o), 8*time.Second)
		for range atOnce {
			<-cl.health.slots
		}

		_, err := h.runtimes.PatchStatus(t.Context(), "main", apiclient.StatusPatch{UID: r.UID, Fence: 1, AddFinalizers: []string{"test"}})
		require.NoError(t, err)
		_, err = h.runtimes.Delete(t.Context(), "main")
		require.NoError(t, err)
		waits("runtime main is being deleted", 30*time.Second)
		now := time.Now()
		in.DeletedAt = &now
		_, leave, err := h.use(t.Context(), in)
		require.NoError(t, err, "what goes too may")
		leave()

		_, err = h.runtimes.Put(t.Context(), "wrong", RuntimeSpec{})
		require.NoError(t, err)
		in.Spec.Runtime = "wrong"
		waits("runtime wrong: the runtime is wrong: want exactly one of", time.Minute)
	})
}
