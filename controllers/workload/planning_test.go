package workload

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// planning is a controller with a cluster, and an instance of a definition of these manifests, as the latest generation has them.
func planning(t *testing.T, manifests ...string) (*hand, *kube, *cluster, *Instance) {
	t.Helper()
	h := byHand(t)
	k, c := kubeAlone(t)
	h.leads("main", c)
	for _, m := range manifests {
		_, err := h.definitions.Put(t.Context(), "web", DefinitionSpec{Manifests: m})
		require.NoError(t, err)
	}
	return h, k, c, &Instance{Name: "i", UID: "i", Generation: 1, Spec: InstanceSpec{Definition: "web", Runtime: "main", Namespace: "home"}}
}

// What is wanted is known or it is not: in doubt nothing is wanted, and nothing is applied.
func TestPlanThatCannotBeMade(t *testing.T) {
	for text, c := range map[string]struct {
		manifests []string
		change    func(t *testing.T, h *hand, k *kube, in *Instance)
		err       string
		to        int64 // the generation that it was for
	}{
		"the API is silent": {[]string{one}, func(_ *testing.T, h *hand, _ *kube, _ *Instance) { h.cut.Store(true) }, errCut.Error(), 0},
		"what it has was not kept whole": {[]string{one, one + "data: {colour: red}\n"}, func(t *testing.T, h *hand, _ *kube, in *Instance) {
			in.Status.DefinitionGeneration = 1
			d, err := h.definitions.Get(t.Context(), "web")
			require.NoError(t, err)
			d.Status.Kept = []Kept{{Generation: 1, Spec: []byte("torn")}}
			keeps(h, h.definitions, d)
		}, "definition web: status.kept: generation 1: ", 0},
		"the manifests are wrong": {[]string{"kind: x"}, nil, "definition web: the manifests are wrong: ", 1},
		"the namespace cannot be read": {[]string{one}, func(_ *testing.T, _ *hand, k *kube, _ *Instance) {
			k.refuses(http.MethodGet, "home", errDenied)
		}, "denied", 1},
		"a kind is unknown": {[]string{"apiVersion: x/v1\nkind: X\nmetadata: {name: x}\n"}, nil, "the cluster knows no X of x/v1", 1},
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, k, cl, in := planning(t, c.manifests...)
				if c.change != nil {
					c.change(t, h, k, in)
				}
				all, generation, err := h.plan(t.Context(), in, cl)
				require.ErrorContains(t, err, c.err)
				require.Empty(t, all)
				require.Equal(t, c.to, generation)
			})
		})
	}
}

// An instance whose generation is not kept, and that may not go to the next yet, stays as it is and waits.
func TestInstanceWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, k, _, in := planning(t, one, one+"data: {colour: red}\n")
		in.Status.DefinitionGeneration, in.Status.UpdatingTo = 1, 1
		o := reconcilertest.Call(t, h.reconcileInstance, in)
		require.Equal(t, "waiting for its turn in the rollout of definition web", o.Object.Reconciliation.LastError)
		requireAbout(t, time.Minute, next(o))
		require.EqualValues(t, 1, o.Object.Status.UpdatingTo, "it is on its way to nothing else")
		require.Nil(t, k.at(homeMap))
	})
}

// What cannot be written down is not applied.
func TestWhatIsNotWrittenDownIsNotApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, k, _, in := planning(t, one)
		_, err := h.reconcileInstance(t.Context(), in)
		require.ErrorContains(t, err, "checkpoint: ", "outside of a reconcile nothing can be written")
		require.Nil(t, k.at(homeMap))
	})
}

// When something cannot be applied, hooks that are not wanted any more go, unless the cluster is silent; and nothing else goes.
func TestHooksGoAlsoWhenNothingCanBeApplied(t *testing.T) {
	for _, c := range []struct {
		err  error
		gone bool
	}{{errDenied, true}, {errNoAnswer, false}} {
		synctest.Test(t, func(t *testing.T) {
			h, k, _, in := planning(t, one)
			hook, gone := hookNamed("old"), configMap("gone", "i")
			k.put(hookResource, hook)
			k.put(mapResource, gone)
			in.Status.Resources = []Resource{entry(hook), entry(gone)}
			k.refuses(http.MethodPatch, "m", c.err)
			o := reconcilertest.Call(t, h.reconcileInstance, in)
			require.ErrorIs(t, o.Err, c.err)
			require.Equal(t, c.gone, k.at(kubeKey{hookResource, "", "old"}) == nil)
			require.NotNil(t, k.at(kubeKey{mapResource, "home", "gone"}))
			require.Zero(t, o.Object.Status.DefinitionGeneration)
			require.Equal(t, "0/1", o.Object.Status.Ready)
		})
	}
}

// An instance is not at a generation before what that leaves out was looked for.
func TestInstanceThatCannotPrune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, k, _, in := planning(t, one)
		gone := configMap("gone", "i")
		k.put(mapResource, gone)
		in.Status.Resources = []Resource{entry(gone)}
		k.refuses(http.MethodDelete, "gone", errDenied)
		o := reconcilertest.Call(t, h.reconcileInstance, in)
		require.ErrorIs(t, o.Err, errDenied)
		require.Zero(t, o.Object.Status.DefinitionGeneration)
		require.NotNil(t, k.at(homeMap), "all else was applied")
		require.Contains(t, o.Object.Status.Waiting, "denied")
	})
}

