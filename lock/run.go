package lock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// Run keeps a session until the context ends, then confirms all releases and closes it. If locks are still held then,
// their contexts are cancelled with ErrLost and the session is left to expire, so that they are granted to others only
// when that is over.
//
// It returns nil after a clean end, and never gives up on a server that is out of reach. It returns at the latest one
// lease after the context ended; with an error, if the NATS client has not returned from a call until then (it blocks
// while the connection's writes do). It must not be called twice at once.
func (l *Locker) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return errors.New("lock: Run is running already: a Locker has one Run")
	}
	done := make(chan error, 1)
	go func() { // waited for below; what blocks in the client for longer than a lease outlives Run, as its error says
		defer l.running.Store(false)
		done <- l.run(ctx)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(l.cfg.TTL)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("lock: stopped while a call of the NATS client does not return, because the connection's writes block; what is locked is free when the lease ends, in up to %s", l.cfg.TTL)
	}
}

func (l *Locker) run(ctx context.Context) error {
	stop, err := l.releases.listen()
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	defer stop()
	quit := make(chan struct{})
	var helping, sweeping sync.WaitGroup
	helping.Go(func() { l.releases.send(quit) })
	helping.Go(func() { l.watches.dispatch(quit) })
	defer helping.Wait()
	defer close(quit)
	sweeping.Go(func() { l.sweepAlways(ctx) })
	defer sweeping.Wait()
	l.keepAlways(ctx)
	return nil
}

func (l *Locker) keepAlways(ctx context.Context) {
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
}

func (l *Locker) open(ctx context.Context) (*session, error) {
	s := newSession(l.group)
	sent := time.Now()
	once, cancel := context.WithTimeout(ctx, l.cfg.TTL*2/3)
	defer cancel()
	rev, err := l.renew(once, s.id, 0)
	if err != nil {
		return nil, err
	}
	s.rev = rev
	s.extend(sent, l.cfg.TTL)
	l.readClock(once, s.id, sent, time.Now())
	return s, nil
}

// readClock learns the server's clock from the time at which it stored a session's key, so that it is known before the first
// lock is taken. A read that fails is no loss: the look for dead sessions tells it, too.
func (l *Locker) readClock(ctx context.Context, id string, sent, answered time.Time) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.TTL/50)
	defer cancel()
	if m, err := jsapi.Last(ctx, l.nc, l.name, l.kv+"session."+id); err == nil {
		l.measure(m.Time, sent, answered)
	}
}

// renew writes the session's key with a fresh time to live. The key must be as this session left it: a session that
// expired is never brought back to life.
func (l *Locker) renew(ctx context.Context, id string, revision uint64) (uint64, error) {
	m := nats.NewMsg(l.kv + "session." + id)
	m.Header = jsapi.Expect(revision)
	m.Header.Set(jsapi.HeaderTTL, seconds(l.cfg.TTL))
	m.Data, _ = json.Marshal(map[string]string{"holder": l.cfg.Holder}) // a map of strings always encodes
	return jsapi.Publish(ctx, l.nc, m)
}

// keep renews the session until it is lost or the context ends. What cancels its locks and what looks for uncertain
// acquisitions are goroutines of their own: this one waits for the server, and the client may block it.
func (l *Locker) keep(ctx context.Context, s *session) {
	var helping, settling sync.WaitGroup
	defer helping.Wait()
	defer settling.Wait()
	defer s.lose()
	helping.Go(func() {
		s.watch(l.cfg.TTL)
		l.session.CompareAndSwap(s, nil)
	})
	settling.Go(func() { l.settleAlways(ctx, s) })
	l.session.Store(s)
	l.cfg.OnReady()
	tick := time.NewTicker(l.cfg.TTL / 5)
	defer tick.Stop()
	for ok := true; ok; {
		select {
		case <-ctx.Done():
			settling.Wait()
			l.close(s)
			return
		case <-s.held.Done():
			ok = false
		case <-tick.C:
			ok = l.extend(s)
		}
	}
	s.lose()
	l.releases.drop(s)
	l.cfg.OnError("renew lock session", ErrLost)
}

