package workload

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	kubetesting "k8s.io/client-go/testing"

	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// has is a reconcile of an instance i that has these in its inventory.
func (s *standIn) has(all ...Resource) *applying {
	return newApplying(s.cluster, &Instance{Name: "i", UID: "i", Status: InstanceStatus{Resources: all, Namespace: "home"}}, nobody)
}

// hold has a resource stay when it is deleted.
func hold(u *unstructured.Unstructured) *unstructured.Unstructured {
	u.SetFinalizers([]string{"example.com/hold"})
	return u
}

// holds has what has finalizers be marked for deletion, as an API server does.
func (s *standIn) holds(t *testing.T, resources string) {
	t.Helper()
	s.fake.PrependReactor("delete", resources, func(action kubetesting.Action) (bool, runtime.Object, error) {
		d := action.(kubetesting.DeleteActionImpl)
		u := s.at(d.GetResource(), d.GetNamespace(), d.Name)
		if u == nil || len(u.GetFinalizers()) == 0 {
			return false, nil, nil
		}
		u = u.DeepCopy()
		u.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
		s.put(t, d.GetResource(), u)
		return true, nil, nil
	})
}

var (
	accounts    = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// What goes goes in the opposite order of that in which it came, and what is earlier waits until what is later has gone.
func TestRemovedInTheOppositeOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		s.holds(t, "configmaps")
		a := s.has(
			entry(s.put(t, namespaceResource, resource("v1", "Namespace", "", "home", "i"))),
			entry(s.put(t, accounts, resource("v1", "ServiceAccount", "home", "a", "i"))),
			entry(s.put(t, mapResource, hold(configMap("m", "i")))),
			entry(s.put(t, mapResource, configMap("n", "i"))),
			entry(s.put(t, deployments, resource("apps/v1", "Deployment", "home", "d", "i"))),
		)
		deleted := func() (all []string) {
			for _, d := range s.did("delete", "*") {
				all = append(all, d.(kubetesting.DeleteActionImpl).Name)
			}
			return all
		}
		step := func() string {
			t.Helper()
			synctest.Wait()
			waiting, err := a.remove(t.Context(), &a.in.Status.Resources)
			require.NoError(t, err)
			return waiting
		}
		require.Equal(t, "waiting for Deployment.apps d in home to be gone", step())
		require.Equal(t, []string{"d"}, deleted())
		require.Equal(t, metav1.DeletePropagationForeground, *s.did("delete", "*")[0].(kubetesting.DeleteActionImpl).DeleteOptions.PropagationPolicy)
		require.Equal(t, "waiting for ConfigMap m in home to be gone: finalizers example.com/hold", step())
		require.Equal(t, []string{"d", "m", "n"}, deleted())
		require.Equal(t, metav1.DeletePropagationBackground, *s.did("delete", "*")[1].(kubetesting.DeleteActionImpl).DeleteOptions.PropagationPolicy)
		for range 3 {
			require.Equal(t, "waiting for ConfigMap m in home to be gone: finalizers example.com/hold", step())
		}
		require.Len(t, deleted(), 3, "once is enough, and the account comes later")
		require.NoError(t, s.fake.Tracker().Delete(mapResource, "home", "m"))
		require.Equal(t, "waiting for ServiceAccount a in home to be gone", step())
		require.Equal(t, "waiting for Namespace home to be gone", step())
		require.Empty(t, step())
		require.Empty(t, a.in.Status.Resources)
		require.Equal(t, []string{"d", "m", "n", "a", "home"}, deleted())
	})
}

// Only what is the instance's is deleted: what bears its label, or what it applied and bears none.
func TestOnlyWhatIsOursIsDeleted(t *testing.T) {
	ours := func(owner, uid string) *unstructured.Unstructured {
		u := configMap("m", owner)
		u.SetUID(types.UID(uid))
		return u
	}
	for text, c := range map[string]struct {
		owner, uid string // of what is there
		applied    string
		gone       bool
	}{
		"ours":                                {"i", "1", "1", true},
		"ours, and we did not hear of it":     {"i", "1", "", true},
		"ours, and made anew":                 {"i", "2", "1", true},
		"its label was taken off":             {"", "1", "1", true},
		"made anew by somebody":               {"", "2", "1", false},
		"there before, and never applied":     {"", "1", "", false},
		"of another instance now":             {"other", "1", "1", false},
		"of another instance, and never ours": {"other", "1", "", false},
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := stand(t)
				s.put(t, mapResource, ours(c.owner, c.uid))
				r := entry(configMap("m", ""))
				r.UID = c.applied
				a := s.has(r)
				for range 2 {
					_, err := a.remove(t.Context(), &a.in.Status.Resources)
					require.NoError(t, err)
					synctest.Wait()
				}
				require.Empty(t, a.in.Status.Resources)
				require.Equal(t, c.gone, s.at(mapResource, "home", "m") == nil)
				for _, d := range s.did("delete", "configmaps") {
					uid := types.UID(c.uid)
					require.Equal(t, &metav1.Preconditions{UID: &uid}, d.(kubetesting.DeleteActionImpl).DeleteOptions.Preconditions)
				}
			})
		})
	}
}

