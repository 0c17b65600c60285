package lock

import (
	"context"
	"maps"
)

// doubt is an uncertain acquisition: a TryLock that ended without an answer. The lock may stand on the server in our name.
type doubt struct {
	key    string
	looked int // how often it was looked for and not found
}

// settling is how many uncertain acquisitions are looked for at once.
const settling = 16

// settleDoubts frees locks that were taken by a TryLock which never heard of it. Its request may be on its way still, so a
// doubt is dropped only after two looks, a tick apart, that reached the server; what arrives later is found by the sweep.
func (l *Locker) settleDoubts(ctx context.Context, s *session) {
	open := s.openDoubts()
	each(maps.Keys(open), settling, func(nonce uint64) {
		d := open[nonce]
		found, err := l.look(ctx, d.key)
		switch {
		case err != nil:
		case found.entry != nil && found.entry.Session == s.id && found.entry.Nonce == nonce:
			l.free(d.key, found.revision, found.entry.Predecessor)
			s.settle(nonce, true)
		default:
			s.settle(nonce, d.looked > 0)
		}
	})
}

func (s *session) openDoubts() map[uint64]doubt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.doubts)
}

func (s *session) doubt(key string, nonce uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubts[nonce] = doubt{key: key}
}

func (s *session) settle(nonce uint64, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if done {
		delete(s.doubts, nonce)
		return
	}
	d := s.doubts[nonce]
	d.looked++
	s.doubts[nonce] = d
}
