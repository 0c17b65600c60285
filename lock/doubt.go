package lock

import (
	"context"
	"maps"
)

// doubt is a TryLock that ended without an answer: the lock may stand on the server in our name.
type doubt struct {
	key    string
	looked int // how often it was looked for and not found
}

// settleDoubts frees locks that were taken by a TryLock which never heard of it. A request may sit in the client's
// reconnect buffer, so a doubt is dropped only after two looks, a tick apart, that reached the server.
func (l *Locker) settleDoubts(ctx context.Context, s *session) {
	for nonce, d := range s.openDoubts() {
		found, err := l.look(ctx, d.key)
		switch {
		case err != nil:
			continue
		case found.entry != nil && found.entry.Session == s.id && found.entry.Nonce == nonce:
			l.release(d.key, found.revision)
			s.settle(nonce, true)
		default:
			s.settle(nonce, d.looked > 0)
		}
	}
}

func (s *session) openDoubts() map[uint64]doubt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.doubts) == 0 {
		return nil
	}
	open := make(map[uint64]doubt, len(s.doubts))
	maps.Copy(open, s.doubts)
	return open
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