// What the watch has not seen is not gone for that: the cluster itself has to say so.
func TestWatchDoesNotSayWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		a := s.has(Resource{Version: "v1", Kind: "ConfigMap", Namespace: "home", Name: "m"})
		_, err := s.watches.get(t.Context(), mapResource, "home", "m")
		require.NoError(t, err)
		s.fake.PrependReactor("get", "configmaps", func(kubetesting.Action) (bool, runtime.Object, error) {
			u := configMap("m", "i")
			u.SetUID("late")
			return true, u, nil
		})
		waiting, err := a.remove(t.Context(), &a.in.Status.Resources)
		require.NoError(t, err)
		require.Equal(t, "waiting for ConfigMap m in home to be gone", waiting)
		require.Len(t, s.did("delete", "configmaps"), 1, "which finds nothing, and that is no error")
		require.Len(t, a.in.Status.Resources, 1)
	})
}

// A kind that is served no more has no resources; one whose server does not answer, or that may not be looked at, may have some.
func TestKindsThatCannotBeLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		old := Resource{Group: "old.example.com", Version: "v1", Kind: "Old", Namespace: "home", Name: "o", UID: "1"}
		remove := func(r Resource) (left int, waiting string, err error) {
			a := s.has(r)
			waiting, err = a.remove(t.Context(), &a.in.Status.Resources)
			return len(a.in.Status.Resources), waiting, err
		}
		left, _, err := remove(old)
		require.NoError(t, err)
		require.Zero(t, left)

		known := s.known
		s.known = broken{known, schema.GroupVersion{Group: old.Group, Version: "v1"}}
		left, _, err = remove(old)
		require.ErrorContains(t, err, "old.example.com/v1 does not answer: ")
		require.Equal(t, 1, left)
		s.known = broken{known, schema.GroupVersion{Group: "another.example.com", Version: "v1"}}
		left, _, err = remove(old)
		require.NoError(t, err)
		require.Zero(t, left, "it is another one that does not answer")

		s.known = served{known, old}
		left, waiting, err := remove(old)
		require.NoError(t, err)
		require.Equal(t, 1, left)
		require.Equal(t, "waiting for Old.old.example.com o in home: the cluster does not say where it is", waiting)
		s.known = known
		_, err = s.known.ServerGroups()
		require.NoError(t, err)
		s.kinds.Resources = append(s.kinds.Resources, &metav1.APIResourceList{GroupVersion: "old.example.com/v1", APIResources: []metav1.APIResource{{Name: "olds", Kind: "Old"}}})
		unserved, err := s.isUnserved(schema.GroupKind{Group: old.Group, Kind: old.Kind})
		require.NoError(t, err)
		require.False(t, unserved, "what was known before does not count")

		forbidden := apierrors.NewForbidden(accounts.GroupResource(), "", errors.New("no"))
		s.fails("list", "serviceaccounts", func() error { return forbidden })
		account := entry(resource("v1", "ServiceAccount", "home", "a", "i"))
		left, _, err = remove(account)
		require.NoError(t, err)
		require.Zero(t, left, "who may not look at it has not applied it")
		account.UID = "1"
		left, _, err = remove(account)
		require.ErrorIs(t, err, forbidden)
		require.Equal(t, 1, left)

		left, _, err = remove(Resource{Version: "v1", Kind: "Namespace", Namespace: "home", Name: "was", UID: "1"})
		require.NoError(t, err)
		require.Zero(t, left, "the kind was defined anew")
		require.Empty(t, s.did("*", "namespaces"))
	})
}