// settleAlways looks for uncertain acquisitions at every tick until the session is over.
func (l *Locker) settleAlways(ctx context.Context, s *session) {
	tick := time.NewTicker(l.cfg.TTL / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.held.Done():
			return
		case <-tick.C:
		}
		once, cancel := context.WithTimeout(ctx, l.cfg.TTL/5)
		l.settleDoubts(once, s)
		cancel()
	}
}

// extend renews until it succeeds or the lease is over. A renewal under way is never cancelled by a stop: whether it
// took effect would be unknown. A try that is not answered within a tenth of the lease is followed by another, so that a
// lost answer does not end the session; it is waited for all the same, for a server that is slow.
func (l *Locker) extend(s *session) bool {
	type answer struct {
		sent time.Time
		rev  uint64
		err  error
	}
	share := l.cfg.TTL / 10
	answers := make(chan answer, 10) // more tries than fit into two thirds of a lease
	var tries sync.WaitGroup
	defer tries.Wait()
	ctx, cancel := context.WithDeadline(context.Background(), s.deadline())
	defer cancel()
	next := time.NewTimer(0)
	defer next.Stop()
	for s.valid() {
		select {
		case <-ctx.Done():
			return false
		case <-next.C:
			rev := s.rev
			tries.Go(func() {
				a := answer{sent: time.Now()}
				a.rev, a.err = l.renew(ctx, s.id, rev)
				answers <- a
			})
			next.Reset(share)
		case a := <-answers:
			var wrong *jsapi.WrongSequence
			switch {
			case a.err == nil:
				s.rev = a.rev
				return s.extend(a.sent, l.cfg.TTL)
			case errors.As(a.err, &wrong) && !l.resume(ctx, s, share):
				return false
			}
			next.Reset(l.cfg.TTL / 50)
		}
	}
	return false
}

// resume finds out what a renewal's refusal means, and reports false if the session is dead: it expired, its key was
// deleted, or the bucket is an older copy of itself, which may know nothing of the session's locks. If a renewal was
// stored and its answer lost, the next one follows that.
func (l *Locker) resume(ctx context.Context, s *session, within time.Duration) bool {
	once, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	rev, err := l.lives(once, s.id)
	if err != nil {
		return true // it is unknown: the next try meets it again
	}
	if rev < s.rev {
		return false
	}
	s.rev = rev
	return true
}

// close ends a session in good order: all releases confirmed, also those of uncertain acquisitions, then the key removed.
func (l *Locker) close(s *session) {
	ctx, cancel := context.WithDeadline(context.Background(), s.deadline())
	defer cancel()
	l.settleDoubts(ctx, s)
	if err := l.releases.flush(ctx); err != nil {
		l.cfg.OnError("confirm releases", err)
		return
	}
	if held := len(s.keys()); held > 0 {
		l.cfg.OnError("close lock session", stillHeld(held, l.cfg.TTL))
		return
	}
	s.lose()
	if s.quiet() { // else other Lockers must look for its locks
		m := nats.NewMsg(l.kv + "session." + closedPrefix + s.id)
		m.Header = nats.Header{jsapi.HeaderTTL: {seconds(l.cfg.TTL)}}
		if _, err := jsapi.Publish(ctx, l.nc, m); err != nil {
			l.cfg.OnError("close lock session", err)
		}
	}
	m := nats.NewMsg(l.kv + "session." + s.id)
	if _, err := jsapi.Publish(ctx, l.nc, marker(m, s.rev, nil)); err != nil {
		l.cfg.OnError("close lock session", err)
	}
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

// each calls f for all items, for up to n at once, and returns when all calls have.
func each[T any](items iter.Seq[T], n int, f func(T)) {
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, n)
	for item := range items {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			f(item)
		})
	}
}
