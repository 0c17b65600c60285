package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/notify"
)

// maxDetached is how many turns of a kind may go on without a worker, at least: those of functions that ignore their
// deadline, and of results that cannot be stored now. With more, they keep their workers, which bounds the goroutines.
const maxDetached = 64

// kind dispatches the notifications of one controller to its workers.
type kind struct {
	Controller
	r        *Runner
	api      *apiclient.Client[json.RawMessage, json.RawMessage]
	consumer *notify.Consumer
	workers  sync.WaitGroup // one for each busy worker
	search   chan struct{}  // resync is wanted now

	mu       sync.Mutex
	stopping bool
	busy     int                 // workers at work, at most Workers
	calling  int                 // of them, those in a function: it may take hours, and says nothing about the API
	detached int                 // turns that go on without a worker
	running  map[string]struct{} // names whose turn is under way here
	waiting  map[string]*turn    // turns that wait for a lock or, if also in ready, for a worker; none once stopping is set
	ready    []*turn             // may go on as soon as a worker is free; each is in waiting
}

// turn is one object's way through a worker: the notifications that asked for it, and how it waits for its lock.
type turn struct {
	name       string
	deliveries []*notify.Delivery
	unwatch    func()      // ends the watch on the lock; nil if there is none
	detach     func() bool // gives its worker to others, see kind.detach
	hint       bool        // the lock was released since it was last tried; guarded by kind.mu
	queued     bool        // it is in kind.ready; guarded by kind.mu
	calling    bool        // its function is being called; guarded by kind.mu
	detached   bool        // it goes on without a worker; guarded by kind.mu
	over       bool        // it has ended; guarded by kind.mu
}

func newKind(r *Runner, c Controller, api *apiclient.Client[json.RawMessage, json.RawMessage]) *kind {
	return &kind{Controller: c, r: r, api: api.At(c.Version), search: make(chan struct{}, 1), running: map[string]struct{}{}, waiting: map[string]*turn{}}
}

func (k *kind) lockKey(name string) string { return subject.LockKey(k.kind, name) }

func (k *kind) open(ctx context.Context) (err error) {
	k.consumer, err = notify.NewConsumer(ctx, k.r.cfg.NATS, notify.ConsumerConfig{
		Config: k.r.cfg.notify(), Kind: k.kind, MaxFree: k.Workers, Free: k.free, OnMissing: k.r.lacks, OnChanged: k.changed,
		OnError: func(doing string, err error) {
			k.r.emit(Event{Step: StepTrouble, Kind: k.kind, Reason: doing, Err: err})
		},
	})
	return err
}

// changed has the stream repaired, and then a search for what was lost with it.
func (k *kind) changed(what string) {
	k.r.emit(Event{Step: StepTrouble, Kind: k.kind, Reason: "look at the stream", Err: errors.New(what)})
	k.r.lacks()
}

// run pulls until ctx ends. Workers run under working, which outlives ctx by the grace period.
func (k *kind) run(ctx, working context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var holding sync.WaitGroup
	defer holding.Wait()
	defer cancel() // also if it cannot pull at all
	holding.Go(func() { k.holdAlways(ctx, working) })
	err := k.consumer.Run(ctx, func(d *notify.Delivery) { k.dispatch(working, d) })
	k.stop()
	return err
}

// free is how many notifications may be pulled now.
func (k *kind) free() int {
	if !k.r.locker.Ready() {
		return 0
	}
	return k.room()
}

// room is how many more turns may begin now, if locks can be taken.
func (k *kind) room() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.r.gate.limit(max(0, k.Workers-k.busy-len(k.ready)), k.busy-k.calling)
}

// placement is what becomes of a notification.
type placement int

const (
	placed  placement = iota
	behind            // it waits for a turn that is under way here
	nowhere           // no worker is free
)

// dispatch starts a worker on a notification. One that came although no worker is free goes back to the broker, where
// a replica with a free worker finds it.
func (k *kind) dispatch(ctx context.Context, d *notify.Delivery) {
	switch k.place(ctx, d) {
	case behind:
		k.r.emit(Event{Step: StepContended, Kind: k.kind, Name: d.Name, Reason: d.Reason})
	case nowhere:
		_ = d.Return() // fails only without a connection; then it comes back after AckWait
	case placed:
	}
}

