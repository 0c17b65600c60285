package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"
)

const (
	// fullSweep is after how many ticks all locks are looked at even though no session was seen to end: a minute at the
	// default lease.
	fullSweep = 30
	// lastPass is the pass of a sweep in which each Locker recovers what is still there, and not only its share.
	lastPass = 2
	// recovering and reading are how many locks are recovered at once after a death, and read at once in the routine.
	recovering, reading = 128, 16
)

// sweeper finds the locks of sessions that ended without releasing them.
//
// After a death all Lockers of the group look, in passes a tick apart. In the first, each recovers the locks that it is
// responsible for; in the second, also those that it would be next for; in the last, whatever is still there.
type sweeper struct {
	l        *Locker
	observer observer
	known    map[string]bool // sessions seen at the last tick, nil before the first
	pass     int             // of the sweep under way; above lastPass there is none
	ticks    int
	limits   string // of the bucket at the last tick
	all      bool   // the next pass reads all locks, for ghosts
	routine  bool   // and need not be quick
	// connects is how often the connection had come back at the last tick: the server may be another one then, or may have
	// been killed, and know of locks that were released.
	connects uint64
}

// sweepAlways looks after the locks of others until the context ends. It is a goroutine of its own, so that a long sweep
// never holds up the renewal of this process's own session.
func (l *Locker) sweepAlways(ctx context.Context) {
	if len(l.cfg.Keys) == 0 {
		return
	}
	w := sweeper{l: l, observer: observer{l: l, everyone: fullSweep * l.cfg.TTL / 5}}
	for ctx.Err() == nil {
		w.tick(ctx)
		pause(ctx, l.cfg.TTL/5)
	}
}

// tick looks which sessions live, at the cost of one request, and sweeps if one has died or the connection has been away.
// Without a session of its own it does nothing.
func (w *sweeper) tick(ctx context.Context) {
	own := w.l.session.Load()
	if own == nil {
		return
	}
	connects := w.l.nc.Stats().Reconnects
	live, listing, err := w.l.sessions(ctx)
	if err != nil {
		w.l.trouble(ctx, "list lock sessions", err)
		return
	}
	w.checkLimits(own, listing.Config)
	w.ticks++
	switch {
	case w.known == nil || connects != w.connects:
		w.observer.restart(time.Now())
		w.pass, w.all, w.routine = 0, true, w.known != nil // all replicas meet a restart of the server at once
	case w.ticks%fullSweep == 0:
		w.pass, w.all, w.routine = 0, true, true
	}
	w.connects = connects
	dead, err := w.observer.look(ctx, live, own.id)
	if err != nil {
		w.l.trouble(ctx, "look for dead lock sessions", err)
	}
	for _, id := range dead {
		delete(live, id)
	}
	// A lock of a session that was never seen to live: it was stored after that session's end, by a request that took long.
	late := w.observer.unlisted && w.pass > lastPass
	w.observer.unlisted = false
	if late || w.died(live) {
		w.pass, w.routine = 0, false
	}
	w.known = live
	if w.pass <= lastPass {
		w.sweep(ctx, own, listing.Time)
	}
}

// died reports whether a session that was known does not live and was not closed with nothing left behind.
func (w *sweeper) died(live map[string]bool) bool {
	for id := range w.known {
		if !live[id] && !strings.HasPrefix(id, closedPrefix) && !live[closedPrefix+id] {
			return true
		}
	}
	return false
}

func (w *sweeper) sweep(ctx context.Context, own *session, now time.Time) {
	s := &sweep{
		l: w.l, own: own, pass: w.pass, all: w.all, now: now, group: w.l.members(w.known, own.id),
		atOnce: recovering, alive: map[string]bool{},
	}
	if w.routine {
		s.atOnce = reading
	}
	failed := false
	for _, filter := range w.l.cfg.Keys {
		if err := s.run(ctx, filter); err != nil {
			failed = true
			w.l.trouble(ctx, "recover locks "+filter, err)
		}
	}
	switch {
	case failed:
		w.pass = min(w.pass+1, lastPass)
	case w.all && !s.left:
		w.pass, w.all = lastPass+1, false
	default:
		w.pass, w.all = w.pass+1, false
	}
}

// sweep is one pass over the locks.
type sweep struct {
	l     *Locker
	own   *session
	group []string  // the sessions that share the work, this one included
	pass  int       // how far down the order of responsibility this one is may recover
	all   bool      // read also what others are responsible for
	now   time.Time // of the server
	// atOnce is how many locks are handled at the same time.
	atOnce int

	mu    sync.Mutex
	left  bool            // there are dead locks that another Locker is responsible for
	alive map[string]bool // by session, as read in this pass
	errs  []error         // of one key, which must not keep the others locked
}

// run recovers the locks under a filter whose sessions are gone. A session is looked at after the lock: it is older than
// its locks, so one that is missing then is dead.
//
// It also frees locks of this process's own session that nothing here knows of: ghosts. A server that is killed forgets
// that a lock's key was replaced by the delete marker of its release (nats-server 2.15 stores no record of what the limit
// of one value per key removes), but not that the marker expired. So the lock is back, and only its holder knows better.
// There is no work behind it: it was stored before the release. Nonces are looked at after the locks, too: a try has its
// nonce before its lock is stored.
func (s *sweep) run(ctx context.Context, filter string) error {
	keys, err := s.l.HeldKeys(ctx, filter)
	if err != nil {
		return err
	}
	maps.DeleteFunc(keys, func(key string, _ struct{}) bool { return !s.all && !s.responsible(key) })
	for key := range s.own.keys() {
		delete(keys, key)
	}
	s.errs = nil
	each(maps.Keys(keys), s.atOnce, func(key string) {
		if err := s.visit(ctx, key); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.errs = append(s.errs, err)
		}
	})
	return brief(s.errs)
}

// visit looks at one lock and frees it if its holder is gone.
func (s *sweep) visit(ctx context.Context, key string) error {
	found, err := s.l.look(ctx, key)
	switch {
	case err != nil:
		return err
	case found.revision == 0:
		return nil
	case found.entry == nil:
		if s.now.Sub(found.until) > time.Minute { // the server has lost its time to live
			s.l.free(key, found.revision, nil)
		}
		return nil
	case found.entry.Session == s.own.id:
		if !s.own.knows(found.entry.Nonce) {
			s.l.free(key, found.revision, found.entry.Predecessor)
		}
		return nil
	}
	alive, err := s.lives(ctx, found.entry.Session)
	if err != nil || alive {
		return err
	}
	if !s.responsible(key) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.left = true
		return nil
	}
	// First the unfinished work is done again, then the lock freed: it is the only record of the work. Others may do the
	// same at the same time; the revision lets one of them free it.
	if err := s.l.cfg.Recover(ctx, key, found.entry.Holder); err != nil {
		return fmt.Errorf("recover %s: %w", key, err)
	}
	s.l.free(key, found.revision, &Predecessor{Holder: found.entry.Holder, Died: true})
	return nil
}

// lives asks for each session once in a pass; a few times, if several ask at once.
func (s *sweep) lives(ctx context.Context, id string) (bool, error) {
	s.mu.Lock()
	alive, known := s.alive[id]
	s.mu.Unlock()
	if known {
		return alive, nil
	}
	revision, err := s.l.lives(ctx, id)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive[id] = revision != 0
	return revision != 0, nil
}

// brief joins errors, but not thousands of them.
func brief(errs []error) error {
	const most = 5
	if more := len(errs) - most; more > 0 {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}