// A namespace stays while somebody has something in it: this instance, or another one of the cluster.
func TestWhoLivesInANamespace(t *testing.T) {
	home := namespaceKey("home")
	entries := func(namespace, status string) []Resource {
		return []Resource{{Version: "v1", Kind: "ConfigMap", Namespace: namespace, Name: "m", Status: status}}
	}
	neighbour := func(name, namespace string, all []Resource) *Instance {
		return &Instance{Name: name, UID: name, Status: InstanceStatus{Namespace: namespace, Resources: all}}
	}
	for _, c := range []struct {
		own        []Resource
		neighbours []*Instance
		want       string
	}{
		{entries("home", "Current"), nil, "ConfigMap m in home is in it"},
		{entries("home", statusGone), nil, ""},
		{entries("away", "Current"), nil, ""},
		{nil, []*Instance{neighbour("b", "home", nil)}, "instance b is in it"},
		{nil, []*Instance{neighbour("b", "away", entries("away", "")), neighbour("c", "away", entries("home", ""))}, "instance c has resources in it"},
	} {
		a := &applying{in: neighbour("i", "home", c.own), neighbours: func(context.Context) ([]*Instance, error) { return c.neighbours, nil }}
		who, err := a.keeps(t.Context(), home)
		require.NoError(t, err)
		require.Equal(t, c.want, who)
		who, err = a.keeps(t.Context(), keyOf(configMap("home", "")))
		require.NoError(t, err)
		require.Empty(t, who)
	}
}

// What leaves the definition stands behind what stays, which is in the order in which it is applied.
func TestInventoryIsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		s.holds(t, "configmaps")
		a := s.has(
			entry(s.put(t, mapResource, hold(configMap("leaves", "i")))), entry(configMap("b", "")), entry(configMap("a", "")), entry(configMap("gone", "")),
		)
		waiting, err := a.prune(t.Context(), []wanted{{Unstructured: configMap("a", "i")}, {Unstructured: configMap("b", "i")}})
		require.NoError(t, err)
		require.Contains(t, waiting, "waiting for ConfigMap leaves in home to be gone")
		var order []string
		for _, r := range a.in.Status.Resources {
			order = append(order, r.Name)
		}
		require.Equal(t, []string{"a", "b", "leaves"}, order)
		require.Same(t, &a.in.Status.Resources[1], a.entries[keyOf(configMap("b", ""))])
	})
}

// What keeps a namespace or a definition of resources is said in the words of its conditions.
func TestWhatIsStuckIsExplained(t *testing.T) {
	stuckWith := func(apiVersion, kind string, conditions ...any) string {
		u := hold(resource(apiVersion, kind, "", "x", "i"))
		u.Object["status"] = map[string]any{"conditions": conditions}
		return stuck(look(u))
	}
	condition := func(kind, status, message string) any {
		return map[string]any{"type": kind, "status": status, "message": message}
	}
	require.Equal(t, "two pods are left; finalizers example.com/hold",
		stuckWith("v1", "Namespace", condition("NamespaceContentRemaining", "True", "two pods are left"), condition("NamespaceDeletionDiscoveryFailure", "False", "all is well")))
	require.Equal(t, "could not list; finalizers example.com/hold",
		stuckWith("apiextensions.k8s.io/v1", "CustomResourceDefinition", condition("Terminating", "False", "could not list"), condition("Established", "True", "all is well")))
	require.Equal(t, "finalizers example.com/hold", stuckWith("apps/v1", "Deployment", condition("Available", "True", "all is well")))
}

// broken is a discovery in which a group does not answer.
type broken struct {
	discovery.CachedDiscoveryInterface
	gv schema.GroupVersion
}

func (b broken) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	groups, lists, _ := b.CachedDiscoveryInterface.ServerGroupsAndResources()
	return groups, lists, &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{b.gv: errCut}}
}

// served is a discovery that has a kind which the mapping has not.
type served struct {
	discovery.CachedDiscoveryInterface
	r Resource
}

func (b served) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return nil, []*metav1.APIResourceList{{GroupVersion: b.r.Group + "/" + b.r.Version, APIResources: []metav1.APIResource{{Name: "olds", Kind: b.r.Kind}}}}, nil
}

// Who refers to an instance hears when it has gone; one that has nothing, or is abandoned, asks no cluster.
func TestInstanceThatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := byHand(t), stand(t)
		h.leads("main", s.cluster)
		told := []string{"kubernetes-runtimes/main: instance i is gone", "workload-definitions/web: instance i is gone"}
		s.fails("", "*", func() error { return errOnce })
		in := &Instance{Name: "i", UID: "i", Spec: InstanceSpec{Definition: "web", Runtime: "main"}}
		require.NoError(t, reconcilertest.Call(t, h.cleanupInstance, in).Err)
		require.Equal(t, told, h.heard())
		in.Status.Resources = []Resource{entry(configMap("m", "i"))}
		require.Error(t, reconcilertest.Call(t, h.cleanupInstance, in).Err)
		require.Empty(t, h.heard())
		in.Spec.OnDelete = OnDeleteAbandon
		require.NoError(t, reconcilertest.Call(t, h.cleanupInstance, in).Err)
		require.Equal(t, told, h.heard())
	})
}

