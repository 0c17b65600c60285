package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Checkpoint stores the status that the function has written into o so far, before the call ends. Use it between deciding on
// something that a later call must know of and doing it: the names of what is about to be made elsewhere, say, so that a
// crash in between leaks nothing. The object shows as Reconciling from then on. What the function returns is stored as ever.
//
// It fails, and then nothing must be done on the strength of it, with [apiclient.ErrFenced], [apiclient.ErrConflict] or
// [apiclient.ErrNotFound] if another replica has the object by now (or others write to it all the time), with
// [apiclient.ErrUnavailable] if the API cannot be reached, and outside of a function's call. One that failed as unavailable
// may have been stored, or be stored later, until the next run of the object has read it. In a call without an API (package
// reconcilertest) it succeeds.
func Checkpoint[S, T any](ctx context.Context, o *apiclient.Object[S, T]) error {
	c := checkpointOf(ctx)
	if c == nil {
		return errors.New("checkpoint: ctx is not that of a function's call")
	}
	status, err := json.Marshal(o.Status)
	if err != nil {
		return fmt.Errorf("checkpoint: encode status: %w", err)
	}
	if err := c.store(ctx, status); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

type checkpointKey struct{}

// checkpointOf is nil outside of a call.
func checkpointOf(ctx context.Context) *checkpoint {
	c, _ := ctx.Value(checkpointKey{}).(*checkpoint)
	return c
}

// checkpoint stores the status during one call, and knows in which goroutine that runs.
type checkpoint struct {
	// write is nil without an API.
	write func(ctx context.Context, status json.RawMessage) error

	mu sync.Mutex // held during a write
	// stored is the latest status that was stored: nil if none was, empty if nobody knows.
	stored json.RawMessage
	over   bool

	runner atomic.Value // the number of the goroutine that the call runs in, a string
}

func (c *checkpoint) runsIn(goroutine string) { c.runner.Store(goroutine) }

func (c *checkpoint) goroutine() string {
	id, _ := c.runner.Load().(string)
	return id
}

func (c *checkpoint) store(ctx context.Context, status json.RawMessage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return errors.New("the call is over")
	}
	if c.write == nil {
		return nil
	}
	c.stored = json.RawMessage{}
	err := c.write(ctx, status)
	if err == nil {
		c.stored = status
	}
	return err
}

// end returns stored. Nothing is stored from here on.
func (c *checkpoint) end() json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return c.stored
}

// checkpoint stores a status of a call that goes on.
func (r *run) checkpoint(ctx context.Context, status json.RawMessage) error {
	rec := r.underWay()
	return r.interim(ctx, apiclient.StatusPatch{Status: status, Reconciliation: &rec}, interimTries)
}
