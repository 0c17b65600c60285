package reconciler

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// overdueAfter is how long after its deadline a function is reported that has not returned: one that heeds its context
// has returned by then.
const overdueAfter = time.Second

// stackLabel marks the goroutines of a call, so that their stacks can be found (runtime/pprof).
const stackLabel = "evenkeel"

// watchDeadline reports a function that goes on past its deadline, and gives its worker to others after the grace
// period. The lock stays held, so the object is not reconciled twice at once. stop ends the watch, waits for it, and
// returns whether the function was reported, which is then what the object says.
func (r *run) watchDeadline(ctx context.Context) (stop func() (reported bool)) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	report := time.AfterFunc(r.Timeout+overdueAfter, func() {
		defer close(done)
		r.overdue(ctx)
	})
	detach := time.AfterFunc(r.Timeout+overdueAfter+r.r.cfg.Grace, func() { r.turn.detach() })
	return func() bool {
		cancel()
		detach.Stop()
		if report.Stop() {
			return false
		}
		<-done
		return true
	}
}

// overdue says that the function goes on past its deadline: in an event, in the log with the stack, and on the object.
func (r *run) overdue(ctx context.Context) {
	err := fmt.Errorf("still running %s after its deadline of %s: the function ignores its context", overdueAfter, r.Timeout)
	r.emit(Event{Step: StepOverdue, Err: err, Duration: r.Timeout + overdueAfter, Stack: stacks(labelOf(r.kind.kind, r.turn.name))})
	rec := r.underWay()
	rec.LastError = err.Error()
	_ = r.interim(ctx, apiclient.StatusPatch{ // the log has it already
		Reconciliation: &rec, Note: &apiclient.Note{Reason: apiclient.HappenedOverdue, Message: err.Error()},
	}, interimTries)
}

func labelOf(kind, name string) string { return kind + "/" + name }

// labelled calls f in a goroutine that stacks finds.
func labelled(ctx context.Context, kind, name string, f func(context.Context)) {
	pprof.Do(ctx, pprof.Labels(stackLabel, labelOf(kind, name)), f)
}

// stacks returns the stacks of the goroutines with a label, in the text form of the goroutine profile.
func stacks(label string) string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return ""
	}
	var found []string
	mark := fmt.Sprintf("%q:%q", stackLabel, label)
	for part := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(part, mark) {
			found = append(found, part)
		}
	}
	return strings.Join(found, "\n\n")
}
