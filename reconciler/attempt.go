package reconciler

import (
	"context"
	"strconv"

	"github.com/go-logr/logr"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Attempt is what a function can know about the call it is in.
type Attempt struct {
	// Kind and Name are the object's.
	Kind, Name string
	// Number counts tries in a row, from 1; a success and a new spec start again.
	Number int
	// Fence is the fencing token of the run: higher than that of every earlier run of the object which stored something, and
	// than that of every earlier holder of its lock while the lock bucket keeps its data. Stores that can compare should refuse
	// a lower one than they have seen.
	Fence uint64
	// Reason is why the object is looked at, for people.
	Reason string
	// IdempotencyKey is the same for all attempts at one generation of one object: pass it to external calls that carry
	// out one change, so that a repeated attempt does not do it twice. What exists once for the object (a record, a
	// machine) is better named after the object's UID: that stays the same when the spec changes or the object is deleted.
	IdempotencyKey string
}

type attemptKey struct{}

// Current returns the attempt that ctx belongs to; the zero Attempt outside of a function.
func Current(ctx context.Context) Attempt {
	a, _ := ctx.Value(attemptKey{}).(Attempt)
	return a
}

// Log returns the runner's logger with kind, name, attempt and fence; outside of a function, one that discards.
func Log(ctx context.Context) logr.Logger { return logr.FromContextOrDiscard(ctx) }

func withAttempt(ctx context.Context, log logr.Logger, a Attempt) context.Context {
	ctx = context.WithValue(ctx, attemptKey{}, a)
	return logr.NewContext(ctx, log.WithValues("kind", a.Kind, "name", a.Name, "attempt", a.Number, "fence", a.Fence))
}

func idempotencyKey(o *apiclient.Raw) string {
	return o.UID + "-" + strconv.FormatInt(o.Generation, 10)
}
