package lock

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

const putSession = "$KV.b.session."

// running runs a Locker. stop ends it, and returns what Run did and how long it took.
func running(t *testing.T, l *Locker) (stop func() (time.Duration, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(cancel)
	synctest.Wait()
	return func() (time.Duration, error) {
		begun := time.Now()
		cancel()
		err := <-ended
		return time.Since(begun), err
	}
}

// accepts has the server store everything, and hold nothing.
func accepts(s *script.Server) {
	s.Answer("$KV.b.", storedAt(7))
	s.Answer(streamInfoOf, listing())
	s.Answer("$JS.API.STREAM.MSG.GET.", noMessage)
}

// A session is a key that lives for a lease and is renewed five times in it, by its revision.
func TestRunKeepsASession(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		accepts(s)
		s.Answer(putSession, storedAt(3), storedAt(4), storedAt(6))
		s.Answer("$JS.API.STREAM.MSG.GET.", alive(3))
		require.False(t, l.Ready())
		stop := running(t, l)
		require.True(t, l.Ready())
		require.Equal(t, 1, h.ready)
		require.ErrorContains(t, l.Run(t.Context()), "Run is running already")
		require.Equal(t, time.Until(script.Time), l.ClockOffset(), "known before the first lock")
		id := l.session.Load().id
		require.True(t, strings.HasSuffix(id, "-"+l.group))
		sleepFor(2*tick + 1)
		puts := s.Sent(putSession)
		require.Equal(t, []string{"0", "3", "4"}, expected(puts))
		for _, m := range puts {
			require.Equal(t, putSession+id, m.Subject)
			require.Equal(t, "10s", m.Header.Get("Nats-TTL"))
			require.JSONEq(t, `{"holder":"me"}`, string(m.Data))
		}
		sleepFor(100 * tick)
		require.Len(t, s.Sent(putSession), 103)
		require.Equal(t, 1, h.ready)
		require.Empty(t, h.drain())

		took, err := stop()
		require.NoError(t, err)
		require.Zero(t, took)
		require.False(t, l.Ready())
		require.Equal(t, 1, l.nc.NumSubscriptions(), "that of the client")
		_, err = l.TryLock(t.Context(), "jobs.a")
		require.ErrorIs(t, err, ErrNoSession)
		stop = running(t, l)
		require.True(t, l.Ready(), "it can run again")
		require.NotEqual(t, id, l.session.Load().id)
		_, err = stop()
		require.NoError(t, err)
	})
}

// A session that is lost takes its locks with it; the next one has another name.
func TestLostSessionIsFollowedByAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		put  string
		lost time.Duration
	}{
		"its key is gone": {wrongSequence, tick},
		"not answered":    {script.Silence, DefaultTTL * 2 / 3},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
				accepts(s)
				stop := running(t, l)
				first := l.session.Load()
				k, err := l.TryLock(t.Context(), "jobs.a")
				require.NoError(t, err)
				var knew error
				open := -1
				l.cfg.OnError = func(doing string, err error) {
					h.onError(doing, err)
					knew, open = context.Cause(k.Context()), len(freed(l))
				}
				s.Answer("$KV.b.lock.", script.Silence)
				other := &Lock{locker: l, s: first, key: "jobs.b", cancel: func(error) {}}
				other.Unlock()
				require.Len(t, freed(l), 1)
				s.Answer(putSession, tt.put)
				s.Answer(putSession+first.id, tt.put)
				s.Answer(putSession, storedAt(9))
				sleepFor(tt.lost - 1)
				require.NoError(t, k.Context().Err())
				sleepFor(1)
				require.ErrorIs(t, context.Cause(k.Context()), ErrLost)
				require.ErrorIs(t, context.Cause(k.Held()), ErrLost)
				require.Equal(t, []string{"renew lock session: " + ErrLost.Error()}, h.drain())
				require.Empty(t, freed(l), "others recover what it has left")
				require.ErrorIs(t, knew, ErrLost, "who hears of it finds its locks cancelled")
				require.Zero(t, open)
				second := l.session.Load()
				require.NotEqual(t, first, second)
				require.True(t, l.Ready())
				require.Equal(t, 2, h.ready)
				s.Answer("$KV.b.lock.", storedAt(11))
				_, err = stop()
				require.NoError(t, err)
				require.Len(t, s.Sent(putSession+"closed-"+second.id), 1)
				require.Empty(t, s.Sent(putSession+"closed-"+first.id))
			})
		})
	}
}

