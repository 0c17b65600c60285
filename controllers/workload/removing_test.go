package workload

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var hookResource = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"}

func hookNamed(name string) *unstructured.Unstructured {
	return resource("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", name, "i")
}

// has is a reconcile of an instance i that has what is put there in its inventory.
func (k *kube) has(c *cluster, all ...*unstructured.Unstructured) *applying {
	in := instance(InstanceSpec{})
	for _, u := range all {
		resources := map[string]schema.GroupVersionResource{
			"ConfigMap": mapResource, "Namespace": namespaceResource, "ValidatingWebhookConfiguration": hookResource, "CustomResourceDefinition": crdResource,
		}
		k.put(resources[u.GetKind()], u)
		in.Status.Resources = append(in.Status.Resources, entry(u))
	}
	return newApplying(c, in, nobody)
}

// names are those of an inventory.
func (a *applying) names() (names []string) {
	for _, r := range a.in.Status.Resources {
		names = append(names, r.Name)
	}
	return names
}

// When something could not be applied, the webhooks that are not wanted any more go all the same, because they may be why. Nothing
// else goes, and what could not be removed stays in the inventory.
func TestHooksThatAreNotWantedGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		a := k.has(c, hookNamed("old"), configMap("m", "i"), configMap("n", "i"), hookNamed("kept"), hookNamed("older"))
		all := []wanted{{Unstructured: configMap("m", "i")}, {Unstructured: hookNamed("kept")}}
		k.refuses(http.MethodDelete, "older", errDenied)
		require.ErrorIs(t, a.pruneHooks(t.Context(), all), errDenied)
		require.ElementsMatch(t, []string{"m", "n", "kept", "old", "older"}, a.names(), "gone is what is seen to be")
		k.refuse = nil
		for range 2 {
			synctest.Wait()
			require.NoError(t, a.pruneHooks(t.Context(), all))
		}
		require.Equal(t, []string{"m", "n", "kept"}, a.names())
		require.Nil(t, k.at(kubeKey{hookResource, "", "old"}))
		require.NotNil(t, k.at(kubeKey{hookResource, "", "kept"}))
		require.NotNil(t, k.at(kubeKey{mapResource, "home", "n"}), "prune comes later")
		require.Same(t, &a.in.Status.Resources[2], a.entries[keyOf(hookNamed("kept"))])
	})
}

// What cannot be removed is an error, says which it is, and stays in the inventory.
func TestWhatCannotBeRemoved(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		synctest.Test(t, func(t *testing.T) {
			k, c := kubeAlone(t)
			owner := map[string]string{http.MethodGet: "", http.MethodDelete: "i"}[method] // without its label it is read
			a := k.has(c, configMap("m", owner))
			k.refuses(method, "m", errDenied)
			_, err := a.prune(t.Context(), nil)
			require.ErrorIs(t, err, errDenied)
			require.ErrorContains(t, err, "delete ConfigMap m in home: ")
			require.Equal(t, []string{"m"}, a.names())
			require.NotNil(t, k.at(homeMap))
		})
	}
}

// What the watch has is deleted without a read. What it says is somebody else's is read: it may be behind.
func TestDeletionsCostOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		a := k.has(c, configMap("m", "i"))
		_, err := a.remove(t.Context(), &a.in.Status.Resources)
		require.NoError(t, err)
		require.Equal(t, []string{"DELETE home/configmaps/m"}, k.asks())
	})
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		a := k.has(c, configMap("m", "other"))
		_, err := c.watches.get(t.Context(), mapResource, "home", "m")
		require.NoError(t, err)
		k.mu.Lock() // and no watch tells
		ours := k.objects[homeMap].DeepCopy()
		ours.SetLabels(map[string]string{LabelInstance: "i"})
		k.objects[homeMap] = ours
		k.mu.Unlock()
		_, err = a.remove(t.Context(), &a.in.Status.Resources)
		require.NoError(t, err)
		require.Nil(t, k.at(homeMap))
	})
}

// A namespace is not deleted with what others have in it, nor while nobody can say who has. Who waits to make it anew does not
// keep it.
func TestNamespaceStaysForOthers(t *testing.T) {
	home := resource("v1", "Namespace", "", "shop", "i")
	in := func(namespace, name string) Resource {
		return Resource{Version: "v1", Kind: "ConfigMap", Namespace: namespace, Name: name}
	}
	waits := entry(resource("v1", "Namespace", "", "shop", ""))
	has := waits
	has.UID = "1"
	other := func(namespace string, all ...Resource) []*Instance {
		return []*Instance{{Name: "o", UID: "o", Status: InstanceStatus{Namespace: namespace, Resources: all}}}
	}
	for text, c := range map[string]struct {
		own    []Resource
		others []*Instance
		err    error
		stays  string
	}{
		"nobody has anything":         {stays: ""},
		"others are elsewhere":        {others: other("away", in("away", "m")), stays: ""},
		"it is not the first":         {own: []Resource{in("away", "m"), in("shop", "n")}, stays: "ConfigMap n in shop is in it"},
		"another has some, not first": {others: other("away", in("away", "m"), in("shop", "n")), stays: "instance o has resources in it"},
		"another waits":               {others: other("shop", in("shop", "m"), waits), stays: ""},
		"another waits, and a third does not": {
			others: append(other("shop", waits), other("shop")...),
			stays:  "instance o is in it",
		},
		"another has made it":  {others: other("shop", has), stays: "instance o is in it"},
		"nobody can say":       {err: errCut},
		"another waits for it": {others: other("shop", in("away", "m"), waits), stays: ""},
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, cl := kubeAlone(t)
				a := k.has(cl, home.DeepCopy())
				own := a.in.Status.Resources[0]
				a.in.Status.Resources = append(c.own, own)
				a.neighbours = func(context.Context) ([]*Instance, error) { return c.others, c.err }
				waiting, err := a.removeOne(t.Context(), &a.in.Status.Resources[len(c.own)])
				require.ErrorIs(t, err, c.err)
				going := k.at(kubeKey{namespaceResource, "", "shop"}).GetDeletionTimestamp() != nil
				require.Equal(t, c.err == nil && c.stays == "", going)
				if c.stays != "" {
					require.Equal(t, "Namespace shop stays: "+c.stays, waiting)
				}
			})
		})
	}
}

