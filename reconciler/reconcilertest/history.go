package reconcilertest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// history is what happened to one object, as far as the checks need it.
type history struct {
	accesses []access // in the order in which the API served them; batches, too, which may have written it
	runs     []RunOf
	timeline Timeline
}

// history is what happened to each object, by kind and name.
func (w *World) history() map[string]*history {
	w.serving.Lock()
	defer w.serving.Unlock()
	all, tl := map[string]*history{}, w.Timeline()
	of := func(object string) *history {
		if all[object] == nil {
			all[object] = &history{}
		}
		return all[object]
	}
	for _, e := range tl {
		if e.Name != "" {
			h := of(e.Kind + "/" + e.Name)
			h.timeline = append(h.timeline, e)
		}
	}
	for _, run := range tl.Runs() {
		h := of(run.object())
		h.runs = append(h.runs, run)
	}
	for _, a := range w.accesses {
		if a.object != "" {
			h := of(a.object)
			h.accesses = append(h.accesses, a)
			continue
		}
		for _, h := range all {
			h.accesses = append(h.accesses, a)
		}
	}
	return all
}

// each is what a check finds of all objects, in their order.
func each(all map[string]*history, check func(*history) []string) (violations []string) {
	for _, object := range slices.Sorted(maps.Keys(all)) {
		violations = append(violations, check(all[object])...)
	}
	return violations
}

// read returns the last answer with the object that the API gave to the replica of a run before it began.
func (h *history) read(run RunOf) (read access, ok bool) {
	for _, a := range slices.Backward(h.accesses) {
		if a.replica == run.Replica && !a.at.After(run.Start) {
			return a, true
		}
	}
	return access{}, false
}

func unconverged(o *apiclient.Raw, h *history) (violations []string) {
	r, key := o.Reconciliation, o.Kind+"/"+o.Name
	switch {
	case r.State == apiclient.StateStalled, o.Paused:
		return nil
	case r.State != apiclient.StateReady, r.ObservedGeneration != o.Generation:
		return []string{fmt.Sprintf(
			"%s has not converged: it is %s, and generation %d of %d was reconciled; last error: %q (RunUntilSettled waits until it has)",
			key, r.State, r.ObservedGeneration, o.Generation, r.LastError)}
	}
	for _, run := range slices.Backward(h.runs) {
		if run.Generation != o.Generation || run.Err != nil || run.End.IsZero() {
			continue
		}
		if read, ok := h.read(run); ok && read.uid == o.UID && read.generation == o.Generation && !read.at.Before(o.ChangedAt) {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s is Ready, but no call of its function succeeded that began with its generation %d, which was written at %s",
		key, o.Generation, o.ChangedAt.Format(timeMillis))}
}

func overlapping(h *history) (violations []string) {
	for i := 1; i < len(h.runs); i++ {
		before, run := h.runs[i-1], h.runs[i]
		if before.End.IsZero() || run.Start.Before(before.End) {
			violations = append(violations, fmt.Sprintf("two writers: %s runs on %s from %s to %s, and %s from %s on", before.Replica, run.object(),
				before.Start.Format(timeMillis), before.End.Format(timeMillis), run.Replica, run.Start.Format(timeMillis)))
		}
		if run.Fence <= before.Fence {
			violations = append(violations, fmt.Sprintf("fences: %s runs on %s with %d after %s with %d", run.Replica, run.object(), run.Fence,
				before.Replica, before.Fence))
		}
	}
	return violations
}

// late finds statuses that the API accepted after a later fence was stored, or after a later run had begun. A repetition of
// a patch that was accepted before changes nothing, and may be accepted for as long as no later fence was stored.
func late(h *history) (violations []string) {
	highest := map[string]uint64{} // by uid
	repeated := map[string]bool{}
	for _, a := range h.accesses {
		if !a.status {
			continue
		}
		if a.fence < highest[a.uid] {
			violations = append(violations, fmt.Sprintf("fences: the API accepted a status of %s with %d after %d", a.object, a.fence, highest[a.uid]))
		}
		highest[a.uid] = max(highest[a.uid], a.fence)
		same := a.uid + a.body
		if repeated[same] {
			continue
		}
		repeated[same] = true
		for _, run := range h.runs {
			if run.Fence > a.fence && run.Start.Before(a.at) {
				violations = append(violations, fmt.Sprintf("late: the API accepted a status of %s with %d at %s, and %s had run since %s with %d",
					a.object, a.fence, a.at.Format(timeMillis), run.Replica, run.Start.Format(timeMillis), run.Fence))
				break
			}
		}
	}
	return violations
}

// reasons are the steps of an object that call for another run.
var reasons = []reconciler.Step{
	reconciler.StepRequeued, reconciler.StepLost, reconciler.StepFenced, reconciler.StepHandedOver, reconciler.StepTookOver, reconciler.StepResynced,
}

// spareRuns is how many runs an object may have beyond one for each cause. A notification and a requeue for what a turn could
// not do may ask for the same look, and messages that are late delay one of them until after it; a dead holder's object that is
// queued without an answer is queued again, and both may come late. Of 8,500 random runs one needed four.
const spareRuns = 4

// needless finds runs without a cause. A run answers all causes before it, but the notification of each may still come and
// lead to a further one.
func needless(h *history) (violations []string) {
	var causes []time.Time
	for _, a := range h.accesses {
		if a.write() {
			causes = append(causes, a.at)
		}
	}
	for _, e := range h.timeline {
		if slices.Contains(reasons, e.Step) || e.Step == StepTest { // which of an object is Replica.Notify
			causes = append(causes, e.Time)
		}
	}
	slices.SortFunc(causes, time.Time.Compare)
	left := spareRuns
	for _, run := range h.runs {
		next := slices.IndexFunc(causes, func(t time.Time) bool { return t.After(run.Start) })
		if next < 0 {
			next = len(causes)
		}
		left, causes = min(left+next, spareRuns)-1, causes[next:]
		if left < 0 {
			violations = append(violations, fmt.Sprintf("needless: %s ran on %s at %s (%s) without a cause since the runs before",
				run.Replica, run.object(), run.Start.Format(timeMillis), run.Reason))
			left = 0
		}
		if run.Err != nil || run.End.IsZero() {
			left++
		}
	}
	return violations
}
