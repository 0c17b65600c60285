package workload

import (
	"context"
	"sync"
	"time"
)

// object is one that may be asked for.
type object struct{ kind, name string }

// telling gathers what has changed, so that a burst of changes of an object asks for one reconcile.
type telling struct {
	ask func(ctx context.Context, kind, name, reason string) error

	mu      sync.Mutex
	pending map[object]string
	some    chan struct{} // holds one token: there is something pending
}

func newTelling(ask func(ctx context.Context, kind, name, reason string) error) *telling {
	return &telling{ask: ask, pending: map[object]string{}, some: make(chan struct{}, 1)}
}

// add never blocks.
func (t *telling) add(kind, name, reason string) {
	t.mu.Lock()
	t.pending[object{kind, name}] = reason
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
		t.pending = map[object]string{}
		t.mu.Unlock()
		for o, reason := range all {
			if err := t.ask(ctx, o.kind, o.name, reason); err != nil {
				t.add(o.kind, o.name, reason)
			}
		}
	}
}