// A namespace that was adopted is let go of; what goes wrong with that is an error, and it stays in the inventory.
func TestAdoptedNamespaceThatCannotBeLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		a := k.has(c, resource("v1", "Namespace", "", "shop", "i"))
		a.in.Status.Resources[0].Adopted = true
		k.refuses(http.MethodPatch, "shop", errDenied)
		_, err := a.remove(t.Context(), &a.in.Status.Resources)
		require.ErrorIs(t, err, errDenied)
		require.Len(t, a.in.Status.Resources, 1)
	})
}

// A definition that the cluster could not clean up is nudged while it is waited for; nothing else is.
func TestOnlyDefinitionsAreNudged(t *testing.T) {
	failed := []any{map[string]any{"type": "Terminating", "status": "True", "reason": "InstanceDeletionFailed"}}
	for kind, nudged := range map[string]bool{"CustomResourceDefinition": true, "ConfigMap": false, "Namespace": false} {
		synctest.Test(t, func(t *testing.T) {
			k, c := kubeAlone(t)
			u := map[string]*unstructured.Unstructured{
				"CustomResourceDefinition": resource("apiextensions.k8s.io/v1", kind, "", "m", "i"), "ConfigMap": configMap("m", "i"), "Namespace": resource("v1", kind, "", "m", "i"),
			}[kind]
			now := metav1.Now()
			u.SetDeletionTimestamp(&now)
			u.Object["status"] = map[string]any{"conditions": failed}
			a := k.has(c, u)
			_, err := a.remove(t.Context(), &a.in.Status.Resources)
			require.NoError(t, err)
			require.Equal(t, nudged, slices.ContainsFunc(k.asks(), func(request string) bool { return request[:5] == "PATCH" }))
		})
	}
}

// Of all conditions those that say something of the deletion are told.
func TestEveryReasonIsTold(t *testing.T) {
	u := resource("v1", "Namespace", "", "x", "i")
	u.Object["status"] = map[string]any{"conditions": []any{
		map[string]any{"status": "True"}, map[string]any{"status": "True", "message": "pods are left"}, map[string]any{"status": "True", "message": "maps, too"},
	}}
	require.Equal(t, "pods are left; maps, too", stuck(look(u)))
}

// What an instance lets go of stays, without its label. What is somebody else's keeps theirs, and what cannot be let go of keeps
// all of it in the inventory, to be tried again.
func TestInstanceLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		a := k.has(c, configMap("m", "i"), configMap("n", "i"), configMap("o", "other"))
		a.in.Status.Resources = slices.Insert(a.in.Status.Resources, 0, Resource{Group: "old.example.com", Version: "v1", Kind: "Old", Namespace: "home", Name: "x", UID: "1"})
		for method, name := range map[string]string{http.MethodGet: "m", http.MethodPatch: "n"} {
			k.refuses(method, name, errDenied)
			err := a.letGo(t.Context())
			require.ErrorIs(t, err, errDenied)
			require.Len(t, a.in.Status.Resources, 4)
		}
		k.refuse = nil
		require.NoError(t, a.letGo(t.Context()))
		require.Empty(t, a.in.Status.Resources)
		for _, name := range []string{"m", "n"} {
			require.Empty(t, k.at(kubeKey{mapResource, "home", name}).GetLabels())
		}
		require.Equal(t, "other", k.at(kubeKey{mapResource, "home", "o"}).GetLabels()[LabelInstance])
	})
}

// A cleanup gives its place at the cluster back, whatever comes of it, and tells those who wait for the instance when it is gone.
func TestCleanupEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := byHand(t)
		k, c := kubeAlone(t)
		h.leads("main", c)
		in := instance(InstanceSpec{Definition: "web", Runtime: "main"})
		u := configMap("m", "i")
		k.put(mapResource, u)
		in.Status.Resources = []Resource{entry(u)}
		now := time.Now()
		in.DeletedAt = &now
		h.cut.Store(true)
		_, err := h.cleanupInstance(t.Context(), in)
		require.ErrorIs(t, err, errCut)
		h.cut.Store(false)
		k.refuses(http.MethodDelete, "m", errors.New("not now"))
		_, err = h.cleanupInstance(t.Context(), in)
		require.ErrorContains(t, err, "not now")
		require.Empty(t, c.health.slots)
		require.Empty(t, h.heard())
		k.refuse = nil
		_, err = h.cleanupInstance(t.Context(), in)
		require.ErrorContains(t, err, "waiting for ConfigMap m in home to be gone")
		require.Empty(t, in.Status.Ready)
		synctest.Wait()
		_, err = h.cleanupInstance(t.Context(), in)
		require.NoError(t, err)
		require.Empty(t, c.health.slots)
		require.Equal(t, []string{"kubernetes-runtimes/main: instance i is gone", "workload-definitions/web: instance i is gone"}, h.heard())
	})
}
