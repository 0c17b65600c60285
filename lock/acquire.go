package lock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// entry is the value of a lock's key.
type entry struct {
	Session string    `json:"session"`
	Holder  string    `json:"holder"`
	Nonce   uint64    `json:"nonce"`
	Since   time.Time `json:"since"`
	// Predecessor is kept here because taking the lock replaced the marker that named it: a lock that is freed without
	// its holder having learned of it must leave that marker again.
	Predecessor *Predecessor `json:"predecessor,omitempty"`
}

// TryLock takes the lock on a key, or fails with [ErrHeld] or [ErrNoSession]. The lock's context derives from ctx.
//
// After any other error the lock may have been taken on the server; the Locker finds out and frees it.
//
// While the connection's writes block (the link stalls and the client's buffer is full) the NATS client, and with it
// TryLock, does not return until its write fails, whatever ctx says ([nats.FlusherTimeout], a minute by default).
func (l *Locker) TryLock(ctx context.Context, key string) (*Lock, error) {
	s := l.session.Load()
	if s == nil {
		return nil, fmt.Errorf("lock %s: %w", key, ErrNoSession)
	}
	nonce, ok := s.begin()
	if !ok {
		return nil, fmt.Errorf("lock %s: %w", key, ErrNoSession)
	}
	lk, err := l.tryLock(ctx, s, key, nonce)
	if err != nil {
		s.end(nonce)
	}
	return lk, err
}

func (l *Locker) tryLock(ctx context.Context, s *session, key string, nonce uint64) (*Lock, error) {
	m := nats.NewMsg(l.kv + "lock." + key)
	m.Data = value(s.id, l.self, nonce, nil)
	var expect uint64
	var before *Predecessor
	for try := range 6 {
		m.Header = jsapi.Expect(expect)
		seq, err := jsapi.Publish(ctx, l.nc, m)
		var wrong *jsapi.WrongSequence
		switch {
		case err == nil:
			return l.grant(ctx, s, key, seq, nonce, before)
		case !errors.As(err, &wrong):
			var refused *jsapi.APIError
			if !errors.As(err, &refused) {
				s.doubt(key, nonce)
			}
			return nil, fmt.Errorf("lock %s: %w", key, err)
		}
		last, err := l.look(ctx, key)
		switch {
		case err != nil:
			return nil, err
		case last.entry == nil:
			expect, before = last.revision, last.predecessor
			m.Data = value(s.id, l.self, nonce, before)
		case last.entry.Session != s.id:
			l.suspect(last.entry.Session)
			return nil, fmt.Errorf("lock %s: %w by %s", key, ErrHeld, last.entry.Holder)
		case last.entry.Nonce == nonce: // an earlier try got through after all
			return l.grant(ctx, s, key, last.revision, nonce, last.entry.Predecessor)
		case s.knows(last.entry.Nonce):
			return nil, fmt.Errorf("lock %s: %w by %s", key, ErrHeld, last.entry.Holder)
		default: // released here, and the release is on its way
			pause(ctx, time.Millisecond<<try)
		}
	}
	return nil, fmt.Errorf("lock %s: %w: it keeps changing hands", key, ErrHeld)
}

// grant hands out a lock that was stored. If the session was lost meanwhile, the lock is freed: no work was done under it.
func (l *Locker) grant(ctx context.Context, s *session, key string, fence, nonce uint64, before *Predecessor) (*Lock, error) {
	k := &Lock{locker: l, s: s, key: key, fence: fence, nonce: nonce, predecessor: before}
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	if !s.add(k) {
		k.cancel(ErrLost)
		l.free(key, fence, before)
		return nil, fmt.Errorf("lock %s: %w", key, ErrLost)
	}
	return k, nil
}

// value is written by hand: it is on the path of every reconcile, and encoding/json would be a tenth of its cost.
func value(session string, holder []byte, nonce uint64, before *Predecessor) []byte {
	b := make([]byte, 0, 128)
	b = append(b, `{"session":"`...)
	b = append(b, session...)
	b = append(b, `","holder":`...)
	b = append(b, holder...)
	b = append(b, `,"nonce":`...)
	b = strconv.AppendUint(b, nonce, 10)
	b = append(b, `,"since":"`...)
	b = time.Now().UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	if before != nil {
		p, _ := json.Marshal(before) // a string and a bool always encode
		b = append(b, `,"predecessor":`...)
		b = append(b, p...)
	}
	return append(b, '}')
}

// last is what a key holds: a lock (entry), or nothing or a delete marker (entry nil) at a revision to expect.
type last struct {
	entry    *entry
	revision uint64
	// of a marker
	predecessor *Predecessor
	until       time.Time // when the server should have removed it, by the server's clock
}

func (l *Locker) look(ctx context.Context, key string) (last, error) {
	m, err := jsapi.Last(ctx, l.nc, l.name, l.kv+"lock."+key)
	if errors.Is(err, jsapi.ErrNoMessage) {
		return last{}, nil
	}
	if err != nil {
		return last{}, fmt.Errorf("look at lock %s: %w", key, err)
	}
	if m.Header.Get(jsapi.HeaderOperation) != "" {
		ttl, _ := time.ParseDuration(m.Header.Get(jsapi.HeaderTTL)) // none: as if it had passed
		return last{revision: m.Sequence, predecessor: markedPredecessor(m.Header), until: m.Time.Add(ttl)}, nil
	}
	e := new(entry)
	if err := json.Unmarshal(m.Data, e); err != nil {
		return last{}, fmt.Errorf("look at lock %s: its value is not ours (delete the key to free it): %w", key, err)
	}
	return last{entry: e, revision: m.Sequence}, nil
}

// Held reports whether the lock on a key is held now, by this process or another.
func (l *Locker) Held(ctx context.Context, key string) (bool, error) {
	last, err := l.look(ctx, key)
	return last.entry != nil, err
}

// HeldKeys returns the keys under a filter (a NATS subject wildcard on keys) that are locked now, or were released a
// moment ago: a key that it does not return is free. It costs one request per 100,000 keys, so code that waits for many
// locks can learn which of them are worth a TryLock. A key that was released by Abandon, or freed after its holder died,
// stays among them for up to 15 minutes.
func (l *Locker) HeldKeys(ctx context.Context, filter string) (map[string]struct{}, error) {
	prefix := l.kv + "lock."
	listing, err := jsapi.List(ctx, l.nc, l.name, prefix+filter)
	if err != nil {
		return nil, fmt.Errorf("list locks %s: %w", filter, err)
	}
	keys := make(map[string]struct{}, len(listing.Subjects))
	for s := range listing.Subjects {
		keys[strings.TrimPrefix(s, prefix)] = struct{}{}
	}
	return keys, nil
}
