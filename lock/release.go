package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// resendAfter is how old an unconfirmed release is before it is sent again.
const resendAfter = time.Second

// markerTTL is how long a released lock's delete marker stays: the least that NATS counts. Without it every object ever
// locked would leave a key for good; with it, the next lock of the same key within the second takes a longer way.
const markerTTL = "1s"

// releases are the releases that the server has not confirmed yet. A release that got lost would leave its object locked
// for as long as this process lives, so each is repeated until it is confirmed or the session ends.
type releases struct {
	mu      sync.Mutex
	inbox   string
	last    uint64
	pending map[uint64]*release
	empty   chan struct{} // closed when pending becomes empty, while flush waits
}

type release struct {
	subject string
	fence   uint64
	sent    time.Time
}

func (l *Locker) release(key string, fence uint64) {
	r := &release{subject: l.kv + "lock." + key, fence: fence, sent: time.Now()}
	l.releases.mu.Lock()
	l.releases.last++
	id := l.releases.last
	l.releases.pending[id] = r
	inbox := l.releases.inbox
	l.releases.mu.Unlock()
	send(l.nc, r, inbox, id)
}

// send does not report errors: what is not confirmed is sent again.
func send(nc *nats.Conn, r *release, inbox string, id uint64) {
	m := marker(nats.NewMsg(r.subject), r.fence)
	m.Reply = inbox + "." + strconv.FormatUint(id, 10)
	_ = nc.PublishMsg(m)
}

// marker makes m a KV delete marker that is stored only if the key is still at that revision.
func marker(m *nats.Msg, revision uint64) *nats.Msg {
	m.Header = jsapi.Expect(revision)
	m.Header.Set(jsapi.HeaderOperation, "DEL")
	m.Header.Set(jsapi.HeaderTTL, markerTTL)
	return m
}

func (r *releases) listen(nc *nats.Conn) (stop func(), err error) {
	r.mu.Lock()
	r.pending, r.inbox = map[uint64]*release{}, nc.NewRespInbox()
	r.mu.Unlock()
	sub, err := nc.Subscribe(r.inbox+".*", r.confirm)
	if err != nil {
		return nil, fmt.Errorf("listen for confirmed releases: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only on a closed connection
}

// confirm handles the server's answer. A wrong revision means that the lock has passed on or was released by an earlier
// try: done as well. Everything else is sent again.
func (r *releases) confirm(m *nats.Msg) {
	_, err := jsapi.Ack(m.Data)
	var wrong *jsapi.WrongSequence
	if m.Header.Get("Status") != "" || err != nil && !errors.As(err, &wrong) {
		return
	}
	id, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 10, 64)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, id)
	r.signal()
}

func (r *releases) signal() {
	if len(r.pending) == 0 && r.empty != nil {
		close(r.empty)
		r.empty = nil
	}
}

func (r *releases) resend(nc *nats.Conn) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.pending {
		if now.Sub(p.sent) >= resendAfter {
			p.sent = now
			send(nc, p, r.inbox, id)
		}
	}
}

// drop forgets all releases of a session that was lost: its locks are freed by whoever sweeps.
func (r *releases) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.pending)
	r.signal()
}

// flush waits until every release is confirmed.
func (r *releases) flush(ctx context.Context, nc *nats.Conn) error {
	for {
		r.mu.Lock()
		if len(r.pending) == 0 {
			r.mu.Unlock()
			return nil
		}
		if r.empty == nil {
			r.empty = make(chan struct{})
		}
		empty, open := r.empty, len(r.pending)
		r.mu.Unlock()
		select {
		case <-empty:
		case <-ctx.Done():
			return fmt.Errorf("%d releases unconfirmed: %w", open, ctx.Err())
		case <-time.After(resendAfter):
			r.resend(nc)
		}
	}
}
