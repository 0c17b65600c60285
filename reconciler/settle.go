package reconciler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

const (
	// skew is how far the clocks of replicas and servers may be apart before a requeue that came due looks early. It would be
	// put to sleep until a time that has passed for the server, and come back at once, until the clocks agree.
	skew = time.Minute
	// early is how much before its time a retry may come because somebody asked for a look just then.
	early = time.Second
	// storeFirst and storeMax pace the repetition of a write that must not be lost.
	storeFirst, storeMax = 50 * time.Millisecond, 2 * time.Second
	// patchFor is for how long a status is offered to an API that cannot take it. Then the worker is freed for other
	// objects, and this one is reconciled again.
	patchFor = 30 * time.Second
)

type decision int

const (
	decideDone  decision = iota // nothing to do
	decideRun                   // call the function
	decideSleep                 // too early: NextAttempt stands
	decidePause                 // somebody paused it
)

// decide says what the object needs now. The state of the object decides, not the notification; that one only tells
// whether somebody asked for a look just now.
func (r *run) decide(now time.Time) decision {
	o, rec := r.object, &r.object.Reconciliation
	tolerance := skew
	if r.asked {
		tolerance = early
	}
	due := rec.NextAttempt != nil && !rec.NextAttempt.After(now.Add(tolerance))
	asked := r.asked && rec.Failures == 0
	switch {
	case o.Paused:
		return decidePause
	case changed(o), due:
	case rec.State == apiclient.StateReconciling: // a run that died
	case rec.State == apiclient.StatePaused: // it was resumed; what it was before is not known any more
	case rec.State == apiclient.StateStalled:
		return r.skip("stalled")
	case asked:
	case rec.NextAttempt != nil:
		r.emit(Event{Step: StepSkipped, Reason: "too early"})
		return decideSleep
	default:
		return r.skip("settled")
	}
	if o.DeletedAt != nil && !slices.Contains(o.Finalizers, r.finalizer()) {
		return r.skip("being deleted by others")
	}
	return decideRun
}

func (r *run) skip(why string) decision {
	r.emit(Event{Step: StepSkipped, Reason: why})
	return decideDone
}

// changed reports whether something is wanted that no finished reconcile has seen.
func changed(o *apiclient.Raw) bool {
	return o.Generation != o.Reconciliation.ObservedGeneration || o.RetryRequest != o.Reconciliation.HandledRetry
}

// settle stores the outcome on the object, then the requeue, each before what it replaces is given up. What changes nothing
// is not stored, unless an earlier turn may still write: the fence of this one's write keeps that out.
func (r *run) settle(out outcome) {
	if cause := context.Cause(r.lock.Context()); cause != nil && (out.err != nil || r.lock.Lost()) {
		r.interrupted()
		return
	}
	now := time.Now()
	rec := r.record(r.object, out, now)
	p := apiclient.StatusPatch{Status: out.status, Reconciliation: &rec}
	gone := r.object.DeletedAt != nil && out.err == nil && out.result.RequeueAfter <= 0
	if gone {
		p.RemoveFinalizers = []string{r.finalizer()}
	}
	if gone || out.status != nil || r.givenUp > 0 || !settled(r.object.Reconciliation, rec) {
		o, ok := r.patch(p)
		if !ok {
			return
		}
		if o != nil { // nil: it is gone
			rec = o.Reconciliation // the API may have refused the status
		}
		r.emit(Event{Step: StepPatched, State: rec.State})
	}
	if rec.NextAttempt != nil {
		r.sleepOn(*rec.NextAttempt)
	}
}

// settled reports whether storing next would change nothing but the time of the attempt.
func settled(have, next apiclient.Reconciliation) bool {
	return have.ObservedGeneration == next.ObservedGeneration && have.State == next.State && have.Failures == next.Failures &&
		have.LastError == next.LastError && have.HandledRetry == next.HandledRetry && have.NextAttempt == nil && next.NextAttempt == nil
}

