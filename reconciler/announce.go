package reconciler

import (
	"context"
	"errors"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// announceAfter is how long a function runs before its object says so. To say it of every run would double the writes.
const announceAfter = 2 * time.Second

// interimTries is how often a write during a call is tried on an object that others write to at the same time.
const interimTries = 5

// announce stores that the object is being reconciled, and since when, if that goes on for long. stop ends it, and waits
// for a write that is under way.
func (r *run) announce(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	timer := time.AfterFunc(announceAfter, func() {
		defer close(done)
		rec := r.underWay()
		_ = r.interim(ctx, apiclient.StatusPatch{Reconciliation: &rec}, 1) // the outcome will say more
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

// underWay is the record while the function runs.
func (r *run) underWay() apiclient.Reconciliation {
	rec := r.object.Reconciliation
	rec.State, rec.RunningSince = runningState(r.object), &r.began
	return rec
}

// interim stores something during the call. Each write holds only for the latest revision that is known, so one that
// arrives late never undoes a later write of the call, or its outcome.
func (r *run) interim(ctx context.Context, p apiclient.StatusPatch, tries int) error {
	select {
	case r.writing <- struct{}{}:
		defer func() { <-r.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.UID, p.Fence, p.Revision = r.object.UID, r.fence, max(r.revision, r.object.Revision)
	for try := 1; ; try++ {
		o, err := r.patchStatus(ctx, p)
		if err == nil && o != nil {
			r.revision = o.Revision
			r.emit(Event{Step: StepPatched, State: p.Reconciliation.State})
		}
		if !errors.Is(err, apiclient.ErrConflict) || try == tries {
			return err
		}
		now, err := r.api.Get(ctx, r.turn.name)
		if err != nil {
			return err
		}
		p.Revision = now.Revision // whose object it is, and who may write, the API decides
	}
}

func runningState(o *apiclient.Raw) apiclient.State {
	if o.DeletedAt != nil {
		return apiclient.StateDeleting
	}
	return apiclient.StateReconciling
}