// An instance that has been applied and is not ready says why, for which the cluster is asked what it has noted.
func TestInstanceAsksWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, k, _, in := planning(t, "apiVersion: batch/v1\nkind: Job\nmetadata: {name: m}\n")
		o := reconcilertest.Call(t, h.reconcileInstance, in)
		require.Contains(t, o.Object.Status.Waiting, "Job.batch m in home is InProgress")
		require.Contains(t, k.asked, "GET home/events/")
	})
}

// A cluster that is slow makes nobody unready either.
func TestSlowClusterMakesNobodyUnready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, c, in := planning(t, one)
		for range atOnceSlow {
			c.health.slots <- struct{}{}
		}
		c.health.answers.open, c.health.answers.since = 1, time.Now()
		time.Sleep(2 * slow)
		o := reconcilertest.Call(t, h.reconcileInstance, in)
		require.ErrorIs(t, o.Err, errSlow)
		in.Reconciliation = apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 1}
		o = reconcilertest.Call(t, h.reconcileInstance, in)
		require.NoError(t, o.Err)
		require.Equal(t, apiclient.StateReady, o.Object.Reconciliation.State)
	})
}

// Whose the namespace of an instance is: its own if it is in its inventory, wherever, or if there was none; in doubt it is not.
func TestWhoseTheNamespaceIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, k, c, in := planning(t, one)
		own, err := h.namespace(t.Context(), in, c)
		require.NoError(t, err)
		require.False(t, own, "it was there before")
		all, _, err := h.plan(t.Context(), in, c)
		require.NoError(t, err)
		require.Len(t, all, 1, "it is not applied")

		in.Status.Resources = []Resource{entry(configMap("m", "")), entry(resource("v1", "Namespace", "", "home", ""))}
		own, err = h.namespace(t.Context(), in, c)
		require.NoError(t, err)
		require.True(t, own)

		in.Status = InstanceStatus{}
		k.refuses(http.MethodGet, "home", errDenied)
		own, err = h.namespace(t.Context(), in, c)
		require.ErrorIs(t, err, errDenied)
		require.False(t, own)
		c.health.note(errNoAnswer)
		own, err = h.namespace(t.Context(), in, c)
		require.ErrorIs(t, err, errNoAnswer)
		require.ErrorContains(t, err, "namespace home: ")
		require.False(t, own)
	})
}

// A cluster that knows no namespaces, which may be one that is not up yet, is one that gives no answer.
func TestClusterWithoutNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := byHand(t), stand(t)
		s.kinds.Resources = s.kinds.Resources[1:]
		own, err := h.namespace(t.Context(), &Instance{Name: "i", Spec: InstanceSpec{Namespace: "home"}}, s.cluster)
		require.EqualError(t, err, "namespace home: the cluster does not say whether it is there: "+errNoAnswer.Error())
		require.False(t, own)
	})
}

// A secret that is part of another one leaves nothing of that one to see. What has four characters may be a secret.
func TestLongerSecretsGoFirst(t *testing.T) {
	in := &Instance{Spec: InstanceSpec{SecretVariables: map[string]string{"a": "abcd", "b": "abcdef", "c": "abcdefgh", "d": "abcde"}}}
	for range 20 { // maps have no order
		require.Equal(t, hidden+" "+hidden+" "+hidden, withoutSecrets(in, "abcdefgh abcdef abcd"))
	}
}

// How a resource is in words: ready without a reason, and unknown where its status makes no sense.
func TestHowAResourceIs(t *testing.T) {
	fine := configMap("m", "i")
	odd := resource("apps/v1", "Deployment", "home", "d", "i")
	odd.Object["status"] = "odd"
	a := &applying{latest: map[resourceKey]*seen{}}
	for _, u := range []*unstructured.Unstructured{fine, odd} {
		a.latest[keyOf(u)] = &seen{Unstructured: *u}
	}
	word, reason := a.statusOf(keyOf(fine))
	require.Equal(t, "Current", word)
	require.Empty(t, reason)
	word, reason = a.statusOf(keyOf(odd))
	require.Equal(t, "Unknown", word)
	require.NotEmpty(t, reason)
}

// Only jobs complete, and only jobs clean up after themselves, whatever others are called.
func TestOnlyJobsComplete(t *testing.T) {
	for kind, is := range map[schema.GroupVersionKind]bool{{Group: "batch", Version: "v1", Kind: "Job"}: true, {Group: "example.com", Version: "v1", Kind: "Job"}: false} {
		u := &unstructured.Unstructured{Object: map[string]any{
			"spec":   map[string]any{"ttlSecondsAfterFinished": int64(1)},
			"status": map[string]any{"conditions": []any{map[string]any{"type": "Complete", "status": "True"}}},
		}}
		u.SetGroupVersionKind(kind)
		require.Equal(t, is, cleansUp(wanted{Unstructured: u}))
		require.Equal(t, is, hasCompleted(&seen{Unstructured: *u}))
	}
}
