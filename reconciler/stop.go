package reconciler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// abandonAfter is how long functions that ignore their cancelled context are waited for at a stop. Then Run returns and
// leaves their locks to expire: unlocking an object whose function still runs would let two run at once.
const abandonAfter = 5 * time.Second

// stalledFor is how long calls of the NATS client are waited for at a stop. It can block, for up to a minute, while the link
// stalls and its buffers are full.
const stalledFor = 3 * time.Second

// errStalled is what Run returns then.
var errStalled = errors.New("reconciler: stopped while calls of the NATS client do not return, because the connection's writes block")

// finish waits for the workers: first as long as grace allows, then with their contexts cancelled.
func (r *Runner) finish(abort context.CancelCauseFunc) error {
	var workers []*sync.WaitGroup
	for _, k := range r.kinds {
		workers = append(workers, &k.workers)
	}
	done := ended(workers...)
	if within(done, r.cfg.Grace) {
		return nil
	}
	abort(ErrStopping)
	if within(done, abandonAfter) {
		return nil
	}
	var stuck []string
	for _, k := range r.kinds {
		stuck = append(stuck, k.atWork()...)
	}
	return fmt.Errorf("reconciler: stopped while functions ignore their cancelled context, their locks expire in up to %s: %v", r.cfg.Lease, stuck)
}

// ended returns a channel that is closed when all groups have ended.
func ended(groups ...*sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() { // ends with the groups; what does not heed a stop outlives Run, as Run's error says
		for _, g := range groups {
			g.Wait()
		}
		close(done)
	}()
	return done
}

func within(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
