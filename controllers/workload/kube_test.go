package workload

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// kube is a cluster in memory that several replicas share, each over a link of its own (see kubeClient): a standIn that keeps what
// is in it by the rules of a real one, as far as applying and deleting go. Of managed fields it knows whose a resource is, as
// a whole. Deployments become ready in a second, jobs complete, and namespaces take a second to go with all that is in them.
//
// It looks at every write of a replica with watching, which says what is wrong with it.
type kube struct {
	mu       sync.Mutex
	objects  map[kubeKey]*unstructured.Unstructured
	events   []kubeEvent
	watchers map[*apiwatch.RaceFreeFakeWatcher]schema.GroupVersionResource
	version  int
	foreign  map[kubeKey]*unstructured.Unstructured // as somebody else has put it there
	left     map[kubeKey]*unstructured.Unstructured // as somebody else has changed it, and wants it to stay
	fences   map[string]uint64                      // the highest of a request, by instance
	wrong    []string
	asked    []string                               // the requests, such as "DELETE home/configmaps/m"
	refuse   func(method string, key kubeKey) error // what a request fails with; nil: none does
	stored   func(instance string) *Instance        // reads it from the API; nil if there is none
}

type kubeKey struct {
	of              schema.GroupVersionResource
	namespace, name string
}

func (k kubeKey) String() string {
	return strings.TrimPrefix(k.namespace+"/", "/") + k.of.Resource + "/" + k.name
}

func (k kubeKey) compare(other kubeKey) int { return cmp.Compare(k.String(), other.String()) }

type kubeEvent struct {
	version       int
	key           kubeKey
	before, after *unstructured.Unstructured
}

var (
	deploymentResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	jobResource        = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
)

// newKube makes a cluster with what is in it before anybody uses it.
func newKube() *kube {
	k := &kube{
		objects: map[kubeKey]*unstructured.Unstructured{}, foreign: map[kubeKey]*unstructured.Unstructured{}, fences: map[string]uint64{},
		left:     map[kubeKey]*unstructured.Unstructured{},
		watchers: map[*apiwatch.RaceFreeFakeWatcher]schema.GroupVersionResource{},
	}
	for _, name := range []string{"kube-system", "home"} {
		k.put(namespaceResource, resource("v1", "Namespace", "", name, ""))
	}
	k.put(mapResource, resource("v1", "ConfigMap", "home", "theirs", ""))
	k.put(mapResource, resource("v1", "ConfigMap", "home", "others", "of-another-instance"))
	return k
}

// kubeAlone is a cluster for a test of its own, and a connection to it.
func kubeAlone(t *testing.T) (*kube, *cluster) {
	t.Helper()
	k := newKube()
	c, err := k.connect(nil, "", nothing)
	require.NoError(t, err)
	t.Cleanup(c.close)
	return k, c
}

// asks is which requests were made since the last time, but for those of watches.
func (k *kube) asks() (asked []string) {
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	asked, k.asked = slices.DeleteFunc(k.asked, func(a string) bool { return strings.HasSuffix(a, "/") }), nil
	return asked
}

// at is a resource; nil if there is none.
func (k *kube) at(key kubeKey) *unstructured.Unstructured {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.objects[key]
}

// refuses has requests of a method for resources of a name fail from now on.
func (k *kube) refuses(method, name string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = func(m string, key kubeKey) error {
		if m == method && key.name == name {
			return err
		}
		return nil
	}
}

// put puts something of somebody else's there, in the place of what there is.
func (k *kube) put(gvr schema.GroupVersionResource, u *unstructured.Unstructured) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := kubeKey{gvr, u.GetNamespace(), u.GetName()}
	if k.objects[key] != nil {
		k.store(key, nil)
	}
	k.store(key, u)
	k.foreign[key] = k.objects[key]
}

// swap puts somebody else's in the place of what an instance has there, if it has it.
func (k *kube) swap(key kubeKey) {
	k.mu.Lock()
	ours := k.objects[key] != nil && k.foreign[key] == nil
	k.mu.Unlock()
	if ours {
		k.put(mapResource, resource("v1", "ConfigMap", key.namespace, key.name, ""))
	}
}

