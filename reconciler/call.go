package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/requeue"
)

// maxError bounds the error text in a record, in bytes.
const maxError = 4096

// outcome is what came of a call.
type outcome struct {
	attempt int
	began   time.Time
	took    time.Duration
	status  json.RawMessage // nil if unchanged
	result  Result
	err     error
	// whenStored is what is to be called when it is stored.
	whenStored []func()
}

// Once calls the controller's function on one object, as a runner would, but without a broker, a lock or an API. It
// returns the new status, nil if it did not change, the record that would be stored, and what the function returned.
// It is for tests; package reconcilertest puts types around it.
func (c Controller) Once(ctx context.Context, o *apiclient.Raw) (status json.RawMessage, rec apiclient.Reconciliation, result Result, err error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, apiclient.Reconciliation{}, Result{}, err
	}
	out := c.invoke(ctx, logr.FromContextOrDiscard(ctx), o, 1, "once", new(checkpoint))
	for _, f := range out.whenStored {
		f()
	}
	return out.status, c.record(o, out, time.Now()), out.result, out.err
}

// attempt counts tries in a row: a new spec starts anew, a request to retry does not.
func attempt(o *apiclient.Raw) int {
	if o.Generation != o.Reconciliation.ObservedGeneration {
		return 1
	}
	return o.Reconciliation.Failures + 1
}

// invoke calls the function with a deadline, and turns a panic into an error. It ends the checkpoint.
func (c *Controller) invoke(ctx context.Context, log logr.Logger, o *apiclient.Raw, fence uint64, reason string, during *checkpoint) outcome {
	f := c.reconcile
	switch {
	case o.DeletedAt == nil:
	case c.cleans:
		f = c.cleanup
	default:
		f = noCleanup
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("deadline of %s exceeded: %w", c.Timeout, context.DeadlineExceeded))
	defer cancel()
	out := outcome{attempt: attempt(o), began: time.Now()}
	ctx = withAttempt(ctx, log, Attempt{
		Kind: c.kind, Name: o.Name, Number: out.attempt, Fence: fence, Reason: reason, IdempotencyKey: idempotencyKey(o),
	})
	ctx = context.WithValue(ctx, checkpointKey{}, during)
	stored := new(whenStored)
	ctx = context.WithValue(ctx, storedKey{}, stored)
	out.status, out.result, out.err = guarded(ctx, during, f, o)
	during.end()
	out.whenStored = stored.end()
	out.took = time.Since(out.began)
	if out.result.RequeueAfter < 0 {
		out.err = errors.Join(out.err, fmt.Errorf("the function returned RequeueAfter %s: want 0 or more", out.result.RequeueAfter))
	}
	if out.err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		out.err = errors.Join(context.Cause(ctx), out.err)
	}
	return out
}

var errGoexit = errors.New("the function ended its goroutine: runtime.Goexit, or t.FailNow, t.Fatal or require of a test, which must not be called here")

// guarded calls f in a goroutine of its own: one that f ends must not be a worker's.
func guarded(ctx context.Context, during *checkpoint, f erased, o *apiclient.Raw) (status json.RawMessage, result Result, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		during.runsIn(goroutineID())
		err = errGoexit // unless it returns or panics
		defer func() {
			if v := recover(); v != nil {
				status, result, err = nil, Result{}, &PanicError{Value: v, Stack: debug.Stack()}
			}
		}()
		s, r, e := f(ctx, o)
		if e != nil { // a nil pointer of a type of its own, say, panics only when it is looked at: let that be here
			_, _ = e.Error(), errors.Is(e, ErrStopping)
		}
		status, result, err = s, r, e
	}()
	<-done
	return status, result, err
}

// record is what the object's record will say.
func (c *Controller) record(o *apiclient.Raw, out outcome, now time.Time) apiclient.Reconciliation {
	began := now.Add(-time.Since(out.began)) // by the clock of now
	rec := apiclient.Reconciliation{
		ObservedGeneration: o.Generation, LastAttempt: &began, HandledRetry: o.RetryRequest, State: apiclient.StateReady,
	}
	after := out.result.RequeueAfter
	var terminal *terminalError
	var throttled *throttledError
	switch {
	case out.err == nil:
		if o.DeletedAt != nil {
			rec.State = apiclient.StateDeleting
		}
	case errors.As(out.err, &terminal):
		rec.State, rec.Failures, after = apiclient.StateStalled, out.attempt, 0
	case errors.As(out.err, &throttled):
		rec.State, rec.Failures, after = apiclient.StateWaiting, out.attempt-1, max(throttled.after, requeue.Floor)
	default:
		rec.State, rec.Failures = apiclient.StateRetrying, out.attempt
		if after <= 0 {
			after = c.Backoff.Delay(out.attempt)
		}
	}
	if out.err != nil {
		rec.LastError = message(out.err)
	}
	if after > 0 {
		at := now.Add(after)
		rec.NextAttempt = &at
	}
	return rec
}

// outcomePatch is what an outcome makes of the object, and whether that changes anything.
func (r *run) outcomePatch(out outcome) (p apiclient.StatusPatch, changes bool) {
	rec := r.record(r.object, out, r.r.now())
	p = apiclient.StatusPatch{Status: out.status, Reconciliation: &rec}
	if r.object.DeletedAt != nil && out.err == nil && out.result.RequeueAfter <= 0 { // the cleanup is done
		p.RemoveFinalizers = []string{r.finalizer()}
		return p, true
	}
	return p, out.status != nil || !settled(r.object.Reconciliation, rec)
}

// settled reports whether storing next would change nothing but the time of the attempt.
func settled(have, next apiclient.Reconciliation) bool {
	return have.ObservedGeneration == next.ObservedGeneration && have.State == next.State && have.Failures == next.Failures &&
		have.LastError == next.LastError && have.HandledRetry == next.HandledRetry && have.NextAttempt == nil && next.NextAttempt == nil
}

func message(err error) string {
	if s := err.Error(); s != "" {
		return short(s)
	}
	return fmt.Sprintf("an error without a message, of type %T", err)
}

func short(s string) string {
	if len(s) <= maxError {
		return s
	}
	return strings.ToValidUTF8(s[:maxError], "") + " …"
}
