package workload

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// Whatever is applied is in the stored inventory at that moment, and nothing there says that it was applied already.
func TestEverythingIsWrittenDownFirst(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		h, s := byHand(t), stand(t)
		var err error
		h.Controller, err = New(Config{API: apiclient.Config{URL: "http://api.test", HTTP: &http.Client{Transport: handled{w.API()}}}})
		require.NoError(t, err)
		h.leads("main", s.cluster)
		applied := 0
		written := func(action kubetesting.Action) (bool, runtime.Object, error) {
			applied++
			in, err := h.instances.Get(t.Context(), "i")
			require.NoError(t, err)
			found := false
			for _, r := range in.Status.Resources {
				if p, ok := action.(kubetesting.PatchActionImpl); ok && r.Name == p.Name || !ok && r.Kind == "Namespace" {
					found = true
					require.Empty(t, r.Applied)
				}
			}
			require.True(t, found, "%+v", action)
			return false, nil, nil
		}
		s.fake.PrependReactor("patch", "*", written)
		s.fake.PrependReactor("create", "*", written)
		_, err = h.definitions.Put(t.Context(), "web", DefinitionSpec{Manifests: one})
		require.NoError(t, err)
		_, err = h.instances.Put(t.Context(), "i", InstanceSpec{Definition: "web", Runtime: "main"})
		require.NoError(t, err)
		w.Start("only", h.Controllers()[1:3]...)
		h.notify = func(context.Context, string, string, string) error { return nil } // they look by themselves, later
		close(h.Controller.bound)
		w.Advance(time.Second)
		require.Equal(t, 3, applied, "a namespace, which is made and applied, and what is in it")
		_, err = h.definitions.Put(t.Context(), "web", DefinitionSpec{Manifests: one + "data: {colour: red}\n"})
		require.NoError(t, err)
		w.Advance(2 * lookAgain)
		require.Equal(t, 4, applied)
		h.disconnect(func(string) bool { return true })
	})
}

// What is claimed is stored, which is tried only if there is something new. Outside of a reconcile it fails.
func TestClaims(t *testing.T) {
	in := instance(InstanceSpec{})
	w := want(in, configMap("m", ""))
	require.NoError(t, claim(t.Context(), in, []wanted{w}), "it is there already")
	in.Status.Resources[0].Applied, in.Status.Resources[0].Fields = w.hash, "f"
	require.NoError(t, claim(t.Context(), in, []wanted{w}))
	require.Equal(t, w.hash, in.Status.Resources[0].Applied)
	w.SetAPIVersion("v2")
	require.NoError(t, claim(t.Context(), in, []wanted{w}))
	require.Equal(t, "v2", in.Status.Resources[0].Version)
	w.hash = "another"
	require.ErrorContains(t, claim(t.Context(), in, []wanted{w}), "checkpoint: ")
	require.Empty(t, in.Status.Resources[0].Applied)
	require.Empty(t, in.Status.Resources[0].Fields)
	require.NoError(t, claim(t.Context(), in, []wanted{w}))
	require.ErrorContains(t, claim(t.Context(), in, []wanted{w, {Unstructured: configMap("n", "")}}), "checkpoint: ")
	require.Equal(t, Resource{Version: "v1", Kind: "ConfigMap", Namespace: "home", Name: "n"}, in.Status.Resources[1])
}

