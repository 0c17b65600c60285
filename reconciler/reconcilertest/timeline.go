package reconcilertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

// StepTest marks what the test itself did: Reason says what, Replica to whom.
const StepTest reconciler.Step = "test"

const stepKilled = "is killed"

// Timeline is what happened in a World, in order: the events of all replicas, and what the test did to them.
type Timeline []reconciler.Event

// Of keeps the events of one object.
func (tl Timeline) Of(kind, name string) Timeline {
	return tl.filter(func(e reconciler.Event) bool { return e.Kind == kind && e.Name == name })
}

// By keeps the events of one replica.
func (tl Timeline) By(replica string) Timeline {
	return tl.filter(func(e reconciler.Event) bool { return e.Replica == replica })
}

// Only keeps the events of some steps.
func (tl Timeline) Only(steps ...reconciler.Step) Timeline {
	return tl.filter(func(e reconciler.Event) bool {
		return slices.Contains(steps, e.Step)
	})
}

// Since keeps the events from a time on.
func (tl Timeline) Since(t time.Time) Timeline {
	return tl.filter(func(e reconciler.Event) bool { return !e.Time.Before(t) })
}

// Steps are the steps alone.
func (tl Timeline) Steps() (steps []reconciler.Step) {
	for _, e := range tl {
		steps = append(steps, e.Step)
	}
	return steps
}

// Requeues are the delays after which objects were put to sleep.
func (tl Timeline) Requeues() (delays []time.Duration) {
	for _, e := range tl.Only(reconciler.StepRequeued) {
		delays = append(delays, e.After)
	}
	return delays
}

// String prints a line for each event.
func (tl Timeline) String() string {
	var b strings.Builder
	for _, e := range tl {
		fmt.Fprintf(&b, "%s %-10s %-11s", e.Time.Format("15:04:05.000"), e.Replica, e.Step)
		if e.Name != "" {
			fmt.Fprintf(&b, " %s/%s", e.Kind, e.Name)
		}
		if e.Attempt > 0 {
			fmt.Fprintf(&b, " attempt %d", e.Attempt)
		}
		if e.Fence > 0 {
			fmt.Fprintf(&b, " fence %d", e.Fence)
		}
		if e.State != "" {
			fmt.Fprintf(&b, " %s", e.State)
		}
		if e.After > 0 {
			fmt.Fprintf(&b, " after %s", e.After)
		}
		if e.Deleting && e.Step == reconciler.StepStarted {
			b.WriteString(" cleanup")
		}
		if e.Reason != "" {
			fmt.Fprintf(&b, " (%s)", e.Reason)
		}
		if e.Err != nil {
			fmt.Fprintf(&b, ": %v", e.Err)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// ends is how many events an excerpt has of each end of a timeline.
const ends = 40

// excerpt is the timeline for a test's log: of a long one its ends, unless the test is verbose.
func (tl Timeline) excerpt() string {
	if cut := len(tl) - 2*ends; cut > 0 && !testing.Verbose() {
		return fmt.Sprintf("%s… %d more, go test -v shows them\n%s", tl[:ends], cut, tl[ends+cut:])
	}
	return tl.String()
}

func (tl Timeline) filter(keep func(reconciler.Event) bool) (kept Timeline) {
	for _, e := range tl {
		if keep(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// RunOf is one call of a function.
type RunOf struct {
	Replica, Kind, Name string
	Fence               uint64
	Attempt             int
	Generation          int64
	Reason              string
	// Start and End are when it was called and when it returned; End is zero while it runs, and the time of death if its
	// replica was killed.
	Start, End time.Time
	// Err is what it returned.
	Err error
}

func (r RunOf) object() string { return r.Kind + "/" + r.Name }

// Runs are the calls of functions, in the order in which they began.
func (tl Timeline) Runs() (runs []RunOf) {
	open := map[string]int{} // replica, kind and name -> index in runs
	for _, e := range tl {
		key := e.Replica + " " + e.Kind + "/" + e.Name
		switch {
		case e.Step == reconciler.StepStarted:
			open[key] = len(runs)
			runs = append(runs, RunOf{
				Replica: e.Replica, Kind: e.Kind, Name: e.Name, Fence: e.Fence, Attempt: e.Attempt, Generation: e.Generation, Reason: e.Reason, Start: e.Time,
			})
		case e.Step == reconciler.StepFinished:
			if i, ok := open[key]; ok {
				runs[i].End, runs[i].Err = e.Time, e.Err
				delete(open, key)
			}
		case e.Step == StepTest && e.Reason == stepKilled:
			for k, i := range open {
				if strings.HasPrefix(k, e.Replica+" ") {
					runs[i].End = e.Time
					delete(open, k)
				}
			}
		}
	}
	return runs
}
