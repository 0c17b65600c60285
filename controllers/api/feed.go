package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

const (
	// feedPage is how many changes are read at once.
	feedPage = 200
	// feedSoon and feedLate: after a change the feed looks again soon, for what was still being committed beside it; without
	// changes it takes longer each time. This is the delay of what another API on the same store has written.
	feedSoon, feedLate = 10 * time.Millisecond, 500 * time.Millisecond
	// feedFailed is the wait after the store has failed.
	feedFailed = time.Second
	// watcherBehind is how many events a watcher may be behind, besides what the network holds, before it is cut off.
	watcherBehind = 256
	// maxWatchers bounds the watches of one API.
	maxWatchers = 10_000
)

// feed tells watchers what has changed: one reader of the store for all of them.
type feed struct {
	store *store
	log   logr.Logger
	wake  chan struct{} // holds one token: something may have been written, or somebody began to watch

	mu       sync.Mutex // guards what follows
	running  bool
	watchers map[*watcher]struct{}
	at       place // up to where watchers have been told; meaningless while there are none
	steps    int64 // how many have begun: what the last one tells was read since
}

// watcher is one watch that has come up to the present.
type watcher struct {
	scope scope
	// secrets is whether it may be shown them.
	secrets bool
	// from is where its events begin.
	from place
	// events is closed when the watcher was too slow, or the feed has ended.
	events chan event
}

// event is one that is ready to be sent.
type event struct {
	at   place
	kind string
	data []byte
	// revision is that of the object, 0 if it has gone, and step in which step of the feed it was read.
	revision, step int64
	// object is there instead of data if it is to be shown in another version than it is stored in. The watcher has it converted:
	// the feed must not wait for a hook.
	object *apiclient.Raw
	later  *later
	job    int // of later
}

// scope is what a watcher watches.
type scope struct {
	kind    string
	version string
	name    string // every one, if it is empty
	labels  map[string]string
}

func (s *scope) covers(k objects.Key) bool {
	return s.kind == k.Kind && (s.name == "" || s.name == k.Name)
}

// selects reports whether an object is among those that are watched.
func (s *scope) selects(o *apiclient.Raw) bool { return objects.Labeled(o, s.labels) }

func newFeed(s *store, log logr.Logger) *feed {
	return &feed{store: s, log: log, wake: make(chan struct{}, 1), watchers: map[*watcher]struct{}{}}
}

// nudge says that something was written. It never waits.
func (f *feed) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// open returns nil if it can take another watcher.
func (f *feed) open() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.takes()
}

func (f *feed) takes() error {
	switch {
	case !f.running:
		return errNoFeed
	case len(f.watchers) >= maxWatchers:
		return errCrowded
	}
	return nil
}

// subscribe begins a watch at the present.
func (f *feed) subscribe(ctx context.Context, s scope) (*watcher, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.takes(); err != nil {
		return nil, err
	}
	if len(f.watchers) == 0 {
		f.nudge()                            // which waits for the lock
		state, err := f.store.feedState(ctx) // under the lock: whoever else begins to watch needs it, too
		if err != nil {
			return nil, err
		}
		f.at = place{change: state.settled, kind: behindAll}
	}
	w := &watcher{scope: s, secrets: readsSecrets(ctx, s.kind), from: f.at, events: make(chan event, watcherBehind)}
	f.watchers[w] = struct{}{}
	return w, nil
}

var (
	errNoFeed  = errors.New("watches are not served now")
	errCrowded = fmt.Errorf("%d watches are served, and no more", maxWatchers)
)

// cut ends a watcher, and cutAll all of them. Callers hold mu.
func (f *feed) cut(w *watcher) {
	if _, there := f.watchers[w]; there {
		delete(f.watchers, w)
		close(w.events)
	}
}

func (f *feed) unsubscribe(w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut(w)
}

// told returns up to where the feed has told its watchers, the number of the latest step, and whether w is still subscribed. If w
// was cut off, others may have been told more than it. If w is subscribed and its channel is empty after this call, it has been
// sent everything up to that place.
func (f *feed) told(w *watcher) (at place, step int64, still bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, still = f.watchers[w]
	return f.at, f.steps, still
}

// begin begins a step, and returns up to where watchers have been told.
func (f *feed) begin() place {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps++
	return f.at
}

// end cuts everybody off, and lets nobody in any more.
func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = false
	f.cutAll()
}

func (f *feed) cutAll() {
	for w := range f.watchers {
		f.cut(w)
	}
}

// run feeds until ctx is done.
func (f *feed) run(ctx context.Context) error {
	f.mu.Lock()
	f.running = true
	f.mu.Unlock()
	defer f.end()
	timer := time.NewTimer(feedLate)
	defer timer.Stop()
	for wait := feedLate; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
			wait = feedSoon
		case <-timer.C:
		}
		if f.count() == 0 {
			continue // until somebody begins to watch, who wakes it
		}
		n, err := f.step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			f.log.Error(err, "feed of watches, trying again")
			wait = feedFailed
		case n == feedPage:
			wait = 0
		case n > 0:
			wait = feedSoon
		default:
			wait = min(feedLate, max(feedSoon, 2*wait))
		}
		timer.Reset(wait)
	}
}

// count is how many watch now.
func (f *feed) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watchers)
}

// step tells watchers of one page of changes.
func (f *feed) step(ctx context.Context) (n int, err error) {
	from := f.begin()
	page, err := f.store.changesAfter(ctx, from, feedPage)
	if errors.Is(err, errTrimmed) {
		f.mu.Lock()
		f.cutAll() // they come back, and are shown everything
		f.mu.Unlock()
		err = nil
	}
	if len(page) == 0 {
		return 0, err
	}
	keys, kinds := f.wanted(page)
	found, err := f.store.objectsOf(ctx, keys)
	if err != nil {
		return 0, err
	}
	return f.pass(ctx, from, page, kinds, found)
}

// pass tells watchers of a page, whose objects of some kinds have been read.
func (f *feed) pass(ctx context.Context, from place, page []change, kinds map[string]bool, read map[objects.Key]apiclient.Raw) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at != from { // the last watcher left, and the next one began elsewhere
		return len(page), nil
	}
	for w := range f.watchers {
		if !kinds[w.scope.kind] { // it came while they were read: what was not read would be told as gone
			return len(page), nil
		}
	}
	if err := f.tell(ctx, latest(page), read); err != nil {
		return 0, err
	}
	f.at = page[len(page)-1].place
	return len(page), nil
}

// wanted are the keys of a page that somebody watches, and the kinds that are watched.
func (f *feed) wanted(page []change) (keys []objects.Key, kinds map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kinds = map[string]bool{}
	for w := range f.watchers {
		kinds[w.scope.kind] = true
	}
	for _, c := range latest(page) {
		if kinds[c.kind] {
			keys = append(keys, c.key())
		}
	}
	return keys, kinds
}