// An instance from its beginning to a change that it waits for: since when it is on its way, what it has, and who hears of it.
func TestInstanceOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := byHand(t), stand(t)
		s.holds(t, "configmaps")
		h.leads("main", s.cluster)
		define := func(manifests string) {
			t.Helper()
			d, err := h.definitions.Put(t.Context(), "web", DefinitionSpec{Manifests: manifests})
			require.NoError(t, err)
			d.Status.Rollout = &RolloutStatus{Generation: d.Generation, All: true}
			keeps(h, h.definitions, d)
		}
		in := &Instance{Name: "i", UID: "i", Generation: 1, Spec: InstanceSpec{Definition: "web", Runtime: "main"}}
		call := func() reconcilertest.Outcome[InstanceSpec, InstanceStatus] {
			t.Helper()
			time.Sleep(time.Minute)
			o := reconcilertest.Call(t, h.reconcileInstance, in)
			in = o.Object
			return o
		}
		began := time.Now().UTC().Add(time.Minute)
		call()
		require.Equal(t, "definition web: it does not exist", in.Status.Waiting)
		require.NotNil(t, in.Status.UpdatingSince)
		require.WithinDuration(t, began, *in.Status.UpdatingSince, time.Second)
		const deployment = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 1}\n"
		define(one + deployment)
		call()
		began = time.Now().UTC()
		require.EqualValues(t, 1, in.Status.DefinitionGeneration)
		require.EqualValues(t, 1, in.Status.UpdatingTo)
		require.WithinDuration(t, began, *in.Status.UpdatingSince, time.Second, "the definition is new")
		require.Equal(t, "2/3", in.Status.Ready)
		require.Contains(t, in.Status.Waiting, "Deployment.apps d in "+in.Status.Namespace+" is InProgress: ")
		call()
		require.WithinDuration(t, began, *in.Status.UpdatingSince, time.Second)
		require.Empty(t, h.heard())
		d := s.at(deployments, in.Status.Namespace, "d").DeepCopy()
		d.Object["status"] = map[string]any{"replicas": int64(1), "updatedReplicas": int64(1), "readyReplicas": int64(1), "availableReplicas": int64(1), "conditions": []any{
			map[string]any{"type": "Available", "status": "True"}, map[string]any{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
		}}
		s.put(t, deployments, d)
		o := call()
		require.NoError(t, o.Err)
		require.Equal(t, "3/3", in.Status.Ready)
		require.Nil(t, in.Status.UpdatingSince)
		require.Equal(t, []string{"workload-definitions/web: instance i is ready"}, h.heard())
		require.GreaterOrEqual(t, o.Result.RequeueAfter, lookAgain)
		require.NoError(t, call().Err)
		require.Nil(t, in.Status.UpdatingSince, "it is ready")
		require.Empty(t, h.heard(), "that is known")

		s.put(t, mapResource, hold(s.at(mapResource, in.Status.Namespace, "m").DeepCopy()))
		define(deployment[len("---\n"):])
		call()
		require.Equal(t, "waiting for ConfigMap m in "+in.Status.Namespace+" to be gone", strings.TrimSuffix(in.Status.Waiting, ": finalizers example.com/hold"))
		require.EqualValues(t, 2, in.Status.DefinitionGeneration)
		require.EqualValues(t, 2, in.Status.UpdatingTo)
		require.WithinDuration(t, time.Now().UTC(), *in.Status.UpdatingSince, time.Second)
		require.Len(t, in.Status.Resources, 3)
		require.NoError(t, s.fake.Tracker().Delete(mapResource, in.Status.Namespace, "m"))
		require.NoError(t, call().Err)
		require.Equal(t, []string{"workload-definitions/web: instance i is ready"}, h.heard())
		require.Len(t, in.Status.Resources, 2)

		define(deployment[len("---\n"):] + "# something was said of it\n")
		require.NoError(t, call().Err)
		require.Equal(t, []string{"workload-definitions/web: instance i is ready"}, h.heard(), "with another generation, and at once")

		_, err := h.runtimes.Delete(t.Context(), "main")
		require.NoError(t, err)
		call()
		require.Nil(t, in.Status.UpdatingSince, "it was ready when this began")
		call()
		require.WithinDuration(t, time.Now().UTC(), *in.Status.UpdatingSince, time.Second)
		h.leads("main", s.cluster)
		define("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: k}\n" + deployment)
		s.refuses(errOnce, "k")
		require.ErrorIs(t, call().Err, errOnce)
		require.EqualValues(t, 3, in.Status.DefinitionGeneration, "it has not come to that")
		require.EqualValues(t, 4, in.Status.UpdatingTo)
		require.Equal(t, "1/3", in.Status.Ready)
		require.Equal(t, "NotFound", in.Status.Resources[2].Status)
	})
}

// A namespace that leaves stays for the neighbours in it; that of the instance is in its documents if they say more of it.
func TestNamespacesOfAnInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := byHand(t), stand(t)
		h.leads("main", s.cluster)
		h.instance("b", "web", InstanceStatus{Namespace: "other"})
		_, err := h.definitions.Put(t.Context(), "web", DefinitionSpec{Manifests: "apiVersion: v1\nkind: Namespace\nmetadata: {name: home, labels: {team: a}}\n---\n" + one})
		require.NoError(t, err)
		in := &Instance{Name: "i", UID: "i", Generation: 1, Spec: InstanceSpec{Definition: "web", Runtime: "main", Namespace: "home"}}
		in.Status.Resources = []Resource{entry(s.put(t, namespaceResource, resource("v1", "Namespace", "", "other", "i")))}
		in.Status.Resources = append(in.Status.Resources, Resource{Version: "v1", Kind: "Namespace", Name: "home"})
		o := reconcilertest.Call(t, h.reconcileInstance, in)
		require.Equal(t, "Namespace other stays: instance b is in it", o.Object.Status.Waiting)
		require.Empty(t, s.did("delete", "*"))
		require.Equal(t, "a", s.at(namespaceResource, "", "home").GetLabels()["team"])
		require.Equal(t, "2/2", o.Object.Status.Ready)
	})
}

