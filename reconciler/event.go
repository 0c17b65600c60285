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
	// StepStarted: the function is about to be called.
	StepStarted Step = "started"
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
	// StepTookOver: an object whose holder died is queued again.
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
		if unsaid, ok := r.repeated.log(e.Kind, fmt.Sprintf("%s: %v", e.Reason, e.Err), e.Time); ok {
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
	case e.Step != StepFinished && e.Step != StepTrouble && !log.V(1).Enabled(), e.Err == nil && !log.Enabled():
		return
	}
	log = log.WithValues(e.about()...)
	switch {
	case e.Step == StepTrouble:
		log.Error(e.Err, "trouble, will be retried", "doing", e.Reason)
	case e.Step == StepFinished && isThrottled(e.Err):
		log.Info("waiting", "for", e.Err.Error(), "generation", e.Generation, "took", e.Duration)
	case e.Step == StepFinished && e.Err != nil:
		if p := new(PanicError); errors.As(e.Err, &p) {
			log = log.WithValues("stack", string(p.Stack))
		}
		log.Error(e.Err, called(e.Deleting, "reconcile failed", "cleanup failed"), "generation", e.Generation, "took", e.Duration)
	case e.Step == StepFinished:
		log.Info(called(e.Deleting, "reconciled", "cleaned up"), "generation", e.Generation, "took", e.Duration)
	case e.Err != nil:
		log.V(1).Info(string(e.Step), "reason", e.Reason, "error", e.Err.Error())
	default:
		log.V(1).Info(string(e.Step), "reason", e.Reason, "state", e.State, "after", e.After)
	}
}

func called(deleting bool, reconcile, cleanup string) string {
	if deleting {
		return cleanup
	}
	return reconcile
}
