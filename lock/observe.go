package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// closedPrefix begins the key of a session that was closed with nothing left behind. It stays for a lease, so that who sees
// the session's own key disappear knows that there is nothing to recover.
const closedPrefix = "closed-"

// observer finds sessions whose keys are there and that are dead all the same. A server that was killed may bring a key
// back without its time to live (nats-server 2.15 arms again only what it stored after its last snapshot of timers), so a
// key is no proof of life; only a renewal is. A session is dead if its key was not renewed for a whole lease, as seen by
// this observer: the first read answered at one time, the second sent a lease later. Its holder has given up by then,
// after two thirds of the lease. Only the monotonic clock here decides.
//
// In the steady state each session is read once a minute. It is read more often if there is a reason to doubt it.
type observer struct {
	l        *Locker
	seen     map[string]sighting // by session
	closeTo  time.Time           // until then each session is read once per lease
	everyone time.Duration       // how often each session is read otherwise
	unlisted bool                // a lock that is waited for here is of a session without a key
}

type sighting struct {
	revision uint64
	since    time.Time // the answer that had this revision first
	asked    time.Time // the last read
}

// suspects are the sessions that hold locks which are waited for here.
type suspects struct {
	mu  sync.Mutex
	ids map[string]struct{}
}

// suspect has a session looked at closely, if this Locker looks for dead ones at all.
func (l *Locker) suspect(id string) {
	if len(l.cfg.Keys) == 0 {
		return
	}
	l.suspects.mu.Lock()
	defer l.suspects.mu.Unlock()
	l.suspects.ids[id] = struct{}{}
}

func (s *suspects) take() map[string]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.ids
	s.ids = map[string]struct{}{}
	return ids
}

// restart forgets everything and looks closely for a while: the server may be another one, or have gone back in time.
func (o *observer) restart(now time.Time) {
	o.seen, o.closeTo = map[string]sighting{}, now.Add(3*o.l.cfg.TTL)
}

// look reads the sessions that are due and returns those that were found dead. Their keys are removed first, so that
// their holders cannot renew them any more.
func (o *observer) look(ctx context.Context, listed map[string]bool, own string) (dead []string, err error) {
	for id := range o.seen {
		if !listed[id] {
			delete(o.seen, id)
		}
	}
	suspected := o.l.suspects.take()
	for id := range suspected {
		o.unlisted = o.unlisted || !listed[id]
	}
	due := map[string]sighting{}
	now := time.Now()
	for id := range listed {
		every := o.everyone
		if _, ok := suspected[id]; ok || now.Before(o.closeTo) {
			every = o.l.cfg.TTL
		}
		if s := o.seen[id]; id != own && now.Sub(s.asked) >= every { // never asked: for ever ago
			due[id] = s
		}
	}
	var mu sync.Mutex
	var errs []error
	each(maps.Keys(due), reading, func(id string) {
		s, gone, err := o.read(ctx, id, due[id], now)
		mu.Lock()
		defer mu.Unlock()
		o.seen[id] = s
		if err != nil {
			errs = append(errs, err)
			delete(o.seen, id)
		}
		if gone && !strings.HasPrefix(id, closedPrefix) {
			dead = append(dead, id)
		}
	})
	return dead, errors.Join(errs...)
}

// read reads one session and reports whether it is dead.
func (o *observer) read(ctx context.Context, id string, s sighting, now time.Time) (_ sighting, dead bool, err error) {
	subj := o.l.kv + "session." + id
	m, err := jsapi.Last(ctx, o.l.nc, o.l.name, subj)
	if errors.Is(err, jsapi.ErrNoMessage) {
		return s, false, nil // the next list tells
	}
	if err != nil {
		return s, false, fmt.Errorf("look at lock session %s: %w", id, err)
	}
	s.asked = now
	if m.Sequence != s.revision {
		s.revision, s.since = m.Sequence, time.Now()
		return s, false, nil
	}
	if now.Sub(s.since) < o.l.cfg.TTL {
		return s, false, nil
	}
	_, err = jsapi.Publish(ctx, o.l.nc, marker(nats.NewMsg(subj), s.revision, nil))
	var wrong *jsapi.WrongSequence
	if errors.As(err, &wrong) {
		return s, false, nil // it was renewed, or another observer removed it, which the next list tells
	}
	if err != nil {
		return s, false, fmt.Errorf("remove dead lock session %s: %w", id, err)
	}
	return s, m.Header.Get(jsapi.HeaderOperation) == "", nil
}

// lives returns the revision of a session's key, 0 if it is gone or deleted.
func (l *Locker) lives(ctx context.Context, id string) (uint64, error) {
	m, err := jsapi.Last(ctx, l.nc, l.name, l.kv+"session."+id)
	if errors.Is(err, jsapi.ErrNoMessage) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at lock session %s: %w", id, err)
	}
	if m.Header.Get(jsapi.HeaderOperation) != "" {
		return 0, nil
	}
	return m.Sequence, nil
}

// sessions lists the keys of sessions, as the stream's leader knows them, with its clock and the settings of the bucket; a
// key that was deleted a moment ago may be among them.
func (l *Locker) sessions(ctx context.Context) (map[string]bool, *jsapi.Listing, error) {
	prefix := l.kv + "session."
	listing, err := jsapi.List(ctx, l.nc, l.name, prefix+"*")
	if err != nil {
		return nil, nil, err
	}
	l.measure(listing.Time, listing.Sent, listing.Answered)
	live := make(map[string]bool, len(listing.Subjects))
	for s := range listing.Subjects {
		live[strings.TrimPrefix(s, prefix)] = true
	}
	return live, listing, nil
}
