package reconciler

import (
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

const (
	// claimTries is how often an object is claimed that others write to at the same time.
	claimTries = 5
	// rewoundEvery is how often a replica says that fences went backwards.
	rewoundEvery = time.Minute
)

// claim raises the object's recorded fence to that of this run, before anything is decided by what was read. It does so
// only if a write of an earlier run may still arrive, or if the record is ahead of the lock: normally it costs nothing.
// From the claim on, the API refuses what the earlier run has sent, also if this run finds nothing to store; and what
// arrived before the claim is in the object that the claim returns.
//
// The claim holds only for the revision that was read, so that two holders never claim the same fence.
func (r *run) claim() bool {
	for try := 1; ; try++ {
		ahead := r.object.Reconciliation.Fence >= r.fence
		if !ahead && !r.uncertain.Load() {
			return true
		}
		if ahead && !r.outrank() {
			return false
		}
		o, err := r.patchStatus(r.lock.Context(), apiclient.StatusPatch{
			UID: r.object.UID, Fence: r.fence, Revision: r.object.Revision, Note: r.takenOver(),
		})
		switch {
		case err == nil && o != nil:
			o.Kind, r.object = r.object.Kind, o
			r.uncertain.Store(false)
			r.emit(Event{Step: StepClaimed, Reason: r.claimedFrom()})
			return true
		case (errors.Is(err, apiclient.ErrConflict) || errors.Is(err, apiclient.ErrFenced)) && try < claimTries:
			if !r.read() {
				return false
			}
		default:
			r.unclaimed(err)
			return false
		}
	}
}

// unclaimed ends a run that could not claim its object.
func (r *run) unclaimed(err error) {
	switch {
	case err == nil, errors.Is(err, apiclient.ErrNotFound):
		r.uncertain.Store(false)
		r.emit(Event{Step: StepSkipped, Reason: "the object is gone"})
	case r.lock.Context().Err() != nil:
		r.interrupted()
	default:
		r.emit(Event{Step: StepTrouble, Reason: "claim", Err: err})
		r.tryAgain(err)
	}
}

// outrank chooses a fence above the recorded one, if the lock still stands: then nobody overtook this run, but the lock
// bucket went back in time (it was restored from a copy, or made by a replica whose clock was behind), or another
// installation reconciles the object. To wait for the bucket to catch up would need an operator.
func (r *run) outrank() bool {
	recorded := r.object.Reconciliation.Fence
	if err := r.lock.Confirm(r.lock.Context()); err != nil {
		if r.lock.Context().Err() != nil || r.lock.Lost() {
			r.interrupted()
			return false
		}
		r.emit(Event{Step: StepTrouble, Reason: "confirm the lock", Err: err})
		r.tryAgain(err)
		return false
	}
	r.r.rewound(r, recorded)
	r.fence = recorded + 1
	return true
}

// rewound says that fences went backwards, now and then.
func (r *Runner) rewound(run *run, recorded uint64) {
	now := time.Now().UnixNano()
	last := r.rewoundAt.Load()
	if now-last < int64(rewoundEvery) || !r.rewoundAt.CompareAndSwap(last, now) {
		return
	}
	run.emit(Event{Step: StepTrouble, Reason: "compare fences", Err: fmt.Errorf("the object was written with fence %d, and the lock bucket has come "+
		"to %d: the bucket was restored from a copy or made by a host whose clock was behind, or another installation reconciles "+
		"the same objects; going on with fences above the recorded ones", recorded, run.lock.Fence())})
}

// takenOver tells users of the object that its former replica died.
func (r *run) takenOver() *apiclient.Note {
	p := r.lock.Predecessor()
	if p == nil || !p.Died {
		return nil
	}
	return &apiclient.Note{Reason: apiclient.HappenedTakenOver, Message: fmt.Sprintf("%s takes over from %s, which died or lost its lock", r.r.cfg.Name, p.Holder)}
}

func (r *run) claimedFrom() string {
	if p := r.lock.Predecessor(); p != nil {
		return p.Holder
	}
	return ""
}
