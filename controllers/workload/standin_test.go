package workload

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery/cached/memory"
	discoveryfake "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/restmapper"
	kubetesting "k8s.io/client-go/testing"
)

// standIn is a cluster in memory: for virtual time, and for what a real one does not do on request. It knows of no schemas and
// of no controllers; who applies last has all fields.
type standIn struct {
	*cluster
	fake  *dynamicfake.FakeDynamicClient
	kinds *kubetesting.Fake

	mu       sync.Mutex
	told     []string // by the watches
	versions int
}

var (
	mapResource    = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	crdResource    = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	cartResource   = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "carts"}
	basketResource = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "baskets"}
)

// standInKinds are the kinds that a cluster in memory knows.
func standInKinds() *kubetesting.Fake {
	return &kubetesting.Fake{Resources: []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true},
			{Name: "serviceaccounts", Kind: "ServiceAccount", Namespaced: true},
			{Name: "namespaces", Kind: "Namespace"},
			{Name: "pods", Kind: "Pod", Namespaced: true},
			{Name: "events", Kind: "Event", Namespaced: true},
		}},
		{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment", Namespaced: true}}},
		{GroupVersion: "batch/v1", APIResources: []metav1.APIResource{{Name: "jobs", Kind: "Job", Namespaced: true}}},
		{GroupVersion: "admissionregistration.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "validatingwebhookconfigurations", Kind: "ValidatingWebhookConfiguration"}}},
		{GroupVersion: "apiextensions.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "customresourcedefinitions", Kind: "CustomResourceDefinition"}}},
	}}
}

// stand makes a cluster that knows some kinds.
func stand(t *testing.T) *standIn {
	t.Helper()
	lists := map[schema.GroupVersionResource]string{
		mapResource: "ConfigMapList", namespaceResource: "NamespaceList", podResource: "PodList", eventResource: "EventList",
		crdResource: "CustomResourceDefinitionList", basketResource: "BasketList", cartResource: "CartList",
		{Version: "v1", Resource: "serviceaccounts"}:                "ServiceAccountList",
		{Group: "apps", Version: "v1", Resource: "deployments"}:     "DeploymentList",
		{Group: "batch", Version: "v1", Resource: "jobs"}:           "JobList",
		{Group: "kept.example.com", Version: "v1", Resource: "old"}: "OldList",
	}
	s := &standIn{kinds: standInKinds()}
	s.fake = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	s.fake.PrependReactor("patch", "*", s.apply)
	s.fake.PrependReactor("create", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
		u := action.(kubetesting.CreateAction).GetObject().(*unstructured.Unstructured)
		s.stamp(u)
		return false, nil, nil
	})
	known := memory.NewMemCacheClient(&discoveryfake.FakeDiscovery{Fake: s.kinds})
	s.cluster = &cluster{
		client: s.fake, known: known, mapper: restmapper.NewDeferredDiscoveryRESTMapper(known),
		health: health{slots: make(chan struct{}, atOnce)}, nudged: map[types.UID]time.Time{}, dialer: newDialer(),
	}
	s.watches = newWatches(s.fake, func(instance, reason string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, instance+": "+reason)
	})
	t.Cleanup(s.close)
	return s
}

// stamp gives a resource what a server gives it.
func (s *standIn) stamp(u *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions++
	u.SetResourceVersion(fmt.Sprint(s.versions))
	if u.GetUID() == "" {
		u.SetUID(types.UID(fmt.Sprintf("uid-%d", s.versions)))
	}
}

// apply is server-side apply, in so far as it is needed.
func (s *standIn) apply(action kubetesting.Action) (bool, runtime.Object, error) {
	p := action.(kubetesting.PatchActionImpl)
	if p.PatchType != types.ApplyPatchType {
		return false, nil, nil
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(p.Patch, &u.Object); err != nil {
		return true, nil, err
	}
	tracker := s.fake.Tracker()
	before, err := tracker.Get(p.GetResource(), p.GetNamespace(), p.GetName())
	uid := types.UID("")
	if err == nil {
		uid = before.(*unstructured.Unstructured).GetUID()
	}
	if u.GetUID() != "" && u.GetUID() != uid {
		return true, nil, apierrors.NewConflict(p.GetResource().GroupResource(), p.GetName(), fmt.Errorf("its uid is %q", uid))
	}
	u.SetUID(uid)
	s.stamp(u)
	manage(u, fieldManager, hashOf(u.Object))
	if err == nil {
		err = tracker.Update(p.GetResource(), u, p.GetNamespace())
	} else {
		err = tracker.Create(p.GetResource(), u, p.GetNamespace())
	}
	return true, u.DeepCopy(), err
}

// manage gives all fields of a resource to somebody who applied them.
func manage(u *unstructured.Unstructured, who, fields string) {
	u.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: who, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:%s":{}}`, fields)),
	}})
}

// put puts a resource there, as somebody else.
func (s *standIn) put(t *testing.T, gvr schema.GroupVersionResource, u *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	s.stamp(u)
	if _, err := s.fake.Tracker().Get(gvr, u.GetNamespace(), u.GetName()); err == nil {
		require.NoError(t, s.fake.Tracker().Update(gvr, u, u.GetNamespace()))
	} else {
		require.NoError(t, s.fake.Tracker().Create(gvr, u, u.GetNamespace()))
	}
	return u
}

// at reads a resource; nil if there is none.
func (s *standIn) at(gvr schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	o, err := s.fake.Tracker().Get(gvr, namespace, name)
	if err != nil {
		return nil
	}
	return o.(*unstructured.Unstructured)
}

// fails has requests fail from now on. No verb stands for all of them.
func (s *standIn) fails(verb, resource string, err func() error) {
	if verb == "" || verb == "watch" {
		s.fake.PrependWatchReactor(resource, func(kubetesting.Action) (bool, apiwatch.Interface, error) {
			err := err()
			return err != nil, nil, err
		})
	}
	if verb == "" {
		verb = "*"
	}
	s.fake.PrependReactor(verb, resource, func(kubetesting.Action) (bool, runtime.Object, error) {
		err := err()
		return err != nil, nil, err
	})
}

// cuts has lists of resources fail for as long as it is told.
func (s *standIn) cuts(resource string) *atomic.Bool {
	cut := new(atomic.Bool)
	s.fails("list", resource, func() error {
		if cut.Load() {
			return errCut
		}
		return nil
	})
	return cut
}

// did are the requests of a verb for resources; * stands for any.
func (s *standIn) did(verb, resource string) (all []kubetesting.Action) {
	for _, a := range s.fake.Actions() {
		if (verb == "*" || verb == a.GetVerb()) && (resource == "*" || resource == a.GetResource().Resource) {
			all = append(all, a)
		}
	}
	return all
}

// resource is one of a kind, which belongs to an instance unless that is empty.
func resource(apiVersion, kind, namespace, name, instance string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	u.SetNamespace(namespace)
	u.SetName(name)
	if instance != "" {
		u.SetLabels(map[string]string{LabelInstance: instance, LabelInstanceName: instance})
	}
	return u
}

// configMap is a ConfigMap in the namespace home.
func configMap(name, instance string) *unstructured.Unstructured {
	return resource("v1", "ConfigMap", "home", name, instance)
}

// entry is what an inventory has of a resource.
func entry(u *unstructured.Unstructured) Resource {
	gvk := u.GroupVersionKind()
	return Resource{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Namespace: u.GetNamespace(), Name: u.GetName(), UID: string(u.GetUID())}
}
