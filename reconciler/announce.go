package reconciler

import (
	"context"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// announceAfter is how long a function runs before its object says so. To say it of every run would double the writes.
const announceAfter = 2 * time.Second

// announce stores that the object is being reconciled, if that goes on for long. stop ends it, and waits for a write that
// is under way.
//
// The write holds only for the revision that was read: one that arrives late never undoes the outcome, nor a checkpoint, which
// says the same.
func (r *run) announce() (stop func()) {
	ctx, cancel := context.WithCancel(r.lock.Context())
	done := make(chan struct{})
	timer := time.AfterFunc(announceAfter, func() {
		defer close(done)
		rec := r.object.Reconciliation
		rec.State = runningState(r.object)
		p := apiclient.StatusPatch{UID: r.object.UID, Fence: r.lock.Fence(), Revision: r.object.Revision, Reconciliation: &rec}
		if _, err := r.api.PatchStatus(ctx, r.turn.name, p); err == nil {
			r.emit(Event{Step: StepPatched, State: rec.State})
		}
	})
	return func() {
		cancel()
		if timer.Stop() {
			return
		}
		<-done
		r.object.Reconciliation.State = runningState(r.object) // it may have been stored also if no answer came
	}
}

func runningState(o *apiclient.Raw) apiclient.State {
	if o.DeletedAt != nil {
		return apiclient.StateDeleting
	}
	return apiclient.StateReconciling
}
