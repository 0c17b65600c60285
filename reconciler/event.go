package reconciler

import (
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Step is what an [Event] reports.
type Step string

// The steps of a reconcile, in the order in which they can happen, and what happens outside of one.
const (
	// StepContended: the object is locked by somebody else; the notification waits for the release.
	StepContended Step = "contended"
	// StepLocked: the lock was taken; Fence is set from here on.
	StepLocked Step = "locked"
	// StepSkipped: there is nothing to do for the object now; Reason says why.
	StepSkipped Step = "skipped"
	// StepClaimed: a write of an earlier run may still arrive, so the fence was raised on the object; Reason names the
	// replica that ran it.
	StepClaimed Step = "claimed"
	// StepStarted: the function is about to be called.
	StepStarted Step = "started"
	// StepOverdue: the function has not returned though its deadline has passed; Err says so, and Stack where it is. It
	// keeps its lock, and after the grace period its worker goes to other objects.
	StepOverdue Step = "overdue"
	// StepFinished: the function returned; Err and Duration are set.
	StepFinished Step = "finished"
	// StepPatched: status and record are stored; State is set.
	StepPatched Step = "patched"
	// StepFenced: the status was refused because someone newer is on the object.
	StepFenced Step = "fenced"
	// StepLost: the lock was lost before the end; whoever sweeps next takes the object over.
	StepLost Step = "lost"
	// StepRequeued: the object is looked at again after the time in After.
	StepRequeued Step = "requeued"
	// StepHandedOver: the work was given back for any replica to take up at once.
	StepHandedOver Step = "handed over"
	// StepReleased: the lock was released; the object's turn is over.
	StepReleased Step = "released"
	// StepTookOver: an object whose holder died is queued again; Holder is the replica that died.
	StepTookOver Step = "took over"
	// StepResynced: resync found the object owed a reconcile that nobody was notified of.
	StepResynced Step = "resynced"
	// StepRunning: work is taken up. A lock session has begun and the kinds are pulled: at the start, and again after a
	// session was lost.
	StepRunning Step = "running"
	// StepStopping: no new work is taken; what runs may finish within the grace period.
	StepStopping Step = "stopping"
	// StepTrouble: something outside of any object failed and is being retried; Reason says what, Err why.
	StepTrouble Step = "trouble"
)

// Event is one step, as the Observer, logs and test timelines see it.
type Event struct {
	// Time is when.
	Time time.Time
	// Step is what.
	Step Step
	// Replica is the Config.Name of the runner.
	Replica string
	// Kind and Name are the object's; empty for trouble that is none's.
	Kind, Name string
	// Holder is the replica that died, of StepTookOver; empty if it is not known.
	Holder string
	// Reason is why: of the notification, of a skip.
	Reason string
	// Attempt counts tries in a row, from 1.
	Attempt int
	// Fence is the fencing token of the lock, 0 before it is taken.
	Fence uint64
	// Generation is that of the object that was read.
	Generation int64
	// Deleting is whether the object is being deleted: the function called is the cleanup.
	Deleting bool
	// State is what was stored.
	State apiclient.State
	// After is the delay of a requeue.
	After time.Duration
	// Duration is how long the function ran.
	Duration time.Duration
	// Err is what failed.
	Err error
	// Stack is where a function that is overdue was, as runtime.Stack prints it.
	Stack string
}

// emit tells the observer and the log. An observer that panics is not lost: the next event calls it again.
func (r *Runner) emit(e Event) {
	e.Time, e.Replica = time.Now(), r.cfg.Name
	r.log(e)
	if r.cfg.Observer == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			r.cfg.Logger.WithValues(e.about()...).Error(&PanicError{Value: v}, "the observer panicked", "step", e.Step)
		}
	}()
	r.cfg.Observer(e)
}

// about says in the log which object the event is about.
func (e Event) about() []any {
	return []any{"kind", e.Kind, "name", e.Name, "attempt", e.Attempt, "fence", e.Fence}
}

func (r *Runner) log(e Event) {
	log := r.cfg.Logger
	switch {
	case e.Step == StepTrouble && e.Name == "":
		if unsaid, ok := r.troubles.Due(e.Time, sameTrouble(e.Kind, fmt.Sprintf("%s: %v", e.Reason, e.Err))); ok {
			log.Error(e.Err, "trouble, will be retried", "doing", e.Reason, "kind", e.Kind, "repeated", unsaid)
		}
		return
	case e.Step == StepRunning:
		log.Info("running", "replica", e.Replica, "kinds", r.names(), "prefix", r.cfg.Prefix)
		return
	case e.Step == StepTookOver:
		log.Info("took over", "kind", e.Kind, "name", e.Name, "from", e.Holder)
		return
	case e.Step == StepStopping:
		log.Info("stopping: running functions may finish", "within", e.After)
		return
	case !loud(e.Step) && !log.V(1).Enabled():
		return
	}
	log = log.WithValues(e.about()...)
	switch e.Step {
	case StepTrouble:
		log.Error(e.Err, "trouble, will be retried", "doing", e.Reason)
	case StepOverdue:
		log.Error(e.Err, "overdue", "after", e.Duration, "stack", e.Stack)
	case StepFenced:
		log.Info("result dropped: a later run has written", "error", e.Err.Error())
	case StepLost:
		log.Info("lock lost: another replica takes the object over")
	case StepHandedOver:
		log.Info("handed over", "reason", e.Reason)
	default:
		log.V(1).Info(string(e.Step), "reason", e.Reason, "state", e.State, "after", e.After, "error", errorText(e.Err))
	}
}

// loud reports whether a step is logged at the default level.
func loud(s Step) bool {
	switch s {
	case StepTrouble, StepOverdue, StepFenced, StepLost, StepHandedOver:
		return true
	}
	return false
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// logOutcome logs what came of a call, and what is next. An object that waits for the same as before is not news.
func (r *run) logOutcome(out outcome, rec apiclient.Reconciliation) {
	log := r.r.cfg.Logger
	if out.err == nil && !log.Enabled() {
		return
	}
	before := r.object.Reconciliation
	log = log.WithValues("kind", r.kind.kind, "name", r.turn.name, "attempt", r.attempt, "fence", r.fence,
		"generation", r.object.Generation, "took", out.took, "state", rec.State)
	if rec.NextAttempt != nil {
		log = log.WithValues("retryIn", max(0, rec.NextAttempt.Sub(r.r.now())).Round(time.Millisecond))
	}
	deleting := r.object.DeletedAt != nil
	switch {
	case isThrottled(out.err):
		if before.State == apiclient.StateWaiting && before.LastError == rec.LastError {
			log = log.V(1)
		}
		log.Info("waiting", "for", out.err.Error())
	case out.err != nil:
		if p := new(PanicError); errors.As(out.err, &p) {
			log = log.WithValues("stack", p.frames())
		}
		log.Error(out.err, called(deleting, "reconcile failed", "cleanup failed"))
	default:
		log.Info(called(deleting, "reconciled", "cleaned up"))
	}
}

func called(deleting bool, reconcile, cleanup string) string {
	if deleting {
		return cleanup
	}
	return reconcile
}
