package reconcilertest

import (
	"context"
	"net/http"
	"time"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

// HTTP is the replica's client of the World's API, for what its functions read and write there themselves.
func (r *Replica) HTTP() *http.Client { return &http.Client{Transport: transport{r}} }

// Notify is [reconciler.Runner.Notify], and lets the checks know that the look it asks for has a cause.
func (r *Replica) Notify(ctx context.Context, kind, name, reason string) error {
	r.w.record(reconciler.Event{Time: time.Now(), Step: StepTest, Replica: r.Name, Kind: kind, Name: name, Reason: "asks: " + reason})
	return r.Runner.Notify(ctx, kind, name, reason)
}

// Request sends a request of a replica to something outside of the World, which the test keeps in memory, a cluster, say. do is
// what becomes of it there. It may be called after Request has returned, and twice.
//
// What goes wrong with requests to the API goes wrong with these: the replica dies right before and right after it
// ([CrashEverywhere]; a GET changes nothing), it is disturbed on its way ([DisturbEverywhere]; method and path name it, which
// have to be the same in each run), it takes time ([World.SetLatency]). But the link holds when those to the broker and the API
// are cut: that is when two replicas might be at work.
func Request[T any](ctx context.Context, r *Replica, method, path string, do func() (T, error)) (T, error) {
	var none T
	if err := r.outside.pass(ctx); err != nil {
		return none, err
	}
	about, what := method+" "+path, ""
	if method != http.MethodGet {
		what = about
	}
	var answer func() (T, error)
	err := r.effect(what, func() error {
		answer = post(ctx, r, about, do)
		return nil
	})
	if err != nil {
		return none, err
	}
	got, err := answer()
	if err == nil {
		err = r.outside.pass(ctx)
	}
	if err != nil {
		return none, err
	}
	return got, nil
}

// post sends a request on its way, and returns a function that waits for the answer.
func post[T any](ctx context.Context, r *Replica, about string, do func() (T, error)) func() (T, error) {
	type result struct {
		got T
		err error
	}
	came := make(chan result, 1)
	arrive := func() {
		got, err := do()
		back := r.w.fate(r.Name, about, true)
		if !back.lost {
			later(back.delay, func() { came <- result{got, err} })
		}
	}
	if there := r.w.fate(r.Name, about, false); !there.lost {
		later(there.delay, func() {
			if there.twice {
				_, _ = do() // whatever becomes of it, the second answer counts
			}
			arrive()
		})
	}
	return func() (T, error) {
		select {
		case c := <-came:
			return c.got, c.err
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		}
	}
}

// later calls a function at once, or after a time.
func later(after time.Duration, f func()) {
	if after == 0 {
		f()
		return
	}
	time.AfterFunc(after, f)
}