// What failed is told and tried again; that there is no connection is told once, and nothing is sent meanwhile.
func TestSessionIsOpenedAsSoonAsItCanBe(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		l.cfg.Keys = nil // nothing else is told of
		accepts(s)
		s.Answer(putSession, unavailable)
		stop := running(t, l)
		sleepFor(2 * DefaultTTL / 10)
		require.Equal(t, times("open lock session: temporarily unavailable (server error 10008)", 3), h.drain())
		require.False(t, l.Ready())
		s.Answer(putSession, script.Silence)
		sleepFor(DefaultTTL)
		require.NotEmpty(t, h.drain())
		s.Cut()
		sleepFor(DefaultTTL)
		h.drain()
		before := len(s.Sent(""))
		sleepFor(DefaultTTL)
		require.Len(t, s.Sent(""), before)
		require.Empty(t, h.drain())
		s.Answer(putSession, storedAt(5))
		s.SetDown(false)
		sleepFor(DefaultTTL / 10)
		require.True(t, l.Ready())
		require.Empty(t, h.drain())
		s.Cut()
		sleepFor(2 * DefaultTTL)
		require.Equal(t, []string{"renew lock session: " + ErrLost.Error(), "open lock session: " + nats.ErrConnectionReconnecting.Error()}, h.drain())
		s.Answer(putSession, script.Silence)
		s.SetDown(false)
		sleepFor(DefaultTTL / 10)
		require.False(t, l.Ready())
		_, err := stop()
		require.NoError(t, err)
		require.Empty(t, h.drain(), "that a stop ends a request is no trouble")
	})
}

// A start while there is no connection says so, and a stop then is no trouble.
func TestRunWithoutAConnectionWaitsForIt(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		s.Cut()
		synctest.Wait()
		stop := running(t, l)
		sleepFor(DefaultTTL)
		errs := h.drain()
		require.Contains(t, errs, "open lock session: "+nats.ErrConnectionReconnecting.Error())
		require.Len(t, errs, 1)
		took, err := stop()
		require.NoError(t, err)
		require.Zero(t, took)
		require.Empty(t, h.drain())
		require.Empty(t, s.Sent(""))

		l.nc.Close()
		require.ErrorContains(t, l.Run(t.Context()), "lock: listen for confirmed releases: ")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorContains(t, l.Run(ended), "lock: listen for confirmed releases: ", "a stop hides no error")
	})
}

// The clock is not worth waiting for.
func TestSessionIsOpenedWithoutTheClock(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		s.Answer(putSession, storedAt(5))
		s.Answer("$JS.API.STREAM.MSG.GET.", script.Silence, alive(5))
		begun := time.Now()
		own, err := l.open(t.Context())
		require.NoError(t, err)
		require.Equal(t, DefaultTTL/50, time.Since(begun))
		require.Equal(t, begun.Add(DefaultTTL*2/3), own.deadline(), "the lease counts from the request")
		require.EqualValues(t, 5, own.rev)
		require.Zero(t, l.ClockOffset())
		require.Empty(t, h.drain())
	})
}

// Whoever gives the session up, as the look for limits does, is followed by another one at once.
func TestSessionThatIsGivenUpIsFollowedAtOnce(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		accepts(s)
		stop := running(t, l)
		sleepFor(time.Second)
		first := l.session.Load()
		first.lose()
		synctest.Wait()
		require.True(t, l.Ready())
		require.NotEqual(t, first, l.session.Load())
		_, err := stop()
		require.NoError(t, err)
	})
}

// A lease that is over before the answer comes is of no use.
func TestSessionIsOpenedWithinTwoThirdsOfTheLease(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		l.cfg.TTL = 3 * time.Second
		s.Answer(putSession, script.Silence)
		begun := time.Now()
		_, err := l.open(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 2*time.Second, time.Since(begun))
	})
}

// An uncertain lock is looked for at each tick, until the session is over.
func TestUncertainLocksAreLookedForAtEachTick(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		l.cfg.Keys = nil
		accepts(s)
		s.Answer("$KV.b.lock.", script.NoResponders)
		stop := running(t, l)
		_, err := l.TryLock(t.Context(), "jobs.a")
		require.Error(t, err)
		s.Answer(reads("lock.jobs.a"), script.Silence, unavailable)
		sleepFor(tick)
		require.Len(t, s.Sent(reads("lock.jobs.a")), 1)
		sleepFor(tick)
		require.Len(t, s.Sent(reads("lock.jobs.a")), 2, "a look takes no longer than a tick")
		sleepFor(3 * tick)
		require.Len(t, s.Sent(reads("lock.jobs.a")), 5)
		_, err = stop()
		require.NoError(t, err)
		require.Len(t, s.Sent(reads("lock.jobs.a")), 6, "once more in the end")
	})
}
