package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// fullSweep is after how many ticks all locks are looked at even though no session was seen to end: a minute at the
// default lease.
const fullSweep = 30

// sweeper finds the locks of sessions that ended without releasing them.
type sweeper struct {
	l     *Locker
	known map[string]bool // sessions seen at the last tick, nil before the first
	ticks int
	again int // ticks for which sweeping goes on after a session ended: a replicated stream may list late
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
	w := sweeper{l: l}
	for ctx.Err() == nil {
		if l.session.Load() != nil {
			w.tick(ctx)
		}
		pause(ctx, l.cfg.TTL/5)
	}
}

// tick looks which sessions live, at the cost of one request, and sweeps if one has gone or the connection has been away.
func (w *sweeper) tick(ctx context.Context) {
	connects := w.l.nc.Stats().Reconnects
	live, err := w.l.sessions(ctx)
	if err != nil {
		w.l.trouble(ctx, "list lock sessions", err)
		return
	}
	w.ticks++
	if w.known == nil || connects != w.connects {
		w.again = 2
	}
	w.connects = connects
	for id := range w.known {
		if !live[id] {
			w.again = 2
		}
	}
	w.known = live
	if w.again == 0 && w.ticks%fullSweep != 0 {
		return
	}
	w.again = max(0, w.again-1)
	for _, filter := range w.l.cfg.Keys {
		if err := w.l.sweep(ctx, filter); err != nil {
			w.again = max(1, w.again)
			w.l.trouble(ctx, "recover locks "+filter, err)
		}
	}
}

// sweep recovers the locks under a filter whose sessions are gone. Sessions are looked at after the locks: a session is
// older than its locks, so one that is missing then is dead.
//
// It also frees locks of this process's own session that nothing here knows of: ghosts. A server that is killed forgets
// that a lock's key was replaced by the delete marker of its release (nats-server 2.15 stores no record of what the limit
// of one value per key removes), but not that the marker expired. So the lock is back, and only its holder knows better.
// There is no work behind it: it was stored before the release. Nonces are looked at after the locks, too: a try has its
// nonce before its lock is stored.
func (l *Locker) sweep(ctx context.Context, filter string) error {
	prefix := l.kv + "lock."
	subjects, err := jsapi.Subjects(ctx, l.nc, l.name, prefix+filter)
	if err != nil {
		return err
	}
	var errs []error // of one key, which must not keep the others locked
	found := map[string]last{}
	for subj := range subjects {
		key := strings.TrimPrefix(subj, prefix)
		e, err := l.look(ctx, key)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			errs = append(errs, err)
		case e.entry != nil:
			found[key] = e
		}
	}
	alive, own := map[string]bool{}, l.session.Load()
	for key, e := range found {
		id := e.entry.Session
		if own != nil && id == own.id && !own.knows(e.entry.Nonce) {
			l.release(key, e.revision)
			continue
		}
		if _, known := alive[id]; !known {
			if alive[id], err = l.lives(ctx, id); err != nil {
				return errors.Join(append(errs, err)...)
			}
		}
		if !alive[id] {
			errs = append(errs, l.takeOver(ctx, key, e.revision))
		}
	}
	return errors.Join(errs...)
}

// lives reports whether a session's key is there and not deleted.
func (l *Locker) lives(ctx context.Context, id string) (bool, error) {
	m, err := jsapi.Last(ctx, l.nc, l.name, l.kv+"session."+id)
	if errors.Is(err, jsapi.ErrNoMessage) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at lock session %s: %w", id, err)
	}
	return m.Header.Get(jsapi.HeaderOperation) == "", nil
}

// takeOver has the unfinished work done again, then frees the lock: in this order, because the lock is the only record
// of the work. Others may do the same at the same time; the revision lets one of them free it.
func (l *Locker) takeOver(ctx context.Context, key string, revision uint64) error {
	if err := l.cfg.Recover(ctx, key); err != nil {
		return fmt.Errorf("recover %s: %w", key, err)
	}
	l.release(key, revision)
	return nil
}

// sessions lists the keys of sessions, as the stream's leader knows them; a key that somebody deleted by hand may be
// among them.
func (l *Locker) sessions(ctx context.Context) (map[string]bool, error) {
	prefix := l.kv + "session."
	subjects, err := jsapi.Subjects(ctx, l.nc, l.name, prefix+"*")
	if err != nil {
		return nil, err
	}
	live := make(map[string]bool, len(subjects))
	for s := range subjects {
		live[strings.TrimPrefix(s, prefix)] = true
	}
	return live, nil
}
