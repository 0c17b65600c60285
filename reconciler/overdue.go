package reconciler

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// overdueAfter is how long after its deadline a function is reported that has not returned: one that heeds its context
// has returned by then.
const overdueAfter = time.Second

// watchDeadline reports a function that goes on past its deadline, and gives its worker to others after the grace
// period. The lock stays held, so the object is not reconciled twice at once. stop ends the watch, waits for it, and
// returns whether the function was reported, which is then what the object says.
func (r *run) watchDeadline(ctx context.Context, during *checkpoint) (stop func() (reported bool)) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	report := time.AfterFunc(r.Timeout+overdueAfter, func() {
		defer close(done)
		r.overdue(ctx, during)
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
func (r *run) overdue(ctx context.Context, during *checkpoint) {
	err := fmt.Errorf("still running %s after its deadline of %s: the function ignores its context", overdueAfter, r.Timeout)
	r.emit(Event{Step: StepOverdue, Err: err, Duration: r.Timeout + overdueAfter, Stack: stackOf(during.goroutine())})
	rec := r.underWay()
	rec.LastError = err.Error()
	_ = r.interim(ctx, apiclient.StatusPatch{ // the log has it already
		Reconciliation: &rec, Note: &apiclient.Note{Reason: apiclient.HappenedOverdue, Message: err.Error()},
	}, interimTries)
}

// maxStacks bounds the dump of all goroutines that the stack of one is looked for in, in bytes.
const maxStacks = 16 << 20

// goroutineID returns the number of the calling goroutine, as stacks name it. Labels (runtime/pprof) would find it as well,
// but crash the race detector in virtual time when timers start goroutines (Go 1.26.8).
func goroutineID() string {
	var line [64]byte
	id, _, _ := strings.Cut(strings.TrimPrefix(string(line[:runtime.Stack(line[:], false)]), "goroutine "), " ")
	return id
}

// stackOf returns the stack of a goroutine, or nothing if it has ended.
func stackOf(id string) string {
	for size := 1 << 20; ; size *= 4 {
		all := make([]byte, size)
		n := runtime.Stack(all, true)
		for stack := range strings.SplitSeq(string(all[:n]), "\n\n") {
			if strings.HasPrefix(stack, "goroutine "+id+" [") {
				return stack
			}
		}
		if n < size || size >= maxStacks {
			return ""
		}
	}
}
