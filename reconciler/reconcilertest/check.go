package reconcilertest

import (
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// AssertOneWriter fails the test if two functions ran on one object at once, if a later one had a lower fence, or if the
// API accepted a status with a lower fence than before.
func (w *World) AssertOneWriter() {
	w.t.Helper()
	w.assertFencesRise()
	last := map[string]RunOf{}
	for _, run := range w.Timeline().Runs() {
		key := run.Kind + "/" + run.Name
		before, ok := last[key]
		last[key] = run
		if !ok {
			continue
		}
		if before.End.IsZero() || run.Start.Before(before.End) {
			w.t.Errorf("two writers: %s runs on %s from %s to %s, and %s from %s on", before.Replica, key,
				before.Start.Format(timeMillis), before.End.Format(timeMillis), run.Replica, run.Start.Format(timeMillis))
		}
		if run.Fence <= before.Fence {
			w.t.Errorf("fences: %s runs on %s with %d after %s with %d", run.Replica, key, run.Fence, before.Replica, before.Fence)
		}
	}
}

func (w *World) assertFencesRise() {
	w.t.Helper()
	w.serving.Lock()
	defer w.serving.Unlock()
	highest := map[string]uint64{}
	for _, a := range w.accepted {
		key := a.object + " " + a.uid
		if a.fence < highest[key] {
			w.t.Errorf("fences: the API accepted a status of %s with %d after %d", a.object, a.fence, highest[key])
		}
		highest[key] = max(highest[key], a.fence)
	}
}

const timeMillis = "15:04:05.000"

// AssertConverged fails the test unless every object is Ready at its present generation, by a run that began after its
// last change, or is Stalled or Paused.
func (w *World) AssertConverged() {
	w.t.Helper()
	for _, o := range w.objects() {
		r := o.Reconciliation
		switch {
		case r.State == apiclient.StateStalled, o.Paused:
		case r.State != apiclient.StateReady, r.ObservedGeneration != o.Generation:
			w.t.Errorf("%s/%s has not converged: it is %s, and generation %d of %d was reconciled; last error: %q (RunUntilSettled waits until it has)",
				o.Kind, o.Name, r.State, r.ObservedGeneration, o.Generation, r.LastError)
		case r.LastAttempt == nil || r.LastAttempt.Add(time.Nanosecond).Before(o.ChangedAt):
			w.t.Errorf("%s/%s is Ready by a run that began before its last change", o.Kind, o.Name)
		}
	}
}
