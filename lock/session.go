package lock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/evenkeel-io/evenkeel/internal/random"
)

// session is one life of a Locker's lease. Once it is lost it stays lost; the next one has another id.
//
// Its mutex is never held while the client or code of others is called: losing a session must hang on nothing but a timer.
type session struct {
	id  string
	rev uint64 // revision of its key; used by the goroutine that renews only
	// held ends with ErrLost when the session is lost.
	held   context.Context //nolint:containedctx // it is the session's lifetime, which is what the type is about
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	until  time.Time // when the locks must be given up, by the monotonic clock
	wall   time.Time // and by the wall clock
	lost   bool      // for good, though locks may not have been told yet
	locks  map[*Lock]struct{}
	nonces uint64              // given so far
	own    map[uint64]struct{} // nonces of tries that are under way, and of the locks held
	doubts map[uint64]doubt    // by nonce: of two tries for one key each may be the one that stands
}

// newSession makes a session of a group of Lockers, which its id names, because that is what others see of it at no cost.
func newSession(group string) *session {
	id := random.Text()
	if group != "" {
		id += "-" + group
	}
	held, cancel := context.WithCancelCause(context.Background())
	return &session{id: id, held: held, cancel: cancel, locks: map[*Lock]struct{}{}, own: map[uint64]struct{}{}, doubts: map[uint64]doubt{}}
}

// watch loses the session when its time is over. It looks at the clocks often, because a timer of its own would sleep on
// with a suspended machine.
func (s *session) watch(ttl time.Duration) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.held.Done():
			return
		case <-timer.C:
		}
		left, ok := s.left()
		if !ok {
			s.lose()
			return
		}
		timer.Reset(min(left, ttl/10))
	}
}

// left is the time until the locks must be given up, unless it is over.
func (s *session) left() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.until), s.validLocked()
}

// begin begins a try. Its nonce is the session's own until end, or until its lock is released.
func (s *session) begin() (nonce uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.validLocked() {
		return 0, false
	}
	s.nonces++
	s.own[s.nonces] = struct{}{}
	return s.nonces, true
}

func (s *session) end(nonce uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.own, nonce)
}

// knows reports whether anything in this process may come of a lock with that nonce, or may have: a holder that learned
// that the session is lost has forgotten its lock, and left work behind.
func (s *session) knows(nonce uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.validLocked() {
		return true
	}
	_, own := s.own[nonce]
	_, doubtful := s.doubts[nonce]
	return own || doubtful
}

// add notes a lock that was granted, and reports false if the session is lost.
func (s *session) add(k *Lock) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.validLocked() {
		return false
	}
	s.locks[k] = struct{}{}
	return true
}

// forget ends a lock, and reports whether it was held until now.
func (s *session) forget(k *Lock) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locks, k)
	delete(s.own, k.nonce)
	return s.validLocked()
}

// keys are those that are locked.
func (s *session) keys() map[string]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make(map[string]struct{}, len(s.locks))
	for k := range s.locks {
		keys[k.key] = struct{}{}
	}
	return keys
}

// quiet reports whether nothing of the session can be on the server but its key.
func (s *session) quiet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.own) == 0 && len(s.doubts) == 0
}

// lose ends the session and cancels its locks.
func (s *session) lose() {
	s.mu.Lock()
	s.lost = true
	var locks []*Lock
	for k := range s.locks {
		locks = append(locks, k)
	}
	s.mu.Unlock()
	for _, k := range locks {
		k.cancel(ErrLost)
	}
	s.cancel(ErrLost)
}

// extend moves the end of the lease, and reports false if the session is lost already: it may have said so to a holder, who
// then leaves its lock behind for the sweep of dead sessions, so it must not come back to life.
func (s *session) extend(sent time.Time, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.until.IsZero() && !s.validLocked() {
		return false
	}
	s.until = sent.Add(ttl * 2 / 3)
	s.wall = s.until.Round(0)
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
	if !now.Before(s.until) || !now.Round(0).Before(s.wall) {
		s.lost = true
	}
	return !s.lost
}

// stillHeld is the error of a stop with locks held.
func stillHeld(n int, ttl time.Duration) error {
	return fmt.Errorf("%d locks still held: they are recovered by others when the lease ends, in up to %s", n, ttl)
}
