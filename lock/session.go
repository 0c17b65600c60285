package lock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// session is one life of a Locker's lease. Once it is lost it stays lost; the next one has another id.
type session struct {
	id  string
	rev uint64 // revision of its key; used by the goroutine in Run only

	mu     sync.Mutex
	until  time.Time // when the locks must be given up; carries both clocks
	lost   bool
	locks  map[*Lock]struct{}
	nonces uint64              // given so far
	own    map[uint64]struct{} // nonces of tries that are under way, and of the locks held
	doubts map[uint64]doubt    // by nonce: of two tries for one key each may be the one that stands
}

// Run keeps a session until the context ends, then confirms all releases and closes it. If locks are still held then,
// the session is left to expire, so that nobody else is granted one of them while their work may still run.
//
// It returns nil after a clean end, and never gives up on a server that is out of reach.
func (l *Locker) Run(ctx context.Context) error {
	stop, err := l.releases.listen(l.nc)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	defer stop()
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(func() { l.sweepAlways(ctx) })
	for told := false; ctx.Err() == nil; {
		if !l.nc.IsConnected() { // said once, and not asked for: the client reconnects by itself
			if !told {
				l.trouble(ctx, "open lock session", nats.ErrConnectionReconnecting)
			}
			told = true
			pause(ctx, l.cfg.TTL/50)
			continue
		}
		told = false
		s, err := l.open(ctx)
		if err != nil {
			l.trouble(ctx, "open lock session", err)
			pause(ctx, l.cfg.TTL/10)
			continue
		}
		l.keep(ctx, s)
	}
	return nil
}

func (l *Locker) open(ctx context.Context) (*session, error) {
	s := &session{id: rand.Text(), locks: map[*Lock]struct{}{}, own: map[uint64]struct{}{}, doubts: map[uint64]doubt{}}
	sent := time.Now()
	rev, err := l.renew(ctx, s)
	if err != nil {
		return nil, err
	}
	s.rev = rev
	s.extend(sent, l.cfg.TTL)
	l.session.Store(s)
	l.cfg.OnReady()
	return s, nil
}

// renew writes the session's key with a fresh time to live. The key must be as this session left it: a session that
// expired is never brought back to life.
func (l *Locker) renew(ctx context.Context, s *session) (uint64, error) {
	m := nats.NewMsg(l.kv + "session." + s.id)
	m.Header = jsapi.Expect(s.rev)
	m.Header.Set(jsapi.HeaderTTL, strconv.Itoa(int(l.cfg.TTL/time.Second))+"s")
	m.Data, _ = json.Marshal(map[string]string{"holder": l.cfg.Holder}) // a map of strings always encodes
	return jsapi.Publish(ctx, l.nc, m)
}

// keep renews the session until it is lost or the context ends. Releases that were not confirmed and doubts share its
// ticks.
func (l *Locker) keep(ctx context.Context, s *session) {
	defer l.session.CompareAndSwap(s, nil)
	tick := time.NewTicker(l.cfg.TTL / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			l.close(s)
			return
		case <-tick.C:
		}
		if !l.extend(s) {
			s.lose()
			l.releases.drop()
			l.cfg.OnError("renew lock session", ErrLost)
			return
		}
		l.releases.resend(l.nc)
		l.settleDoubts(ctx, s)
	}
}

// extend renews until it succeeds or the lease is over. A renewal under way is never cancelled by a stop: whether it
// took effect would be unknown.
func (l *Locker) extend(s *session) bool {
	for s.valid() {
		sent := time.Now()
		ctx, cancel := context.WithDeadline(context.Background(), s.deadline())
		rev, err := l.renew(ctx, s)
		var wrong *jsapi.WrongSequence
		switch {
		case err == nil:
			s.rev = rev
			if !s.extend(sent, l.cfg.TTL) {
				cancel()
				return false
			}
		case errors.As(err, &wrong):
			alive, lookErr := l.lives(ctx, s.id)
			switch {
			case lookErr != nil:
				pause(ctx, l.cfg.TTL/50)
			case !alive:
				cancel()
				return false // it expired, or somebody deleted it
			default:
				s.rev = wrong.Last // a renewal whose answer was lost
			}
		default:
			pause(ctx, l.cfg.TTL/50)
		}
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// close ends a session in good order: all releases confirmed, then the key removed.
func (l *Locker) close(s *session) {
	ctx, cancel := context.WithDeadline(context.Background(), s.deadline())
	defer cancel()
	if err := l.releases.flush(ctx, l.nc); err != nil {
		l.cfg.OnError("confirm releases", err)
		return
	}
	if held := s.held(); held > 0 {
		l.cfg.OnError("close lock session", fmt.Errorf("%d locks still held: they are free when the lease ends, in up to %s", held, l.cfg.TTL))
		return
	}
	l.settleDoubts(ctx, s)
	s.lose()
	m := nats.NewMsg(l.kv + "session." + s.id)
	if _, err := jsapi.Publish(ctx, l.nc, marker(m, s.rev)); err != nil {
		l.cfg.OnError("close lock session", err)
	}
}

// begin begins a try. Its nonce is the session's own until end, or until its lock is released.
func (s *session) begin() (nonce uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nonces++
	s.own[s.nonces] = struct{}{}
	return s.nonces
}

func (s *session) end(nonce uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.own, nonce)
}

// knows reports whether anything in this process may come of a lock with that nonce.
func (s *session) knows(nonce uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, own := s.own[nonce]
	_, doubtful := s.doubts[nonce]
	return own || doubtful
}

func (s *session) grant(ctx context.Context, l *Locker, key string, fence, nonce uint64) (*Lock, error) {
	k := &Lock{locker: l, s: s, key: key, fence: fence, nonce: nonce}
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.validLocked() {
		k.cancel(ErrLost)
		return nil, fmt.Errorf("lock %s: %w", key, ErrLost)
	}
	s.locks[k] = struct{}{}
	return k, nil
}

func (s *session) forget(k *Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locks, k)
	delete(s.own, k.nonce)
}

func (s *session) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.locks)
}

func (s *session) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
	for k := range s.locks {
		k.cancel(ErrLost)
	}
}

// extend moves the end of the lease, and reports false if the session is lost already: it may have said so to a holder, who
// then leaves its lock behind for whoever sweeps the keys of dead sessions, so it must not come back to life.
func (s *session) extend(sent time.Time, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.until.IsZero() && !s.validLocked() {
		return false
	}
	s.until = sent.Add(ttl * 2 / 3)
	return true
}

func (s *session) deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

func (s *session) valid() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.validLocked()
}

// validLocked asks both clocks: the monotonic one stands still while a machine is suspended, the wall clock can be set. A
// session that was found to be over once is lost for good.
func (s *session) validLocked() bool {
	now := time.Now()
	if !now.Before(s.until) || !now.Round(0).Before(s.until.Round(0)) {
		s.lost = true
	}
	return !s.lost
}

// trouble tells of what failed, unless it failed because of a stop.
func (l *Locker) trouble(ctx context.Context, doing string, err error) {
	if ctx.Err() == nil {
		l.cfg.OnError(doing, err)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
