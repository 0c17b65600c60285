package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	"github.com/evenkeel-io/evenkeel/internal/subject"
)

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
	end      context.CancelFunc
	// completed are the UIDs of the jobs that were seen to have run to their end, the latest keptCompleted of them: the cluster may
	// remove one before anybody has looked.
	completed *lru.Cache

	mu    sync.Mutex
	fail  error // of the latest try to open it, nil if that went well
	since time.Time
}

// keptCompleted is of how many jobs a watch remembers that they have completed, some 100 bytes each.
const keptCompleted = 10_000

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
		known := func() bool { return w.informer.HasSynced() || w.failure(0) != nil }
		if !cache.WaitForCacheSync(ctx.Done(), known) || !w.informer.HasSynced() {
			return nil, fmt.Errorf("watch %s: %w", gvr.GroupResource(), cmp.Or(w.failure(0), errNoAnswer))
		}
	}
	if err := w.failure(believed); err != nil {
		return nil, fmt.Errorf("watch %s: %w", gvr.GroupResource(), err)
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

// sawComplete reports whether the watch of a kind has seen the job of that UID run to its end.
func (ws *watches) sawComplete(gvr schema.GroupVersionResource, uid string) bool {
	ws.mu.Lock()
	w := ws.of[gvr]
	ws.mu.Unlock()
	if w == nil {
		return false
	}
	_, saw := w.completed.Get(uid)
	return saw
}

// believed is for how long a watch that cannot be opened again is believed.
const believed = 10 * time.Second

// failure is why the watch cannot be opened, if that has been so for so long.
func (w *watch) failure(since time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail == nil || time.Since(w.since) < since {
		return nil
	}
	return w.fail
}

// note keeps the outcome of a try to open the watch.
func (w *watch) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail == nil {
		w.since = time.Now()
	}
	w.fail = err
}

// source opens a watch, and says what came of that.
func (ws *watches) source(gvr schema.GroupVersionResource, w *watch) cache.ListerWatcher {
	resources := ws.client.Resource(gvr)
	note := func(err error) { // also when the watch was ended: somebody may be waiting for it
		w.note(err)
		if isGone(err) { // its definition has gone, and with it all there were
			ws.drop(gvr, w)
		}
	}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = LabelInstance
			all, err := resources.List(ctx, o)
			note(err)
			if err != nil {
				return nil, err
			}
			return all, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			o.LabelSelector = LabelInstance
			var cutOff error
			events, err := resources.Watch(context.WithValue(ctx, attemptKey{}, &cutOff), o)
			if err == nil && cutOff != nil {
				note(fmt.Errorf("%w: %w", errNoAnswer, cutOff))
			} else {
				note(err)
			}
			return events, err
		},
	}, ws.client)
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
	w := &watch{end: cancel, completed: lru.New(keptCompleted)}
	w.informer = cache.NewSharedIndexInformerWithOptions(ws.source(gvr, w), new(unstructured.Unstructured),
		cache.SharedIndexInformerOptions{ObjectDescription: gvr.String()})
	err := w.informer.SetTransform(func(o any) (any, error) {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return o, nil
		}
		s := look(u)
		if hasCompleted(s) { // here, and not in a handler, which hears of it after the store
			w.completed.Add(string(s.GetUID()), nil)
		}
		return s, nil
	})
	err = errors.Join(err, w.informer.SetWatchErrorHandler(func(*cache.Reflector, error) {})) // source knows better
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

// drop ends the watch of a kind that the cluster does not serve any more, or that is to be opened anew.
func (ws *watches) drop(gvr schema.GroupVersionResource, w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.of[gvr] == w {
		delete(ws.of, gvr)
	}
	w.end()
}

// renew opens anew what could not be opened: the cluster is back, and reflectors would wait up to half a minute. What changed
// meanwhile the new watch cannot tell, so that all instances are looked at that have something in it.
func (ws *watches) renew() {
	failing := map[schema.GroupVersionResource]*watch{}
	ws.mu.Lock()
	for gvr, w := range ws.of {
		if w.failure(0) != nil {
			failing[gvr] = w
		}
	}
	ws.mu.Unlock()
	for gvr, w := range failing {
		ws.drop(gvr, w)
		for _, o := range w.informer.GetStore().List() {
			if s, ok := o.(*seen); ok {
				ws.ask(s, "the cluster of "+keyOf(&s.Unstructured).String()+" answers again")
			}
		}
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
	ws.ask(before, fmt.Sprintf("%s %s", keyOf(&before.Unstructured), what))
}

// ask asks for a reconcile of the instance that a resource bears the name of. The label is anybody's to write: what cannot be a
// name is none.
func (ws *watches) ask(s *seen, reason string) {
	if name := s.GetLabels()[LabelInstanceName]; subject.CheckObject(Instances, name) == nil {
		ws.changed(name, reason)
	}
}

func keyOf(u *unstructured.Unstructured) resourceKey {
	return resourceKey{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()}
}

func isGone(err error) bool { return apierrors.IsNotFound(err) }
