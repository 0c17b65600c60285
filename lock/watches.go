package lock

import (
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// watched is how many messages about watched locks wait for their callbacks; more are dropped.
const watched = 8192

// watches are the callbacks of OnRelease. All subscriptions share one channel, and so one goroutine: with one each, as
// nats.go does for callbacks, 5,000 waiting turns are 5,000 goroutines.
type watches struct {
	came chan *nats.Msg

	mu    sync.Mutex
	calls map[*nats.Subscription]func()
}

func newWatches() watches {
	return watches{came: make(chan *nats.Msg, watched), calls: map[*nats.Subscription]func(){}}
}

// OnRelease calls f whenever the key's lock is released, until stop is called, while Run runs. To miss none, call TryLock
// once more behind it. f must not block: it holds up the others. It is a hint that saves polling, not a promise: it does
// not come over a link that is cut. Like TryLock, OnRelease and stop block while the connection's writes do.
func (l *Locker) OnRelease(key string, f func()) (stop func(), err error) {
	w := &l.watches
	sub, err := l.nc.ChanSubscribe(l.kv+"lock."+key, w.came)
	if err != nil {
		return nil, fmt.Errorf("watch lock %s: %w", key, err)
	}
	w.mu.Lock()
	w.calls[sub] = f
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		delete(w.calls, sub)
		w.mu.Unlock()
		_ = sub.Unsubscribe() // fails only on a closed connection, where there is nothing to end
	}, nil
}

// dispatch makes the calls until quit is closed.
func (w *watches) dispatch(quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case m := <-w.came:
			if m.Header.Get(jsapi.HeaderOperation) == "" {
				continue
			}
			w.mu.Lock()
			f := w.calls[m.Sub]
			w.mu.Unlock()
			if f != nil {
				f()
			}
		}
	}
}
