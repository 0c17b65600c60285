package workload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// fieldManager is what this controller is called in managedFields.
const fieldManager = "evenkeel"

// seen is what is kept of a resource in a cluster: what kstatus looks at, and whether others have changed what is ours.
type seen struct {
	unstructured.Unstructured
	// fields stands for the fields that belong to this controller: whoever changes one of them takes it away.
	fields string
	// others are the other field managers, the latest first.
	others []string
}

// look takes from a resource what is to be kept. It changes it.
func look(u *unstructured.Unstructured) *seen {
	s := &seen{}
	managers := u.GetManagedFields()
	slices.SortStableFunc(managers, func(a, b metav1.ManagedFieldsEntry) int {
		if a.Time == nil || b.Time == nil {
			return 0
		}
		return b.Time.Compare(a.Time.Time)
	})
	for _, m := range managers {
		switch {
		case m.Subresource != "":
		case m.Manager == fieldManager && m.Operation == metav1.ManagedFieldsOperationApply:
			if m.FieldsV1 != nil {
				sum := sha256.Sum256(m.FieldsV1.GetRawBytes())
				s.fields = hex.EncodeToString(sum[:16])
			}
		default:
			s.others = append(s.others, m.Manager)
		}
	}
	slim(u)
	s.Unstructured = *u
	return s
}

// slim drops what is large and is not looked at.
func slim(u *unstructured.Unstructured) {
	u.SetManagedFields(nil)
	u.SetAnnotations(nil)
	for _, path := range [][]string{{"data"}, {"binaryData"}, {"stringData"}, {"spec", "template"}, {"spec", "jobTemplate"}, {"spec", "volumeClaimTemplates"}} {
		unstructured.RemoveNestedField(u.Object, path...)
	}
	if group := u.GroupVersionKind().Group; strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") || group == "apiextensions.k8s.io" {
		unstructured.RemoveNestedField(u.Object, "spec") // of custom resources and their definitions
	}
}

// watches are the watches of one cluster: one for each kind of resource that instances have there, of what bears their label.
type watches struct {
	client dynamic.Interface
	// changed is told that something of an instance has changed.
	changed func(instance, reason string)

	ctx    context.Context //nolint:containedctx // the life of the watches, which is that of their cluster
	cancel context.CancelFunc
	going  sync.WaitGroup

	mu sync.Mutex
	of map[schema.GroupVersionResource]*watch
}

// watch is a cache.SharedIndexInformer, which opens anew what ends.
type watch struct {
	informer cache.SharedIndexInformer

	mu   sync.Mutex
	fail error // of the latest try to open it
}

func newWatches(client dynamic.Interface, changed func(instance, reason string)) *watches {
	ctx, cancel := context.WithCancel(context.Background())
	return &watches{client: client, changed: changed, ctx: ctx, cancel: cancel, of: map[schema.GroupVersionResource]*watch{}}
}

// close ends all watches, and waits for that.
func (ws *watches) close() {
	ws.cancel()
	ws.going.Wait()
}

// get returns what is known of a resource, nil if there is none that bears the label. It begins to watch its kind, and waits
// until all of it is known.
func (ws *watches) get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*seen, error) {
	w, err := ws.open(gvr)
	if err != nil {
		return nil, err
	}
	if !w.informer.HasSynced() {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		known := func() bool { return w.informer.HasSynced() || w.isRefused() }
		if !cache.WaitForCacheSync(ctx.Done(), known) || !w.informer.HasSynced() {
			return nil, w.failure(gvr)
		}
	}
	id := name
	if namespace != "" {
		id = namespace + "/" + name
	}
	found, ok, err := w.informer.GetStore().GetByKey(id)
	if err != nil || !ok {
		return nil, err
	}
	s, _ := found.(*seen)
	return s, nil
}

// isRefused reports whether the cluster does not let this controller watch.
func (w *watch) isRefused() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return apierrors.IsForbidden(w.fail) || isGone(w.fail)
}

