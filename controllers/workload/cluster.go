package workload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// rediscover is how often, at most, a cluster is asked anew which kinds it knows.
const rediscover = 2 * time.Second

// discoveryTimeout bounds each request of a discovery, which holds up all reconciles at work on the cluster.
const discoveryTimeout = 10 * time.Second

// cluster is a connection to the cluster of a runtime, and what is known of it. It is safe for concurrent use.
type cluster struct {
	version string
	spec    RuntimeSpec // that it was made for
	client  dynamic.Interface
	known   discovery.CachedDiscoveryInterface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	watches *watches
	health  health
	over    http.RoundTripper
	dialer  *dialer

	discovering sync.Mutex // held while mapper is asked, which may ask the cluster

	mu         sync.Mutex
	discovered time.Time
	uid        string // of the cluster, empty until it is identified
	identified int    // how many connections had been made by then
	nudged     map[types.UID]time.Time
}

func connect(cfg *rest.Config, version string, changed func(instance, reason string)) (*cluster, error) {
	c := &cluster{version: version, health: health{slots: make(chan struct{}, atOnce)}, nudged: map[types.UID]time.Time{}, dialer: newDialer()}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(c.health.answers.over)
	cfg.Dial = c.dialer.dial
	over, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRuntime, err)
	}
	c.over = over
	var errs [3]error
	var known discovery.DiscoveryInterface
	var watching dynamic.Interface
	c.client, errs[0] = dynamic.NewForConfigAndClient(cfg, &http.Client{Transport: over, Timeout: requestTimeout})
	known, errs[1] = discovery.NewDiscoveryClientForConfigAndClient(cfg, &http.Client{Transport: over, Timeout: discoveryTimeout})
	// A watch goes on; the server ends it now and then, and reflectors notice silence.
	watching, errs[2] = dynamic.NewForConfigAndClient(cfg, &http.Client{Transport: over})
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("%w: %w", errRuntime, err)
	}
	c.known = memory.NewMemCacheClient(known)
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(c.known)
	c.watches = newWatches(watching, changed)
	return c, nil
}

// mapping says how a kind is called in paths. known is false if the cluster has not heard of it.
func (c *cluster) mapping(gvk schema.GroupVersionKind) (m *meta.RESTMapping, known bool, err error) {
	return c.mappingOf(gvk.GroupKind(), gvk.Version)
}

// mappingOf is the same of a kind in one of some versions, or in any.
func (c *cluster) mappingOf(gk schema.GroupKind, versions ...string) (m *meta.RESTMapping, known bool, err error) {
	c.discovering.Lock()
	defer c.discovering.Unlock()
	if err := c.health.isDown(); err != nil { // as whoever had the lock before has found
		return nil, false, err
	}
	m, err = c.mapper.RESTMapping(gk, versions...)
	if meta.IsNoMatchError(err) && c.mayRediscover() {
		c.mapper.Reset()
		m, err = c.mapper.RESTMapping(gk, versions...)
	}
	if meta.IsNoMatchError(err) {
		return nil, false, nil
	}
	return m, err == nil, c.note(err)
}

// isUnserved reports whether a cluster serves no such kind any more. It fails if that cannot be said: a group whose server does
// not answer has no kinds, and all its resources.
func (c *cluster) isUnserved(gk schema.GroupKind) (bool, error) {
	c.known.Invalidate()
	_, lists, err := c.known.ServerGroupsAndResources()
	var failed *discovery.ErrGroupDiscoveryFailed
	if errors.As(err, &failed) {
		for gv, why := range failed.Groups {
			if gv.Group == gk.Group {
				return false, fmt.Errorf("%s does not answer: %w", gv, why)
			}
		}
	} else if err != nil {
		return false, c.note(err)
	}
	for _, l := range lists {
		gv, _ := schema.ParseGroupVersion(l.GroupVersion) // a server's
		for _, r := range l.APIResources {
			if gv.Group == gk.Group && r.Kind == gk.Kind {
				return false, nil
			}
		}
	}
	return true, nil
}

func (c *cluster) mayRediscover() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.discovered) < rediscover {
		return false
	}
	c.discovered = time.Now()
	return true
}