// patch stores p under the run's fence. It reports false if the turn is over: someone newer is on the object, the object
// is gone or another, the lock is lost, or the API is out of reach for so long that the object is to be looked at again.
func (r *run) patch(p apiclient.StatusPatch) (*apiclient.Raw, bool) {
	p.UID, p.Fence = r.object.UID, r.lock.Fence()
	var o *apiclient.Raw
	giveUp := time.Now().Add(patchFor)
	err := r.store(func(ctx context.Context) (err error) {
		o, err = r.api.PatchStatus(ctx, r.turn.name, p)
		r.r.gate.note(err)
		return err
	}, func(err error) bool {
		return errors.Is(err, apiclient.ErrUnavailable) && r.lock.Context().Err() == nil && time.Now().Before(giveUp)
	})
	switch {
	case err == nil:
		return o, true
	case errors.Is(err, apiclient.ErrFenced), errors.Is(err, apiclient.ErrConflict), errors.Is(err, apiclient.ErrNotFound):
		r.fenced(err)
	case r.lock.Lost(), context.Cause(r.lock.Context()) != nil:
		r.interrupted()
	case p.Status != nil && errors.Is(err, apiclient.ErrInvalid):
		return r.patch(refused(p, r.attempt, err)) // the status itself may be what is wrong: report that instead
	default:
		r.emit(Event{Step: StepTrouble, Reason: "patch", Err: err})
		r.tryAgain(r.Backoff.Delay(r.attempt + r.givenUp))
	}
	return nil, false
}

// refused turns a patch whose status the API will not take into one that says so.
func refused(p apiclient.StatusPatch, attempt int, err error) apiclient.StatusPatch {
	rec := *p.Reconciliation
	rec.State, rec.Failures, rec.NextAttempt = apiclient.StateStalled, attempt, nil
	rec.LastError = short(fmt.Sprintf("the API refuses the status: %v", err))
	return apiclient.StatusPatch{Reconciliation: &rec}
}

// fenced drops the result: someone newer is on the object. If the lock is ours all the same, fences went backwards: the
// lock bucket was restored from an old copy, and nothing more can be stored until it is made anew.
func (r *run) fenced(err error) {
	r.emit(Event{Step: StepFenced, Err: err})
	if errors.Is(err, apiclient.ErrFenced) && !r.lock.Lost() {
		r.emit(Event{Step: StepTrouble, Reason: "the lock is held and its fence is refused as old: if this goes on, the lock bucket was " +
			"restored from a copy; delete it while no controller runs, it is made anew with higher fences", Err: err})
	}
}

// interrupted ends a run whose context was cancelled: by a stop, then the work is handed over; or because the lock is
// lost, then whoever finds the dead lock takes the work over.
func (r *run) interrupted() {
	if r.lock.Lost() {
		r.lost()
		return
	}
	r.handOver("its replica is stopping")
}

// handOver queues the object for any replica.
func (r *run) handOver(why string) {
	err := r.store(func(ctx context.Context) error {
		return r.r.publisher.PublishAlways(ctx, r.kind.kind, r.turn.name, why)
	}, func(error) bool { return true })
	if err != nil {
		r.lost()
		return
	}
	r.emit(Event{Step: StepHandedOver, Reason: why})
}

// sleepOn has the object looked at again at a time, to see whether it is due then.
func (r *run) sleepOn(at time.Time) { r.sleep(at, nil) }

// tryAgain has the object looked at again for what this turn could not do: whoever asked for it still waits.
func (r *run) tryAgain(after time.Duration) {
	r.sleep(time.Now().Add(after), notify.Again(r.reason, r.givenUp+1))
}

func (r *run) sleep(at time.Time, header nats.Header) {
	err := r.store(func(ctx context.Context) error {
		return r.r.queue.At(ctx, r.kind.kind, r.turn.name, at, header)
	}, func(error) bool { return true })
	if err != nil {
		r.lost()
		return
	}
	r.emit(Event{Step: StepRequeued, After: max(0, time.Until(at))})
}

// markPaused records that the object is paused, once.
func (r *run) markPaused() {
	rec := r.object.Reconciliation
	r.emit(Event{Step: StepSkipped, Reason: "paused"})
	if rec.State == apiclient.StatePaused {
		return
	}
	rec.State = apiclient.StatePaused
	r.patch(apiclient.StatusPatch{Reconciliation: &rec})
}

func (r *run) lost() {
	r.ended = true
	r.emit(Event{Step: StepLost})
}

// store repeats a write until it succeeds, is refused for good, or the lock is lost. A stop does not interrupt it.
func (r *run) store(write func(context.Context) error, again func(error) bool) error {
	ctx := context.WithoutCancel(r.lock.Context())
	told := false
	for pause := storeFirst; ; pause = min(2*pause, storeMax) {
		if r.lock.Lost() {
			return lock.ErrLost
		}
		err := write(ctx)
		if err == nil || !again(err) {
			return err
		}
		if pause == storeMax && !told {
			r.emit(Event{Step: StepTrouble, Reason: "store what is next", Err: err})
			told = true
		}
		sleep(ctx, pause)
	}
}