// What somebody else has to mend is waited for; the rest is tried again.
func TestWhatIsWaitedFor(t *testing.T) {
	h := byHand(t)
	for text, c := range map[string]struct {
		err   error
		waits bool
		says  string
	}{
		"takes a moment":         {&notYetError{"in a moment"}, true, "in a moment"},
		"wrong manifests":        {errManifests, true, errManifests.Error()},
		"wrong variables":        {errVariables, true, errVariables.Error()},
		"no definition":          {errNotThere, true, errNotThere.Error()},
		"the cluster is away":    {errNoAnswer, true, "runtime main: " + errNoAnswer.Error()},
		"our API is away":        {errors.Join(apiclient.ErrUnavailable, errCut), false, "cut off"},
		"somebody has it":        {errConflict, false, errConflict.Error()},
		"it is refused, secrets": {errors.New("no hunter2 here"), false, "no REDACTED here"},
	} {
		t.Run(text, func(t *testing.T) {
			in := &Instance{Name: "i", Spec: InstanceSpec{Runtime: "main", SecretVariables: map[string]string{"p": "hunter2"}}}
			o := reconcilertest.Call(t, func(_ context.Context, in *Instance) (reconciler.Result, error) {
				return reconciler.Result{}, h.outcome(in, c.err)
			}, in)
			require.ErrorIs(t, o.Err, c.err)
			require.Contains(t, o.Object.Reconciliation.LastError, c.says)
			require.Equal(t, c.waits, o.Object.Reconciliation.State == apiclient.StateWaiting, o.Object.Reconciliation.State)
			require.NotContains(t, o.Object.Status.Waiting, "hunter2")
		})
	}
}

// What takes a moment is looked at the less often the longer it takes.
func TestWhatTakesAMomentIsLookedAt(t *testing.T) {
	now := time.Now()
	in := &Instance{}
	require.Equal(t, time.Second, notYetFor(in, now))
	for took, want := range map[time.Duration]time.Duration{0: time.Second, 20 * time.Second: 5 * time.Second, time.Hour: 15 * time.Second} {
		since := now.Add(-took)
		in.Status.UpdatingSince = &since
		require.Equal(t, want, notYetFor(in, now))
	}
}

// A text tells no secret, also where one is part of another, or is quoted; what is no secret for its length stays.
func TestTextsTellNoSecrets(t *testing.T) {
	in := &Instance{Spec: InstanceSpec{SecretVariables: map[string]string{"a": "hunter", "b": "hunter2!", "c": "two\nlines", "d": "yes"}}}
	require.Equal(t, `REDACTED and REDACTED and "REDACTED" and yes`, withoutSecrets(in, `hunter2! and hunter and "two\nlines" and yes`))
	require.Equal(t, "REDACTED", withoutSecrets(in, "two\nlines"))
}

// What a document names itself is its name; what it begins is made short enough for any kind.
func TestGivenNamesStay(t *testing.T) {
	u := configMap("given", "")
	u.SetGenerateName("made-")
	generateName(&Instance{UID: "u"}, u, map[string]int{})
	require.Equal(t, "given", u.GetName())
	u.SetName("")
	u.SetGenerateName(strings.Repeat("x", 100))
	generateName(&Instance{UID: "u"}, u, map[string]int{})
	require.Len(t, u.GetName(), 63)
}

// Why resources are not ready is not asked of a cluster that has just fallen silent.
func TestClusterThatFallsSilentIsNotAskedWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := byHand(t), stand(t)
		h.leads("main", s.cluster)
		const two = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: e}\n"
		_, err := h.definitions.Put(t.Context(), "web", DefinitionSpec{Manifests: two})
		require.NoError(t, err)
		for want, fail := range map[string]error{"runtime main: Deployment.apps e in ": errCut, "something happened": errOnce} {
			s.refuses(fail, "e")
			s.fake.ClearActions()
			in := &Instance{Name: "i", UID: "i", Generation: 1, Spec: InstanceSpec{Definition: "web", Runtime: "main"}}
			o := reconcilertest.Call(t, h.reconcileInstance, in)
			require.Contains(t, o.Object.Reconciliation.LastError, want)
			require.Equal(t, "InProgress", o.Object.Status.Resources[1].Status)
			require.Equal(t, !unreachable(fail), len(s.did("list", "events")) > 0)
			require.NoError(t, s.note(nil))
		}
	})
}
