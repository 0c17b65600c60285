package reconciler

import (
	"context"
	"time"

	"github.com/evenkeel-io/evenkeel/notify"
)

const (
	// holdEvery is how often notifications that wait for a lock are kept from being delivered to another replica.
	holdEvery = notify.AckWait / 3
	// maxWaiting is how many turns of a kind wait for locks at most, each with its notification. What is above it is
	// delivered again after notify.AckWait.
	maxWaiting = 4096
	// maxProbes is how many listed locks are read one by one each time.
	maxProbes = 32
	// lookTimeout bounds the request for the locks that are held, in case the word of a release got lost.
	lookTimeout = 5 * time.Second
)

// released lets a turn that waits try its lock again: now if a worker is free, else as soon as one is.
func (k *kind) released(ctx context.Context, t *turn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t.hint = true
	switch {
	case k.waiting[t.name] != t || t.queued:
	case k.busy < k.Workers:
		k.startLocked(ctx, t)
	default:
		k.readyLocked(t)
	}
}

// holdAlways keeps waiting notifications from being delivered to others, and finds the turns whose lock was released
// although no word of that came.
func (k *kind) holdAlways(ctx, working context.Context) {
	for {
		sleep(ctx, holdEvery)
		if ctx.Err() != nil {
			return
		}
		deliveries, elsewhere := k.waitingTurns()
		for _, d := range deliveries {
			_ = d.Hold() // fails only without a connection; then it is delivered again
		}
		for _, t := range k.freed(ctx, elsewhere) {
			k.released(working, t)
		}
	}
}

// waitingTurns returns the notifications of the turns that wait, in no order, and the turns that wait for a lock held elsewhere.
func (k *kind) waitingTurns() (deliveries []*notify.Delivery, elsewhere []*turn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.waiting {
		deliveries = append(deliveries, t.deliveries...)
		if t.unwatch != nil && !t.queued {
			elsewhere = append(elsewhere, t)
		}
	}
	return deliveries, elsewhere
}

// freed returns the turns whose lock is free, at the cost of one request: to try each lock would keep the workers from
// objects that can be worked on.
func (k *kind) freed(ctx context.Context, turns []*turn) (free []*turn) {
	if len(turns) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	held, err := k.r.locker.HeldKeys(ctx, k.kind+".>")
	if err != nil {
		if ctx.Err() == nil {
			k.r.emit(Event{Step: StepTrouble, Kind: k.kind, Reason: "list the locks that are held", Err: err})
		}
		return nil
	}
	probes := maxProbes // an abandoned lock is listed for long though it is free
	for _, t := range turns {
		_, ok := held[k.lockKey(t.name)]
		if ok && probes > 0 {
			probes--
			ok, err = k.r.locker.Held(ctx, k.lockKey(t.name))
			ok = ok || err != nil
		}
		if !ok {
			free = append(free, t)
		}
	}
	return free
}

// forget ends the watch on the lock.
func (t *turn) forget() {
	if t.unwatch != nil {
		t.unwatch()
		t.unwatch = nil
	}
}

func (t *turn) giveBack() {
	t.forget()
	for _, d := range t.deliveries {
		_ = d.Return() // fails only without a connection; then it comes back after AckWait
	}
}

// stop gives back what waits; what runs goes on.
func (k *kind) stop() {
	k.mu.Lock()
	k.stopping = true
	waiting := k.waiting
	k.ready, k.waiting = nil, map[string]*turn{}
	k.mu.Unlock()
	for _, t := range waiting {
		t.giveBack()
	}
}
