package reconciler

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

// process is the path of one notification, top to bottom. It reports true if the object's lock is held by somebody else,
// and the turn must wait.
//
// From take to release the lock is the only record of the work: whatever ends the turn in between must have stored what
// is next (a status, a requeue, a hand-over) before it releases, and if it cannot, must not release.
func (k *kind) process(ctx context.Context, t *turn) (contended bool) {
	lk, err := k.lock(ctx, t)
	if errors.Is(err, lock.ErrHeld) {
		return true
	}
	if err != nil {
		k.trouble(t, "lock", err)
		return false // untaken: it is delivered again
	}
	run := newRun(k, t, lk)
	if run.take() && run.read() && run.claim() {
		switch run.decide(k.r.now()) {
		case decideDone:
		case decideSleep:
			run.sleepOn(*run.object.Reconciliation.NextAttempt)
		case decidePause:
			run.markPaused()
		case decideRun:
			if run.addFinalizer() {
				run.settle(run.call())
			}
		}
	}
	run.release()
	return false
}

// run is a turn that holds the object's lock.
type run struct {
	*kind
	turn    *turn
	lock    *lock.Lock
	fence   uint64    // of every write: the lock's, or above it if the lock bucket went back in time
	asked   bool      // a notification that was taken asks for a look, as opposed to a requeue that came due
	givenUp int       // turns in a row before this one that stored no outcome
	sent    time.Time // the latest of the server's times of the notifications
	reason  string

	object  *apiclient.Raw // as read under the lock
	attempt int
	began   time.Time // of the call

	writing  chan struct{} // holds a token during a write in the call
	revision int64         // of the latest such write; for who holds the token

	// uncertain is whether a write of this run, or of the one before it, may still reach the API: whoever runs next must
	// claim the object first.
	uncertain atomic.Bool
	ended     bool // the lock must not be released: the work is unfinished and nothing else says so
}

func newRun(k *kind, t *turn, lk *lock.Lock) *run {
	r := &run{kind: k, turn: t, lock: lk, fence: lk.Fence(), reason: t.deliveries[0].Reason, writing: make(chan struct{}, 1)}
	r.uncertain.Store(lk.Predecessor() != nil)
	for _, d := range t.deliveries {
		if d.At.After(r.sent) {
			r.sent = d.At
		}
	}
	return r
}

// lock takes the object's lock. If it is held, the release is watched and the lock tried once more: it may have been
// released before the watch began.
func (k *kind) lock(ctx context.Context, t *turn) (*lock.Lock, error) {
	key := k.lockKey(t.name)
	lk, err := k.r.locker.TryLock(ctx, key)
	if errors.Is(err, lock.ErrHeld) && t.unwatch == nil {
		k.r.emit(Event{Step: StepContended, Kind: k.kind, Name: t.name, Reason: t.deliveries[0].Reason})
		stop, watchErr := k.r.locker.OnRelease(key, func() { k.released(ctx, t) })
		if watchErr != nil {
			return nil, watchErr
		}
		t.unwatch = stop
		lk, err = k.r.locker.TryLock(ctx, key)
	}
	if !errors.Is(err, lock.ErrHeld) {
		t.forget()
	}
	return lk, err
}

// take removes the notifications, so that a change from here on is notified anew. If it is unknown whether one was
// removed, the object is queued again.
//
// One that is gone was delivered to another replica as well, which took it under the lock. That replica has released since,
// so it has done what was asked for or queued the object again; or it died, and the object was queued before its lock was
// freed. So nothing is asked for here any more, and what the object says decides alone: a change that was lost with the
// stream's data is found by that.
func (r *run) take() bool {
	r.emit(Event{Step: StepLocked})
	for _, d := range r.turn.deliveries {
		switch err := d.Take(r.lock.Context()); {
		case err == nil:
			r.heed(d)
		case errors.Is(err, notify.ErrGone):
		default:
			r.emit(Event{Step: StepTrouble, Reason: "take", Err: err})
			r.handOver("it is unknown whether its notification was taken")
			return false
		}
	}
	return true
}

// heed notes what a notification asks for.
func (r *run) heed(d *notify.Delivery) {
	r.asked, r.givenUp = r.asked || d.Asked, max(r.givenUp, d.GivenUp)
}

// read gets the object as it is now. If it cannot be read, it sleeps with backoff; if nothing can, the gate closes.
func (r *run) read() bool {
	o, err := r.api.Get(r.lock.Context(), r.turn.name)
	r.r.gate.note(err)
	switch {
	case err == nil:
		r.object = o
		return true
	case errors.Is(err, apiclient.ErrNotFound):
		r.uncertain.Store(false) // there is nothing left that a late write could reach
		r.emit(Event{Step: StepSkipped, Reason: "the object is gone"})
	case r.lock.Context().Err() != nil:
		r.interrupted()
	default:
		r.emit(Event{Step: StepTrouble, Reason: "read", Err: err})
		r.tryAgain(err)
	}
	return false
}

// addFinalizer marks the object as one that must be cleaned up, before anything is made for it.
func (r *run) addFinalizer() bool {
	if !r.cleans || r.object.DeletedAt != nil || slices.Contains(r.object.Finalizers, r.finalizer()) {
		return true
	}
	if r.fits(r.object) != nil {
		return true // it will stall without a call: there is nothing to clean up, and a cleanup would stall as well
	}
	o, ok := r.patch(apiclient.StatusPatch{AddFinalizers: []string{r.finalizer()}})
	if !ok {
		return false
	}
	o.Kind, r.object = r.object.Kind, o
	return true
}

// finalizer is named after the prefix. The objects of a kind in one API belong to one prefix: the fences of two lock buckets
// cannot be compared, and the API would refuse those of the older one.
func (k *kind) finalizer() string { return k.r.cfg.Prefix }

// call runs the function.
func (r *run) call() outcome {
	r.attempt, r.began = attempt(r.object), r.r.now()
	r.emit(Event{Step: StepStarted, Reason: r.reason})
	r.mark(r.turn, true)
	stop := r.announce(r.lock.Context())
	during := &checkpoint{write: r.checkpoint}
	watched := r.watchDeadline(r.lock.Context(), during)
	out := r.invoke(r.lock.Context(), r.r.cfg.Logger, r.object, r.fence, r.reason, during)
	overdue := watched()
	stop()
	if during.end() != nil || overdue {
		r.object.Reconciliation.State = runningState(r.object)
	}
	r.mark(r.turn, false)
	r.emit(Event{Step: StepFinished, Duration: out.took, Err: out.err})
	return out
}

// release ends the turn.
func (r *run) release() {
	if r.ended {
		return
	}
	if r.uncertain.Load() {
		r.lock.Abandon()
	} else {
		r.lock.Unlock()
	}
	r.emit(Event{Step: StepReleased})
}

// called reports whether the function has been called.
func (r *run) called() bool { return !r.began.IsZero() }

// emit fills in what the run knows.
func (r *run) emit(e Event) {
	e.Kind, e.Name, e.Fence, e.Attempt = r.kind.kind, r.turn.name, r.fence, r.attempt
	if r.object != nil {
		e.Generation, e.Deleting = r.object.Generation, r.object.DeletedAt != nil
	}
	r.r.emit(e)
}

func (k *kind) trouble(t *turn, doing string, err error) {
	k.r.emit(Event{Step: StepTrouble, Kind: k.kind, Name: t.name, Reason: doing, Err: err})
}
