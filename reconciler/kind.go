package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/notify"
)

// holdEvery is how often notifications that wait for a lock are kept from being delivered anew, and the lock is tried
// again in case word of its release got lost.
const holdEvery = notify.AckWait / 3

// kind dispatches the notifications of one controller to its workers.
type kind struct {
	Controller
	r        *Runner
	api      *apiclient.Client[json.RawMessage, json.RawMessage]
	consumer *notify.Consumer
	workers  sync.WaitGroup // one for each busy worker
	search   chan struct{}  // resync is wanted now

	calling atomic.Int64 // workers that are in a function: it may take hours, and says nothing about the API

	mu       sync.Mutex
	stopping bool
	busy     int                 // workers at work, at most Workers
	running  map[string]struct{} // names whose turn is under way here
	waiting  map[string]*turn    // turns that wait for a lock or, if also in ready, for a worker
	ready    []*turn             // may go on as soon as a worker is free
}

// turn is one object's way through a worker: the notifications that asked for it, and how it waits for its lock.
type turn struct {
	name       string
	deliveries []*notify.Delivery
	unwatch    func() // ends the watch on the lock; nil if there is none
	hint       bool   // the lock was released since it was last tried; guarded by kind.mu
	queued     bool   // it is in kind.ready; guarded by kind.mu
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
	var holding sync.WaitGroup
	defer holding.Wait()
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
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.r.gate.limit(max(0, k.Workers-k.busy-len(k.ready)), k.busy-int(k.calling.Load()))
}

// dispatch starts a worker on a notification. One that came although no worker is free goes back to the broker, where
// a replica with a free worker finds it.
func (k *kind) dispatch(ctx context.Context, d *notify.Delivery) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.waiting[d.Name]; w != nil {
		w.deliveries = append(w.deliveries, d)
		return
	}
	t := &turn{name: d.Name, deliveries: []*notify.Delivery{d}}
	if _, here := k.running[d.Name]; here {
		k.waiting[d.Name] = t
		k.r.emit(Event{Step: StepContended, Kind: k.kind, Name: d.Name, Reason: d.Reason})
		return
	}
	if k.stopping || k.busy >= k.Workers {
		_ = d.Return() // fails only without a connection; then it comes back after AckWait
		return
	}
	k.startLocked(ctx, t)
}

func (k *kind) startLocked(ctx context.Context, t *turn) {
	k.busy++
	k.beginLocked(t)
	k.workers.Go(func() { k.work(ctx, t) })
}

func (k *kind) beginLocked(t *turn) {
	if k.waiting[t.name] == t {
		delete(k.waiting, t.name)
	}
	t.hint, t.queued = false, false
	k.running[t.name] = struct{}{}
}

// work is a worker: one turn, then whatever waits for a worker here, until nothing does.
func (k *kind) work(ctx context.Context, t *turn) {
	for t != nil {
		contended := k.process(ctx, t)
		t = k.next(t, contended)
	}
	k.consumer.Wake()
}

// next ends a turn and finds the worker another one, or none.
func (k *kind) next(t *turn, contended bool) *turn {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.running, t.name)
	later := k.waiting[t.name] // asked for while the turn ran
	switch {
	case contended && later != nil:
		t.deliveries = append(t.deliveries, later.deliveries...)
		fallthrough
	case contended:
		k.waiting[t.name] = t
		if t.hint || k.stopping {
			k.readyLocked(t)
		}
	case later != nil:
		k.readyLocked(later)
	}
	for len(k.ready) > 0 {
		w := k.ready[0]
		k.ready = k.ready[1:]
		k.beginLocked(w)
		if !k.stopping {
			return w
		}
		delete(k.running, w.name)
		w.giveBack()
	}
	k.busy--
	return nil
}

func (k *kind) readyLocked(t *turn) {
	if !t.queued {
		t.queued = true
		k.ready = append(k.ready, t)
	}
}

// released lets a turn that waits try its lock again: now if a worker is free, else as soon as one is.
func (k *kind) released(ctx context.Context, t *turn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t.hint = true
	switch {
	case k.waiting[t.name] != t || t.queued || k.stopping:
	case k.busy < k.Workers:
		k.startLocked(ctx, t)
	default:
		k.readyLocked(t)
	}
}

// holdAlways keeps waiting notifications from being delivered anew, and tries their locks again now and then.
func (k *kind) holdAlways(ctx, working context.Context) {
	for {
		sleep(ctx, holdEvery)
		if ctx.Err() != nil {
			return
		}
		for _, t := range k.hold() {
			k.released(working, t)
		}
	}
}

// hold returns the turns that wait for a lock held elsewhere.
func (k *kind) hold() (elsewhere []*turn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.waiting {
		for _, d := range t.deliveries {
			_ = d.Hold() // fails only without a connection; then it is delivered anew
		}
		if t.unwatch != nil {
			elsewhere = append(elsewhere, t)
		}
	}
	return elsewhere
}

func (t *turn) giveBack() {
	if t.unwatch != nil {
		t.unwatch()
	}
	for _, d := range t.deliveries {
		_ = d.Return() // fails only without a connection; then it comes back after AckWait
	}
}

// stop gives back what waits; what runs goes on.
func (k *kind) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopping = true
	for _, t := range k.waiting {
		t.giveBack()
	}
	k.ready, k.waiting = nil, map[string]*turn{}
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