// place decides about a notification. Like everything that holds mu it neither talks to the server nor calls the
// observer: the client can block while its link stalls.
func (k *kind) place(ctx context.Context, d *notify.Delivery) placement {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.waiting[d.Name]; w != nil {
		w.deliveries = append(w.deliveries, d)
		return placed
	}
	t := &turn{name: d.Name, deliveries: []*notify.Delivery{d}}
	if _, here := k.running[d.Name]; here && !k.stopping {
		k.waiting[d.Name] = t
		return behind
	}
	if k.stopping || k.busy >= k.Workers {
		return nowhere
	}
	k.startLocked(ctx, t)
	return placed
}

func (k *kind) startLocked(ctx context.Context, t *turn) {
	k.busy++
	k.beginLocked(t)
	k.workers.Go(func() { k.work(ctx, t) })
}

func (k *kind) beginLocked(t *turn) {
	delete(k.waiting, t.name)
	t.hint, t.queued = false, false
	k.running[t.name] = struct{}{}
}

// work is a worker: one turn, then whatever waits for a worker here, until nothing does.
func (k *kind) work(ctx context.Context, t *turn) {
	for t != nil {
		here := t
		t.detach = func() bool { return k.detach(ctx, here) }
		contended := k.process(ctx, t)
		t = k.next(ctx, t, contended)
	}
	k.consumer.Wake()
}

// detach gives the worker of a turn to others while the turn goes on, with its lock held: its function ignores its
// deadline, or its result cannot be stored now. It reports false if too many go on like that already.
func (k *kind) detach(ctx context.Context, t *turn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t.detached || t.over {
		return true
	}
	if k.detached >= max(maxDetached, k.Workers) {
		return false
	}
	k.markLocked(t, false)
	t.detached = true
	k.detached++
	k.busy--
	k.fillLocked(ctx)
	k.consumer.Wake()
	return true
}

// mark notes whether the turn is in its function.
func (k *kind) mark(t *turn, calling bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.markLocked(t, calling)
}

func (k *kind) markLocked(t *turn, calling bool) {
	switch {
	case calling == t.calling, calling && t.detached:
		return
	case calling:
		k.calling++
	default:
		k.calling--
	}
	t.calling = calling
}

// fillLocked gives free workers to turns that are ready.
func (k *kind) fillLocked(ctx context.Context) {
	for len(k.ready) > 0 && k.busy < k.Workers {
		t := k.ready[0]
		k.ready = k.ready[1:]
		k.startLocked(ctx, t)
	}
}

// next ends a turn and finds the worker another one, or none.
func (k *kind) next(ctx context.Context, t *turn, contended bool) *turn {
	k.mu.Lock()
	delete(k.running, t.name)
	t.over = !contended
	crowded := contended && !k.parkLocked(t)
	if later := k.waiting[t.name]; !contended && later != nil { // asked for while the turn ran
		k.readyLocked(later)
	}
	unwanted := k.takeUnwantedLocked()
	w := k.followLocked(ctx, t)
	k.mu.Unlock()
	if crowded {
		t.forget()
	}
	for _, u := range unwanted {
		u.giveBack()
	}
	return w
}

// parkLocked lets a turn wait for its lock, and reports false if too many do.
func (k *kind) parkLocked(t *turn) bool {
	later := k.waiting[t.name]
	if later == nil && len(k.waiting) >= maxWaiting {
		return false
	}
	if later != nil {
		t.deliveries = append(t.deliveries, later.deliveries...)
	}
	k.waiting[t.name] = t
	if t.hint || k.stopping {
		k.readyLocked(t)
	}
	return true
}

// followLocked returns the turn that the worker of one that has ended takes up, nil for none.
func (k *kind) followLocked(ctx context.Context, ended *turn) *turn {
	if ended.detached {
		k.detached--
		k.fillLocked(ctx)
		return nil
	}
	if len(k.ready) == 0 {
		k.busy--
		return nil
	}
	w := k.ready[0]
	k.ready = k.ready[1:]
	k.beginLocked(w)
	return w
}

// takeUnwantedLocked returns what is ready and goes back to the broker, because the runner is stopping.
func (k *kind) takeUnwantedLocked() []*turn {
	if !k.stopping {
		return nil
	}
	unwanted := k.ready
	k.ready = nil
	for _, t := range unwanted {
		delete(k.waiting, t.name)
	}
	return unwanted
}

func (k *kind) readyLocked(t *turn) {
	t.queued = true
	k.ready = append(k.ready, t)
}

// atWork names the objects whose functions run.
func (k *kind) atWork() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.running {
		names = append(names, k.kind+"/"+name)
	}
	slices.Sort(names)
	return names
}
