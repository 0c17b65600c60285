package lock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// What a stop leaves behind decides who has to look for it: everything is released and confirmed before the session says that
// there is nothing, and says so before its key is gone.
func TestStopClosesTheSession(t *testing.T) {
	noted := []string{"closed", "key"}
	for name, tt := range map[string]struct {
		locks   []string // answers to the lock, and to its release
		looks   string   // the answer to looks for it
		closing []string // answers to the ends of the session
		unlock  bool
		sends   []string // at the stop
		errs    []string
		takes   time.Duration
	}{
		"nothing locked":      {sends: noted},
		"released":            {locks: []string{storedAt(5), storedAt(6)}, unlock: true, sends: append([]string{"release"}, noted...)},
		"released, unheard":   {locks: []string{storedAt(5), script.Silence, storedAt(6)}, unlock: true, sends: append([]string{"release", "release"}, noted...), takes: resendAfter},
		"never confirmed":     {locks: []string{storedAt(5), script.Silence}, unlock: true, sends: times("release", 7), errs: []string{"confirm releases: 1 releases unconfirmed: context deadline exceeded"}, takes: DefaultTTL * 2 / 3},
		"still locked":        {locks: []string{storedAt(5)}, errs: []string{"close lock session: 1 locks still held: they are recovered by others when the lease ends, in up to 10s"}},
		"uncertain":           {locks: []string{script.NoResponders}, looks: unavailable, sends: []string{"key"}},
		"missing once":        {locks: []string{script.NoResponders}, looks: noMessage, sends: []string{"key"}},
		"uncertain and found": {locks: []string{script.NoResponders, script.Silence, storedAt(6)}, looks: "own", sends: append([]string{"release", "release"}, noted...), takes: resendAfter},
		"refused": {
			closing: []string{unavailable}, sends: noted,
			errs: []string{"close lock session: temporarily unavailable (server error 10008)", "close lock session: temporarily unavailable (server error 10008)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
				accepts(s)
				stop := running(t, l)
				own := l.session.Load()
				var k *Lock
				if tt.locks != nil {
					s.Answer("$KV.b.lock.", tt.locks...)
					k, _ = l.TryLock(t.Context(), "jobs.a")
				}
				if tt.looks == "own" {
					tt.looks = lockedBy(5, own.id, 1, nil)
				}
				s.Answer(reads("lock.jobs.a"), tt.looks)
				if tt.closing != nil {
					s.Answer(putSession, tt.closing...)
				}
				before := len(s.Sent("$KV.b."))
				if tt.unlock {
					k.Unlock()
				}
				took, err := stop()
				require.NoError(t, err)
				require.Equal(t, tt.takes, took)
				var sends []string
				for _, m := range s.Sent("$KV.b.")[before:] {
					switch m.Subject {
					case anchor:
						sends = append(sends, "release")
						require.Equal(t, marker(nats.NewMsg(""), 5, nil).Header, m.Header)
					case putSession + "closed-" + own.id:
						sends = append(sends, "closed")
						require.Equal(t, nats.Header{"Nats-TTL": {"10s"}}, m.Header)
					case putSession + own.id:
						sends = append(sends, "key")
						require.Equal(t, marker(nats.NewMsg(""), 7, nil).Header, m.Header)
					}
				}
				require.Equal(t, tt.sends, sends)
				require.Equal(t, tt.errs, h.drain())
				require.ErrorIs(t, context.Cause(own.held), ErrLost)
				if k != nil && !tt.unlock {
					require.ErrorIs(t, context.Cause(k.Context()), ErrLost)
				}
			})
		})
	}
}

// Once the session says that it leaves nothing behind, it takes no lock.
func TestNoLockIsGrantedWhileTheSessionCloses(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		accepts(s)
		stop := running(t, l)
		s.Answer(putSession+"closed-", script.Silence)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = stop()
		}()
		sleepFor(time.Second)
		_, err := l.TryLock(t.Context(), "jobs.a")
		require.ErrorIs(t, err, ErrNoSession)
		require.Len(t, s.Sent(putSession), 2)
		<-ended
		require.Len(t, s.Sent(putSession), 3)
	})
}

// The caller is not kept by a call that does not return for longer than the lease, and no lock is held for longer than two
// thirds of it: whatever blocks the one that renews.
func TestRunReturnsWhenACallDoesNot(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		accepts(s)
		blocked := make(chan struct{})
		l.cfg.OnReady = func() { <-blocked }
		stop := running(t, l)
		k, err := l.TryLock(t.Context(), "jobs.a")
		require.NoError(t, err, "who is told that there is a session has one")
		sleepFor(DefaultTTL*2/3 - 1)
		require.NoError(t, k.Context().Err())
		sleepFor(1)
		require.ErrorIs(t, context.Cause(k.Context()), ErrLost)
		require.Nil(t, l.session.Load())
		took, err := stop()
		require.ErrorContains(t, err, "stopped while a call of the NATS client does not return")
		require.Equal(t, DefaultTTL, took)
		require.ErrorContains(t, l.Run(t.Context()), "Run is running already")
		close(blocked)
		synctest.Wait()
		stop = running(t, l)
		_, err = stop()
		require.NoError(t, err)
	})
}

// What Run calls does not run on behind it.
func TestRunWaitsForWhatItCalls(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		accepts(s)
		calls, begun := 0, make(chan struct{}, 2)
		slow := func() {
			begun <- struct{}{}
			time.Sleep(time.Second)
			calls++
		}
		l.cfg.Recover = func(context.Context, string, string) error {
			slow()
			return nil
		}
		s.Answer(lists("lock.jobs.>"), listing("lock.jobs.a"), listing())
		s.Answer(reads("lock.jobs.a"), lockedBy(5, "x", 1, nil))
		_, err := l.OnRelease("jobs.b", slow)
		require.NoError(t, err)
		stop := running(t, l)
		<-begun
		took, err := stop()
		require.NoError(t, err)
		require.Equal(t, time.Second, took)
		require.Equal(t, 1, calls, "a recovery")

		stop = running(t, l)
		s.Deliver("$KV.b.lock.jobs.b", &nats.Msg{Subject: "$KV.b.lock.jobs.b", Header: nats.Header{"KV-Operation": {"DEL"}}})
		<-begun
		took, err = stop()
		require.NoError(t, err)
		require.Equal(t, time.Second, took)
		require.Equal(t, 2, calls, "word of a release")
	})
}