// What is kept loses the labels of its instance, and nothing else does; a namespace that neighbours live in stays.
func TestInstanceIsCleanedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := byHand(t), stand(t)
		h.leads("main", s.cluster)
		in := &Instance{Name: "i", UID: "i", Spec: InstanceSpec{Definition: "web", Runtime: "main", OnDelete: OnDeleteKeep}}
		in.Status = InstanceStatus{Ready: "3/3", Namespace: "home", Resources: []Resource{
			entry(s.put(t, mapResource, configMap("ours", "i"))), entry(s.put(t, mapResource, configMap("theirs", "other"))), entry(configMap("gone", "")),
			{Group: "old.example.com", Version: "v1", Kind: "Old", Name: "o", UID: "1"},
		}}
		o := reconcilertest.Call(t, h.cleanupInstance, in)
		require.NoError(t, o.Err)
		require.Empty(t, o.Object.Status.Resources)
		require.Empty(t, s.at(mapResource, "home", "ours").GetLabels())
		require.Equal(t, "other", s.at(mapResource, "home", "theirs").GetLabels()[LabelInstance])
		require.Len(t, s.did("patch", "*"), 1)
		known := s.known
		s.known = served{known, in.Status.Resources[3]}
		o = reconcilertest.Call(t, h.cleanupInstance, in)
		require.ErrorContains(t, o.Err, "let go of Old.old.example.com o: ", "it may be there")
		require.NotEmpty(t, o.Object.Status.Resources)
		s.known = known
		patch := s.did("patch", "*")[0].(kubetesting.PatchActionImpl).Patch
		require.Contains(t, string(patch), fmt.Sprintf(`"uid":%q`, s.at(mapResource, "home", "ours").GetUID()))

		in.Spec.OnDelete = ""
		in.Status.Resources = []Resource{entry(s.put(t, namespaceResource, resource("v1", "Namespace", "", "home", "i")))}
		neighbour := h.instance("b", "web", InstanceStatus{Namespace: "home"})
		o = reconcilertest.Call(t, h.cleanupInstance, in)
		require.Equal(t, "Namespace home stays: instance b is in it", o.Object.Status.Waiting)
		require.Equal(t, "Current", o.Object.Status.Resources[0].Status)
		require.Empty(t, o.Object.Status.Ready)
		requireAbout(t, waitGone, next(o))
		require.Empty(t, s.did("delete", "*"))
		_, err := h.instances.Delete(context.WithoutCancel(t.Context()), neighbour.Name)
		require.NoError(t, err)
		o = reconcilertest.Call(t, h.cleanupInstance, o.Object)
		require.Equal(t, "waiting for Namespace home to be gone", o.Object.Status.Waiting)
		synctest.Wait()
		o = reconcilertest.Call(t, h.cleanupInstance, o.Object)
		require.NoError(t, o.Err)
		require.Empty(t, o.Object.Status.Resources)
	})
}

// What an instance waits for when something goes tells no secrets, neither in names nor in what keeps it.
func TestWhatGoesTellsNoSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := byHand(t), stand(t)
		s.holds(t, "configmaps")
		h.leads("main", s.cluster)
		d, err := h.definitions.Put(t.Context(), "web", DefinitionSpec{Manifests: one, Variables: []Variable{{Name: "p"}, {Name: "q"}}})
		require.NoError(t, err)
		d.Status.Rollout = &RolloutStatus{Generation: 1, All: true}
		keeps(h, h.definitions, d)
		u := configMap("hunter2", "i")
		u.SetFinalizers([]string{"example.com/hunter3"})
		in := &Instance{Name: "i", UID: "i", Spec: InstanceSpec{
			Definition: "web", Runtime: "main", Namespace: "home", SecretVariables: map[string]string{"p": "hunter2", "q": "hunter3"},
		}}
		in.Status.Resources = []Resource{entry(s.put(t, mapResource, u))}
		for _, f := range []reconciler.Func[InstanceSpec, InstanceStatus]{h.reconcileInstance, h.cleanupInstance} {
			o := reconcilertest.Call(t, f, in)
			require.Equal(t, "waiting for ConfigMap REDACTED in home to be gone: finalizers example.com/REDACTED", o.Object.Status.Waiting)
			last := o.Object.Status.Resources[len(o.Object.Status.Resources)-1]
			require.Equal(t, "finalizers example.com/REDACTED", last.Reason)
		}
	})
}
