package reconciler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/requeue"
)

const (
	// early is how much before its time a retry may come: the clocks of replicas differ a little.
	early = time.Second
	// storeFirst and storeMax pace the repetition of a write that must not be lost.
	storeFirst, storeMax = 50 * time.Millisecond, 15 * time.Second
	// storeTold is from which pause on a write that does not succeed is reported.
	storeTold = 2 * time.Second
	// workerFor is how long a worker waits for a write that does not succeed. Then it goes to other objects, and the
	// turn goes on without it.
	workerFor = time.Second
	// patchFor is for how long a status is offered to an API that cannot take it. Then the object is reconciled again.
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
// whether a look was asked for just now, and how late it is by the server's clock, by which requeues come due.
func (r *run) decide(now time.Time) decision {
	o, rec := r.object, &r.object.Reconciliation
	if r.sent.After(now) {
		now = r.sent
	}
	due := rec.NextAttempt != nil && !rec.NextAttempt.After(now.Add(early))
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

// settle stores the outcome on the object, then the requeue, each before what it replaces is given up, and tells those who wait
// for that. What changes nothing is not stored: nothing of an earlier run can arrive any more, see claim.
func (r *run) settle(out outcome) {
	if cause := context.Cause(r.lock.Context()); cause != nil && (out.err != nil || r.lock.Lost()) {
		r.interrupted()
		return
	}
	p, changes := r.outcomePatch(out)
	rec := *p.Reconciliation
	if changes {
		o, ok := r.patch(p)
		if !ok {
			return
		}
		if o != nil { // nil: it is gone
			rec = o.Reconciliation // the API may have refused the status
		}
		r.emit(Event{Step: StepPatched, State: rec.State})
	}
	r.logOutcome(out, rec)
	if rec.NextAttempt != nil {
		r.sleepOn(*rec.NextAttempt)
	}
	r.tellStored(out)
}

// patch stores p under the run's fence. It reports false if the turn is over: someone newer is on the object, the object
// is gone or another, the lock is lost, or the API cannot store it for so long that the object is to be looked at again.
func (r *run) patch(p apiclient.StatusPatch) (*apiclient.Raw, bool) {
	p.UID, p.Fence = r.object.UID, r.fence
	var o *apiclient.Raw
	giveUp := time.Now().Add(patchFor)
	if !r.called() {
		giveUp = time.Now().Add(workerFor) // what follows needs a worker
	}
	err := r.store(func(ctx context.Context) (err error) {
		o, err = r.patchStatus(ctx, p)
		r.r.gate.note(err)
		return err
	}, func(err error) bool {
		return errors.Is(err, apiclient.ErrUnavailable) && r.lock.Context().Err() == nil && time.Now().Before(giveUp)
	})
	switch {
	case err == nil:
		r.uncertain.Store(false) // what was sent before says the same
		return o, true
	case errors.Is(err, apiclient.ErrFenced), errors.Is(err, apiclient.ErrConflict), errors.Is(err, apiclient.ErrNotFound):
		r.fenced(err)
	case r.lock.Lost(), context.Cause(r.lock.Context()) != nil:
		r.interrupted()
	case p.Status != nil && errors.Is(err, apiclient.ErrInvalid):
		return r.patch(refused(p, r.attempt, err)) // the status itself may be what is wrong: report that instead
	default:
		r.emit(Event{Step: StepTrouble, Reason: "patch", Err: err})
		r.tryAgain(err)
	}
	return nil, false
}

// patchStatus sends one status patch, and notes if nobody knows whether it takes effect.
func (r *run) patchStatus(ctx context.Context, p apiclient.StatusPatch) (*apiclient.Raw, error) {
	o, err := r.api.PatchStatus(ctx, r.turn.name, p)
	if unanswered(err) {
		r.uncertain.Store(true)
	}
	return o, err
}

// unanswered reports whether a write that failed may still take effect: no answer came, or one that may be a proxy's.
func unanswered(err error) bool {
	var p *apiclient.Problem
	if errors.As(err, &p) {
		return p.Status >= 500 || p.Status == http.StatusRequestTimeout
	}
	return errors.Is(err, apiclient.ErrUnavailable) || errors.Is(err, apiclient.ErrUnexpectedResponse)
}

// refused turns a patch whose status the API will not take into one that says so.
func refused(p apiclient.StatusPatch, attempt int, err error) apiclient.StatusPatch {
	rec := *p.Reconciliation
	rec.State, rec.Failures, rec.NextAttempt = apiclient.StateStalled, attempt, nil
	rec.LastError = short(fmt.Sprintf("the API refuses the status: %v", err))
	return apiclient.StatusPatch{Reconciliation: &rec}
}

// fenced drops the result: someone newer is on the object, or the object is another. If the lock is ours all the same, the
// fence was passed by another installation, or by one from before the lock bucket went back in time: the next run claims
// the object with a higher one. If it is unknown whose the lock is, the object is tried again as well: once too often is
// better than never.
func (r *run) fenced(err error) {
	r.emit(Event{Step: StepFenced, Err: err})
	if errors.Is(err, apiclient.ErrFenced) && !errors.Is(r.lock.Confirm(r.lock.Held()), lock.ErrLost) {
		r.tryAgain(err)
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
	}, always)
	if r.kept(err) {
		r.emit(Event{Step: StepHandedOver, Reason: why})
	}
}

// sleepOn has the object looked at again at a time, to see whether it is due then.
func (r *run) sleepOn(at time.Time) { r.sleep(at, nil) }

// tryAgain has the object looked at again for what this turn could not do because of err: the look that was asked for is
// still owed.
func (r *run) tryAgain(err error) {
	r.sleep(r.r.now().Add(r.againIn(err)), notify.Again(r.reason, r.givenUp+1))
}

// againIn draws the delay of tryAgain. It grows with each turn that could not do its work; while the API is out of reach it
// stays short, because that is not the object's fault and the gate bounds what is asked for.
func (r *run) againIn(err error) time.Duration {
	delay := r.Backoff.Delay(max(1, r.attempt) + r.givenUp)
	if outOfReach(err) {
		return min(delay, requeue.Jitter(outage.Cap))
	}
	return delay
}

func (r *run) sleep(at time.Time, header nats.Header) {
	err := r.store(func(ctx context.Context) error {
		return r.r.queue.At(ctx, r.kind.kind, r.turn.name, at, header)
	}, always)
	if r.kept(err) {
		r.emit(Event{Step: StepRequeued, After: max(0, at.Sub(r.r.now()))})
	}
}

// kept handles the result of storing what is next in the broker. Without that the lock must not be released, unless
// resync is to find the object.
func (r *run) kept(err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, errCrowded):
		r.emit(Event{Step: StepTrouble, Reason: "store what is next", Err: err})
		r.resyncSoon()
	default:
		r.lost()
	}
	return false
}