// edit is somebody else who changes a resource, which must be there. What they write is theirs.
func (k *kube) edit(key kubeKey, change func(*unstructured.Unstructured)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	u := k.objects[key].DeepCopy()
	change(u)
	managed := u.GetManagedFields()
	for i := range managed {
		managed[i].FieldsV1 = metav1.NewFieldsV1(`{"f:rest":{}}`)
	}
	now := metav1.Now()
	u.SetManagedFields(append(managed, metav1.ManagedFieldsEntry{
		Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, Time: &now, FieldsV1: metav1.NewFieldsV1(`{"f:theirs":{}}`),
	}))
	k.store(key, u)
}

// leave has nobody write to a resource as it is now.
func (k *kube) leave(key kubeKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left[key] = k.objects[key]
}

// drop is somebody else who deletes a resource.
func (k *kube) drop(key kubeKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.store(key, nil)
}

// store writes a resource, nil to remove it, and tells the watches. Callers hold mu.
func (k *kube) store(key kubeKey, u *unstructured.Unstructured) {
	k.version++
	e := kubeEvent{k.version, key, k.objects[key], u}
	if u == nil {
		delete(k.objects, key)
	} else {
		u.SetResourceVersion(fmt.Sprint(k.version))
		if u.GetUID() == "" {
			u.SetUID(types.UID(fmt.Sprintf("uid-%d", k.version)))
		}
		k.objects[key] = u
	}
	k.events = append(k.events, e)
	for w, of := range k.watchers {
		if of == key.of {
			e.tell(w)
		}
	}
	if u != nil && u.GetDeletionTimestamp() == nil {
		k.settle(key, u)
	}
}

// tell tells a watch of what bears the label of an instance.
func (e *kubeEvent) tell(w *apiwatch.RaceFreeFakeWatcher) {
	has := func(u *unstructured.Unstructured) bool { return u != nil && u.GetLabels()[LabelInstance] != "" }
	switch {
	case has(e.after) && has(e.before):
		w.Modify(e.after.DeepCopy())
	case has(e.after):
		w.Add(e.after.DeepCopy())
	case has(e.before):
		gone := e.before.DeepCopy()
		gone.SetResourceVersion(fmt.Sprint(e.version))
		w.Delete(gone)
	}
}

// settle is what the cluster's own controllers do about a resource in a second. Callers hold mu.
func (k *kube) settle(key kubeKey, u *unstructured.Unstructured) {
	status := map[string]any{}
	switch key.of {
	case deploymentResource:
		status["observedGeneration"] = u.GetGeneration()
		for _, field := range []string{"replicas", "updatedReplicas", "readyReplicas", "availableReplicas"} {
			status[field] = int64(1)
		}
		status["conditions"] = []any{map[string]any{"type": "Available", "status": "True"}}
	case jobResource:
		status["startTime"] = "2000-01-01T00:00:00Z"
		status["conditions"] = []any{map[string]any{"type": "Complete", "status": "True"}}
	default:
		return
	}
	if have, _, _ := unstructured.NestedMap(u.Object, "status"); hashOf(have) == hashOf(status) {
		return
	}
	time.AfterFunc(time.Second, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.objects[key] != u { // it was changed, and is at work on that
			return
		}
		now := u.DeepCopy()
		now.Object["status"] = status
		k.store(key, now)
	})
}

