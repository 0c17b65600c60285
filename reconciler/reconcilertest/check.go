package reconcilertest

import "time"

const timeMillis = "15:04:05.000"

// AssertPromises is [World.AssertConverged], [World.AssertOneWriter], [World.AssertNoNeedlessRuns] and
// [World.AssertNothingLeft]. It is for a World that has settled ([World.RunUntilSettled]), and lets two minutes pass.
func (w *World) AssertPromises() {
	w.t.Helper()
	w.AssertConverged()
	w.Advance(leftFor)
	w.AssertOneWriter()
	w.AssertNoNeedlessRuns()
	w.AssertNothingLeft()
}

// AssertConverged fails the test unless every object is Stalled or Paused, or Ready at its present generation by a call that
// began after the last change and was made with what the API answered after it.
func (w *World) AssertConverged() {
	w.t.Helper()
	all := w.history()
	for _, o := range w.objects() {
		h := all[o.Kind+"/"+o.Name]
		if h == nil { // it was made through World.API, and nothing has run on it
			h = &history{}
		}
		w.report(unconverged(o, h))
	}
}

// AssertOneWriter fails the test if two functions ran on one object at once, if a later one had a lower fence, or if the API
// accepted a status of an earlier one after a later one had begun.
func (w *World) AssertOneWriter() {
	w.t.Helper()
	all := w.history()
	w.report(each(all, overlapping))
	w.report(each(all, late))
}

// AssertNoNeedlessRuns fails the test if a function was called again and again although nothing had happened to the object:
// no write by the test, no failure, requeue or retry, no lost lock, and nothing that resync found.
func (w *World) AssertNoNeedlessRuns() {
	w.t.Helper()
	w.report(each(w.history(), needless))
}

// leftFor is for how long what a replica leaves behind may stay: its lease, requeues that a later call made needless, and locks
// that a message on its way for half a minute still takes, which are looked for once a minute.
const leftFor = 2 * time.Minute

// AssertNothingLeft fails the test if the broker still holds what nobody needs: notifications, locks, sessions of replicas
// that are gone for a lease, requeues of objects that wait for nothing, or messages that could not be handled.
func (w *World) AssertNothingLeft() {
	w.t.Helper()
	left, err := w.leftovers()
	if err != nil {
		w.t.Fatalf("look at what is left: %v", err)
	}
	w.report(left)
}

func (w *World) report(violations []string) {
	w.t.Helper()
	for _, v := range violations {
		w.t.Error(v)
	}
}
