package reconciler

import (
	"context"
	"runtime/debug"
	"sync"
)

// WhenStored has f called once, when the outcome of the function's call is stored and before the object's lock is released. Use
// it to ask for a look at another object that waits for this one ([Runner.Notify]). A look that is asked for during the call
// may come before the outcome is stored: it sees what was before, and the other object goes on waiting.
//
// f is not called if the outcome is not stored: because another replica has the object by now, because this one stops or dies,
// or because the API cannot be reached. So the other object must come to look by itself as well, if later.
//
// f runs in a worker and must be quick; if it panics, that is logged. Several are called in the order in which they were given.
// Outside of a function's call there is nothing to wait for, and f is called at once. In a call without an API (package
// reconcilertest) it is called when the function has returned.
func WhenStored(ctx context.Context, f func()) {
	w, _ := ctx.Value(storedKey{}).(*whenStored)
	if w == nil || !w.add(f) {
		f()
	}
}

type storedKey struct{}

// whenStored gathers what is to be called when the outcome of one call is stored.
type whenStored struct {
	mu   sync.Mutex
	all  []func()
	over bool // the call has ended
}

// add reports false if the call has ended.
func (w *whenStored) add(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.all = append(w.all, f)
	}
	return !w.over
}

// end returns all. None is added from here on.
func (w *whenStored) end() []func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	return w.all
}

// tellStored calls what waits for the outcome to be stored.
func (r *run) tellStored(out outcome) {
	for _, f := range out.whenStored {
		if p := panicOf(f); p != nil {
			r.r.cfg.Logger.Error(p, "a function for when the outcome is stored panicked", "kind", r.kind.kind, "name", r.turn.name,
				"attempt", r.attempt, "fence", r.fence, "stack", p.frames())
		}
	}
}

// panicOf calls f, and returns what it panicked with; nil if it did not.
func panicOf(f func()) (p *PanicError) {
	defer func() {
		if v := recover(); v != nil {
			p = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	f()
	return nil
}