func (w *watch) failure(gvr schema.GroupVersionResource) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail != nil {
		return fmt.Errorf("watch %s: %w", gvr.GroupResource(), w.fail)
	}
	return fmt.Errorf("watch %s: %w", gvr.GroupResource(), errNoAnswer)
}

func (ws *watches) open(gvr schema.GroupVersionResource) (*watch, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.of[gvr]; w != nil {
		return w, nil
	}
	if ws.ctx.Err() != nil {
		return nil, errors.New("the connection to the cluster was closed")
	}
	ctx, cancel := context.WithCancel(ws.ctx)
	w := &watch{}
	w.informer = dynamicinformer.NewFilteredDynamicInformer(ws.client, gvr, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.LabelSelector = LabelInstance
	}).Informer()
	err := errors.Join(
		w.informer.SetTransform(func(o any) (any, error) {
			if u, ok := o.(*unstructured.Unstructured); ok {
				return look(u), nil
			}
			return o, nil
		}),
		w.informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
			w.mu.Lock()
			w.fail = err
			w.mu.Unlock()
			if isGone(err) { // its definition has gone, and with it all there were
				ws.forget(gvr, w)
				cancel()
			}
		}),
	)
	if err != nil {
		cancel()
		return nil, err
	}
	_, err = w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, now any) { ws.tell(old, now) },
		DeleteFunc: func(o any) { ws.tell(o, nil) },
	})
	if err != nil {
		cancel()
		return nil, err
	}
	ws.of[gvr] = w
	ws.going.Go(func() {
		defer cancel()
		w.informer.Run(ctx.Done())
	})
	return w, nil
}

// forget drops the watch of a kind that the cluster does not serve any more.
func (ws *watches) forget(gvr schema.GroupVersionResource, w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.of[gvr] == w {
		delete(ws.of, gvr)
	}
}

// tell passes on that something has changed.
func (ws *watches) tell(old, now any) {
	if unknown, ok := old.(cache.DeletedFinalStateUnknown); ok {
		old = unknown.Obj
	}
	before, ok := old.(*seen)
	if !ok {
		return
	}
	after, _ := now.(*seen)
	if after != nil && after.GetResourceVersion() == before.GetResourceVersion() {
		return // told again
	}
	what := "changed"
	if after == nil {
		what = "is gone"
	}
	if name := before.GetLabels()[LabelInstanceName]; name != "" {
		ws.changed(name, fmt.Sprintf("%s %s", keyOf(&before.Unstructured), what))
	}
}

func keyOf(u *unstructured.Unstructured) resourceKey {
	return resourceKey{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()}
}

// telling gathers what has changed, so that a burst of changes of an instance asks for one reconcile.
type telling struct {
	ask func(ctx context.Context, instance, reason string) error

	mu      sync.Mutex
	pending map[string]string
	some    chan struct{} // holds one token: there is something pending
}

func newTelling(ask func(ctx context.Context, instance, reason string) error) *telling {
	return &telling{ask: ask, pending: map[string]string{}, some: make(chan struct{}, 1)}
}

// add never blocks.
func (t *telling) add(instance, reason string) {
	t.mu.Lock()
	t.pending[instance] = reason
	t.mu.Unlock()
	select {
	case t.some <- struct{}{}:
	default:
	}
}

// gathered is for how long changes are gathered.
const gathered = 100 * time.Millisecond

// run asks until ctx is done. What could not be asked for is asked for again.
func (t *telling) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.some:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(gathered):
		}
		t.mu.Lock()
		all := t.pending
		t.pending = map[string]string{}
		t.mu.Unlock()
		for instance, reason := range all {
			if err := t.ask(ctx, instance, reason); err != nil && ctx.Err() == nil {
				t.add(instance, reason)
			}
		}
	}
}

func isGone(err error) bool { return apierrors.IsNotFound(err) }