// contentOf is what is wanted of a resource, without what the server and others say.
func contentOf(u *unstructured.Unstructured) string {
	u = u.DeepCopy()
	delete(u.Object, "status")
	for _, field := range []string{"uid", "resourceVersion", "generation", "managedFields", "finalizers", "deletionTimestamp", "creationTimestamp"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	return hashOf(u.Object)
}

// applied is server-side apply. Callers hold mu.
func (k *kube) applied(key kubeKey, u *unstructured.Unstructured, o metav1.ApplyOptions) (*unstructured.Unstructured, bool, error) {
	before := k.objects[key]
	if err := k.mayWrite(key, u.GetUID()); err != nil {
		return nil, false, err
	}
	now := u.DeepCopy()
	at := metav1.Now()
	managed := []metav1.ManagedFieldsEntry{{
		Manager: fieldManager, Operation: metav1.ManagedFieldsOperationApply, Time: &at, FieldsV1: metav1.NewFieldsV1(`{"f:` + contentOf(u) + `":{}}`),
	}}
	if before != nil {
		same := contentOf(before) == contentOf(withoutUID(u))
		others := slices.DeleteFunc(before.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return m.Manager == fieldManager })
		switch {
		case same && len(others) == 0 && len(before.GetManagedFields()) > 0:
			return before, false, nil
		case !same && len(others) > 0 && !o.Force:
			return nil, false, apierrors.NewApplyConflict(nil, "Apply failed with 1 conflict: conflict with \""+others[0].Manager+"\"")
		case !o.Force:
			managed = append(managed, others...)
		}
		now.SetUID(before.GetUID())
		now.SetGeneration(before.GetGeneration())
		now.SetDeletionTimestamp(before.GetDeletionTimestamp())
		if status, ok := before.Object["status"]; ok {
			now.Object["status"] = status
		}
	}
	now.SetGeneration(now.GetGeneration() + 1)
	now.SetManagedFields(managed)
	if len(o.DryRun) == 0 {
		k.store(key, now)
	}
	return now, len(o.DryRun) == 0, nil
}

func withoutUID(u *unstructured.Unstructured) *unstructured.Unstructured {
	u = u.DeepCopy()
	u.SetUID("")
	return u
}

// mayWrite refuses what is not the resource that is meant, and what is in no namespace. Callers hold mu.
func (k *kube) mayWrite(key kubeKey, uid types.UID) error {
	before := k.objects[key]
	if uid != "" && (before == nil || before.GetUID() != uid) {
		return apierrors.NewConflict(key.of.GroupResource(), key.name, errors.New("uid mismatch"))
	}
	if key.namespace == "" || before != nil {
		return nil
	}
	switch in := k.objects[kubeKey{namespaceResource, "", key.namespace}]; {
	case in == nil:
		return apierrors.NewNotFound(namespaceResource.GroupResource(), key.namespace)
	case in.GetDeletionTimestamp() != nil:
		return apierrors.NewForbidden(key.of.GroupResource(), key.name, errors.New("the namespace is being terminated"))
	}
	return nil
}

// deleted is a deletion. What a namespace has in it goes with it. Callers hold mu.
func (k *kube) deleted(key kubeKey, o metav1.DeleteOptions) (changed bool, err error) {
	before := k.objects[key]
	if before == nil {
		return false, apierrors.NewNotFound(key.of.GroupResource(), key.name)
	}
	if p := o.Preconditions; p != nil && p.UID != nil && *p.UID != before.GetUID() {
		return false, apierrors.NewConflict(key.of.GroupResource(), key.name, errors.New("uid mismatch"))
	}
	if before.GetDeletionTimestamp() != nil {
		return false, nil
	}
	slow := key.of == namespaceResource || o.PropagationPolicy != nil && *o.PropagationPolicy == metav1.DeletePropagationForeground
	if !slow {
		k.store(key, nil)
		return true, nil
	}
	going := before.DeepCopy()
	now := metav1.Now()
	going.SetDeletionTimestamp(&now)
	k.store(key, going)
	time.AfterFunc(time.Second, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if key.of == namespaceResource {
			for _, in := range slices.SortedFunc(maps.Keys(k.objects), kubeKey.compare) {
				if in.namespace == key.name {
					k.store(in, nil)
				}
			}
		}
		k.store(key, nil)
	})
	return true, nil
}

// watch tells of what has happened since a version.
func (k *kube) watch(gvr schema.GroupVersionResource, since string) *apiwatch.RaceFreeFakeWatcher {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := apiwatch.NewRaceFreeFake()
	for _, e := range k.events {
		if e.key.of == gvr && fmt.Sprintf("%9d", e.version) > fmt.Sprintf("%9s", since) {
			e.tell(w)
		}
	}
	k.watchers[w] = gvr
	return w
}
