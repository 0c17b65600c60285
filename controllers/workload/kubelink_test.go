package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	discoveryfake "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// kubeClient is a replica's client of a kube. Its requests are messages of the replica: it may die right before and after each,
// and each may be disturbed on its way. Watches tell at once.
type kubeClient struct {
	*kube
	r *reconcilertest.Replica
}

// connect makes the connection of a replica.
func (k *kube) connect(r *reconcilertest.Replica, version string, changed func(instance, reason string)) (*cluster, error) {
	speaks, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: somewhere.Endpoint, Transport: &far{version: "v1.36.3"}, QPS: -1})
	if err != nil {
		return nil, err
	}
	known := memory.NewMemCacheClient(speaking{&discoveryfake.FakeDiscovery{Fake: standInKinds()}, speaks.RESTClient()})
	client := kubeClient{k, r}
	return &cluster{
		version: version, client: client, known: known, mapper: restmapper.NewDeferredDiscoveryRESTMapper(known),
		health: health{slots: make(chan struct{}, atOnce)}, nudged: map[types.UID]time.Time{}, dialer: newDialer(),
		watches: newWatches(client, changed),
	}, nil
}

// speaking is a discovery that has a version.
type speaking struct {
	*discoveryfake.FakeDiscovery
	client rest.Interface
}

func (s speaking) RESTClient() rest.Interface { return s.client }

// IsWatchListSemanticsUnSupported is asked by client-go.
func (kubeClient) IsWatchListSemanticsUnSupported() bool { return true }

// Resource implements dynamic.Interface.
func (c kubeClient) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return kubeResource{kubeClient: c, of: gvr}
}

// kubeResource implements what the controller uses of it.
type kubeResource struct {
	dynamic.ResourceInterface
	kubeClient
	of        schema.GroupVersionResource
	namespace string
}

func (c kubeResource) Namespace(namespace string) dynamic.ResourceInterface {
	c.namespace = namespace
	return c
}

// request sends a request on its way, for no longer than a client of a real cluster.
func request[T any](ctx context.Context, c kubeResource, method, name string, do func(key kubeKey) (T, error)) (T, error) {
	if c.r == nil { // a test of its own
		return arrived(c, method, name, do)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	path := strings.TrimSuffix("/cluster/"+c.of.Resource+"/"+name, "/")
	return reconcilertest.Request(ctx, c.r, method, path, func() (T, error) {
		return arrived(c, method, name, do)
	})
}

// arrived is a request that has come to the cluster.
func arrived[T any](c kubeResource, method, name string, do func(key kubeKey) (T, error)) (got T, err error) {
	key := kubeKey{c.of, c.namespace, name}
	c.mu.Lock()
	c.asked = append(c.asked, method+" "+key.String())
	refuse := c.refuse
	c.mu.Unlock()
	if refuse != nil {
		if err := refuse(method, key); err != nil {
			return got, err
		}
	}
	return do(key)
}

// write is a request that changes something, of which the kube takes note.
func (c kubeResource) write(ctx context.Context, method, name string, do func(key kubeKey) (u *unstructured.Unstructured, changed bool, err error)) (*unstructured.Unstructured, error) {
	attempt := reconciler.Current(ctx)
	return request(ctx, c, method, name, func(key kubeKey) (*unstructured.Unstructured, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		before := c.objects[key]
		u, changed, err := do(key)
		if changed && c.r != nil {
			c.watching(write{attempt, c.r.Name, method, key, before, u})
		}
		c.fences[attempt.Name] = max(c.fences[attempt.Name], attempt.Fence)
		return u.DeepCopy(), err
	})
}

func (c kubeResource) Get(ctx context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	return request(ctx, c, http.MethodGet, name, func(key kubeKey) (*unstructured.Unstructured, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if u := c.objects[key]; u != nil {
			return u.DeepCopy(), nil
		}
		return nil, apierrors.NewNotFound(c.of.GroupResource(), name)
	})
}

// List knows of no selectors but that of the watches.
func (c kubeResource) List(ctx context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return request(ctx, c, http.MethodGet, "", func(kubeKey) (*unstructured.UnstructuredList, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		all := new(unstructured.UnstructuredList)
		all.SetResourceVersion(fmt.Sprint(c.version))
		for key, u := range c.objects {
			if key.of == c.of && o.LabelSelector == LabelInstance && u.GetLabels()[LabelInstance] != "" {
				all.Items = append(all.Items, *u.DeepCopy())
			}
		}
		return all, nil
	})
}

func (c kubeResource) Watch(_ context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	return c.watch(c.of, o.ResourceVersion), nil
}

func (c kubeResource) Apply(ctx context.Context, name string, u *unstructured.Unstructured, o metav1.ApplyOptions, _ ...string) (*unstructured.Unstructured, error) {
	u = u.DeepCopy()
	return c.write(ctx, http.MethodPatch, name, func(key kubeKey) (*unstructured.Unstructured, bool, error) { return c.applied(key, u, o) })
}

func (c kubeResource) Create(ctx context.Context, u *unstructured.Unstructured, _ metav1.CreateOptions, _ ...string) (*unstructured.Unstructured, error) {
	u = u.DeepCopy()
	return c.write(ctx, http.MethodPost, u.GetName(), func(key kubeKey) (*unstructured.Unstructured, bool, error) {
		if c.objects[key] != nil {
			return nil, false, apierrors.NewAlreadyExists(c.of.GroupResource(), key.name)
		}
		if err := c.mayWrite(key, ""); err != nil {
			return nil, false, err
		}
		now := u.DeepCopy()
		c.store(key, now)
		return now, true, nil
	})
}

func (c kubeResource) Delete(ctx context.Context, name string, o metav1.DeleteOptions, _ ...string) error {
	_, err := c.write(ctx, http.MethodDelete, name, func(key kubeKey) (*unstructured.Unstructured, bool, error) {
		changed, err := c.deleted(key, o)
		return nil, changed, err
	})
	return err
}

// Patch takes labels off, if the uid is that of the resource.
func (c kubeResource) Patch(ctx context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	var patch struct {
		Metadata struct {
			UID    types.UID
			Labels map[string]*string
		}
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	return c.write(ctx, http.MethodPatch, name, func(key kubeKey) (*unstructured.Unstructured, bool, error) {
		if c.objects[key] == nil {
			return nil, false, apierrors.NewNotFound(c.of.GroupResource(), name)
		}
		if err := c.mayWrite(key, patch.Metadata.UID); err != nil {
			return nil, false, err
		}
		now := c.objects[key].DeepCopy()
		labels := now.GetLabels()
		for label := range patch.Metadata.Labels {
			delete(labels, label)
		}
		now.SetLabels(labels)
		c.store(key, now)
		return now, true, nil
	})
}