// markPaused records that the object is paused, once.
func (r *run) markPaused() {
	rec := r.object.Reconciliation
	r.emit(Event{Step: StepSkipped, Reason: "paused"})
	if rec.State == apiclient.StatePaused {
		return
	}
	rec.State, rec.RunningSince = apiclient.StatePaused, nil
	r.patch(apiclient.StatusPatch{Reconciliation: &rec})
}

func (r *run) lost() {
	r.ended = true
	r.emit(Event{Step: StepLost})
}

// errCrowded is what store returns if too many turns wait for the same already.
var errCrowded = errors.New("too many turns wait to store what is next; resync will find the object")

func always(error) bool { return true }

// store repeats a write until it succeeds, is refused for good, or the lock is lost, which ends the write under way. A
// stop does not interrupt it. It holds the worker only for a moment, also if the first try is not answered.
func (r *run) store(write func(context.Context) error, again func(error) bool) error {
	ctx := r.lock.Held()
	if r.called() {
		worker := time.AfterFunc(workerFor, func() { r.turn.detach() })
		defer worker.Stop()
	}
	began, told := time.Now(), false
	for pause := storeFirst; ; pause = min(2*pause, storeMax) {
		if r.lock.Lost() {
			return lock.ErrLost
		}
		err := write(ctx)
		if err == nil || !again(err) {
			return err
		}
		if time.Since(began) >= workerFor && !r.turn.detach() {
			return fmt.Errorf("%w: %w", errCrowded, err)
		}
		if pause >= storeTold && !told {
			r.emit(Event{Step: StepTrouble, Reason: "store what is next", Err: err})
			told = true
		}
		sleep(ctx, pause)
	}
}
