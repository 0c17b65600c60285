package workload

import (
	"context"
	"sync"
	"time"
)

// telling gathers what has changed, so that a burst of changes of an instance asks for one reconcile.
type telling struct {
	ask func(ctx context.Context, instance, reason string) error

	mu      sync.Mutex
	pending map[string]string
	some    chan struct{} // holds one token: there is something pending
}

func newTelling(ask func(ctx context.Context, instance, reason string) error) *telling {
	return &telling{ask: ask, pending: map[string]string{}, some: make(chan struct{}, 1)}
}

// add never blocks.
func (t *telling) add(instance, reason string) {
	t.mu.Lock()
	t.pending[instance] = reason
	t.mu.Unlock()
	select {
	case t.some <- struct{}{}:
	default:
	}
}

// gathered is for how long changes are gathered.
const gathered = 100 * time.Millisecond

// run asks until ctx is done. What could not be asked for is asked for again.
func (t *telling) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.some:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(gathered):
		}
		t.mu.Lock()
		all := t.pending
		t.pending = map[string]string{}
		t.mu.Unlock()
		for instance, reason := range all {
			if err := t.ask(ctx, instance, reason); err != nil && ctx.Err() == nil {
				t.add(instance, reason)
			}
		}
	}
}