func (c *cluster) scope(gvk schema.GroupVersionKind) (namespaced, known bool, err error) {
	m, known, err := c.mapping(gvk)
	if err != nil || !known {
		return false, known, err
	}
	return m.Scope.Name() == meta.RESTScopeNameNamespace, true, nil
}

func (c *cluster) resource(m *meta.RESTMapping, namespace string) dynamic.ResourceInterface {
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.client.Resource(m.Resource).Namespace(namespace)
	}
	return c.client.Resource(m.Resource)
}

// live reads a resource from the cluster; nil if there is none.
func (c *cluster) live(ctx context.Context, m *meta.RESTMapping, namespace, name string) (*seen, error) {
	u, err := c.resource(m, namespace).Get(ctx, name, metav1.GetOptions{})
	if isGone(err) {
		return nil, c.note(nil)
	}
	if err != nil {
		return nil, c.note(err)
	}
	return look(u), c.note(nil)
}

// apply makes a resource as it is wanted. With a uid it must be that of the resource.
func (c *cluster) apply(ctx context.Context, m *meta.RESTMapping, w wanted, uid string, force bool) (*seen, error) {
	u := w.Unstructured
	if uid != "" {
		u = u.DeepCopy()
		u.SetUID(types.UID(uid))
	}
	applied, err := c.resource(m, u.GetNamespace()).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: fieldManager, Force: force})
	if err != nil {
		return nil, c.note(err)
	}
	return look(applied), c.note(nil)
}

// create makes a resource with nothing but the labels of its instance, and fails if there is one: server-side apply would take it
// over. It returns its uid.
func (c *cluster) create(ctx context.Context, m *meta.RESTMapping, w wanted) (uid string, err error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(w.GroupVersionKind())
	u.SetName(w.GetName())
	u.SetLabels(map[string]string{LabelInstance: w.GetLabels()[LabelInstance], LabelInstanceName: w.GetLabels()[LabelInstanceName]})
	made, err := c.resource(m, w.GetNamespace()).Create(ctx, u, metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil {
		return "", c.note(err)
	}
	return string(made.GetUID()), c.note(nil)
}

// remove deletes a resource if it has that uid. What a workload owns, its pods, goes first. Of other kinds it goes afterwards:
// the garbage collector takes half a minute to hear of a new kind, and would hold its resources for as long.
func (c *cluster) remove(ctx context.Context, m *meta.RESTMapping, namespace, name, uid string) error {
	propagation := metav1.DeletePropagationBackground
	if phase(m.GroupVersionKind.GroupKind()) == phaseWorkloads {
		propagation = metav1.DeletePropagationForeground
	}
	id := types.UID(uid)
	err := c.resource(m, namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &propagation, Preconditions: &metav1.Preconditions{UID: &id}})
	if isGone(err) {
		err = nil
	}
	return c.note(err)
}

// unlabel takes the labels of an instance off a resource.
func (c *cluster) unlabel(ctx context.Context, m *meta.RESTMapping, s *seen) error {
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:null,%q:null}}}`, s.GetUID(), LabelInstance, LabelInstanceName)
	_, err := c.resource(m, s.GetNamespace()).Patch(ctx, s.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if isGone(err) {
		err = nil
	}
	return c.note(err)
}

// list lists resources, page by page, until each fails. It takes no note of errors.
func (c *cluster) list(ctx context.Context, gvr schema.GroupVersionResource, namespace string, o metav1.ListOptions, each func(*unstructured.Unstructured) error) error {
	for o.Limit = 100; ; {
		page, err := c.client.Resource(gvr).Namespace(namespace).List(ctx, o)
		if err != nil {
			return err
		}
		for i := range page.Items {
			if err := each(&page.Items[i]); err != nil {
				return err
			}
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

// close ends the watches, waits for that, and closes the connections. While a reconcile is at work over them they are left to be
// closed when they have been idle for a while: HTTP/2 takes a moment to notice that they are, and then keeps them for 90 seconds.
func (c *cluster) close() {
	c.watches.close()
	utilnet.CloseIdleConnectionsFor(c.over)
	if len(c.health.slots) == 0 {
		c.dialer.close()
	}
}
