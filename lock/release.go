package lock

import (
	"context"
	"encoding/json"
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
const markerTTL = time.Second

// warningTTL is how long a marker stays that tells the next holder of its predecessor: longer than proxies and servers
// hold a request (their longest usual timeout is ten minutes).
const warningTTL = 15 * time.Minute

// headerPredecessor of a marker is the holder, as JSON, whose writes may still arrive; headerDied is there if it died.
const (
	headerPredecessor = "Evenkeel-Predecessor"
	headerDied        = "Evenkeel-Died"
)

// releases are the releases that the server has not confirmed yet. A release that got lost would leave its object locked
// for as long as this process lives, so each is repeated until it is confirmed or its session is lost.
//
// Only send talks to the client: the client blocks while its link stalls, and neither a holder that unlocks nor the
// cancelling of locks may wait for that.
type releases struct {
	nc    *nats.Conn
	inbox string
	wake  chan struct{} // buffered: something is in unsent

	mu      sync.Mutex
	last    uint64
	pending map[uint64]*release
	unsent  []uint64
	empty   chan struct{} // closed when pending becomes empty, while flush waits
}

type release struct {
	subject     string
	fence       uint64
	s           *session // whose lock it was; nil if it was a dead session's
	predecessor *Predecessor
	queued      time.Time
	unsent      bool
}

func newReleases(nc *nats.Conn) releases {
	return releases{nc: nc, wake: make(chan struct{}, 1), pending: map[uint64]*release{}}
}

// free releases a lock that has no holder here: a dead session's, or one that was never handed out.
func (l *Locker) free(key string, fence uint64, p *Predecessor) {
	l.releases.add(&release{subject: l.kv + "lock." + key, fence: fence, predecessor: p})
}

func (r *releases) add(rel *release) {
	rel.queued, rel.unsent = time.Now(), true
	r.mu.Lock()
	r.last++
	r.pending[r.last] = rel
	r.unsent = append(r.unsent, r.last)
	r.mu.Unlock()
	r.signal()
}

func (r *releases) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// send sends releases until quit is closed. What is not confirmed is sent again, so errors are not reported.
func (r *releases) send(quit <-chan struct{}) {
	again := time.NewTicker(resendAfter)
	defer again.Stop()
	for {
		select {
		case <-quit:
			return
		case <-again.C:
			r.resend()
		case <-r.wake:
		}
		for _, id := range r.take() {
			rel := r.begin(id)
			if rel == nil {
				continue
			}
			m := marker(nats.NewMsg(rel.subject), rel.fence, rel.predecessor)
			m.Reply = r.inbox + "." + strconv.FormatUint(id, 10)
			_ = r.nc.PublishMsg(m)
		}
	}
}

// begin returns a release that is to be sent now, or nil if it was dropped meanwhile.
func (r *releases) begin(id uint64) *release {
	r.mu.Lock()
	defer r.mu.Unlock()
	rel := r.pending[id]
	if rel != nil {
		rel.unsent = false
	}
	return rel
}

func (r *releases) take() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := r.unsent
	r.unsent = nil
	return ids
}

// marker makes m a KV delete marker that is stored only if the key is still at that revision.
func marker(m *nats.Msg, revision uint64, p *Predecessor) *nats.Msg {
	m.Header = jsapi.Expect(revision)
	m.Header[jsapi.HeaderOperation] = []string{"DEL"}
	ttl := markerTTL
	if p != nil {
		ttl = warningTTL
		holder, _ := json.Marshal(p.Holder) // a string always encodes; as JSON it has no line breaks
		m.Header[headerPredecessor] = []string{string(holder)}
		if p.Died {
			m.Header[headerDied] = []string{"true"}
		}
	}
	m.Header[jsapi.HeaderTTL] = []string{seconds(ttl)}
	return m
}

func markedPredecessor(h nats.Header) *Predecessor {
	name, ok := h[headerPredecessor]
	if !ok {
		return nil
	}
	p := &Predecessor{Died: h.Get(headerDied) != ""}
	if err := json.Unmarshal([]byte(name[0]), &p.Holder); err != nil {
		p.Holder = name[0]
	}
	return p
}

// seconds is a time to live as NATS wants it.
func seconds(d time.Duration) string { return strconv.Itoa(int(d/time.Second)) + "s" }

// listen begins to hear the server's answers.
func (r *releases) listen() (stop func(), err error) {
	r.inbox = r.nc.NewRespInbox()
	sub, err := r.nc.Subscribe(r.inbox+".*", r.confirm)
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
	if err != nil && !errors.As(err, &wrong) {
		return
	}
	id, _ := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 10, 64) // 0, which none has, if it is no number
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, id)
	r.emptied()
}

func (r *releases) emptied() {
	if len(r.pending) == 0 && r.empty != nil {
		close(r.empty)
		r.empty = nil
	}
}

// resend queues what has not been confirmed for a while, once.
func (r *releases) resend() {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, rel := range r.pending {
		if now.Sub(rel.queued) >= resendAfter && !rel.unsent {
			rel.queued, rel.unsent = now, true
			r.unsent = append(r.unsent, id)
		}
	}
}

// drop forgets the releases of a session that was lost: the sweep of another Locker frees its locks.
func (r *releases) drop(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, rel := range r.pending {
		if rel.s == s {
			delete(r.pending, id)
		}
	}
	r.emptied()
}

// flush waits until every release is confirmed.
func (r *releases) flush(ctx context.Context) error {
	r.mu.Lock()
	open := len(r.pending)
	if open == 0 {
		r.mu.Unlock()
		return nil
	}
	if r.empty == nil {
		r.empty = make(chan struct{})
	}
	empty := r.empty
	r.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d releases unconfirmed: %w", open, ctx.Err())
	}
}
