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
		require.Equal(t, theTime.Sub(time.Now()), l.ClockOffset(), "known before the first lock")
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
		_, err = l.TryLock(t.Context(), "jobs.a")
		require.ErrorIs(t, err, ErrNoSession)
		stop = running(t, l)
		require.True(t, l.Ready(), "it can run again")
		require.NotEqual(t, id, l.session.Load().id)
		_, err = stop()
		require.NoError(t, err)
	})
}

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

func times(s string, n int) (all []string) {
	for range n {
		all = append(all, s)
	}
	return all
}

// A renewal is tried until it succeeds or the lease is over. The lease counts from the request that was answered, and what
// the server refuses may be our own write.
func TestRenewalIsTriedUntilTheLeaseIsOver(t *testing.T) {
	const share = DefaultTTL / 10
	for name, tt := range map[string]struct {
		puts    []string
		reads   []string
		meet    func(s *script.Server, own *session) // while it is tried
		lives   bool
		from    time.Duration // the lease counts from then
		took    time.Duration
		expects []string
	}{
		"stored":           {puts: []string{storedAt(8)}, lives: true, expects: []string{"7"}},
		"not answered":     {puts: []string{script.Silence, storedAt(8)}, lives: true, from: share, took: share, expects: []string{"7", "7"}},
		"refused for once": {puts: []string{unavailable, storedAt(8)}, lives: true, from: DefaultTTL / 50, took: DefaultTTL / 50, expects: []string{"7", "7"}},
		"stored, and the answer was lost": {
			puts: []string{script.Silence, wrongSequence, storedAt(9)}, reads: []string{alive(8)},
			lives: true, from: share + DefaultTTL/50, took: share + DefaultTTL/50, expects: []string{"7", "7", "8"},
		},
		"answered late": {
			puts: []string{script.Silence}, lives: true, took: 1500 * time.Millisecond, expects: []string{"7", "7"},
			meet: func(s *script.Server, _ *session) {
				sleepFor(1500 * time.Millisecond)
				first := s.Sent(putSession)[0].Reply
				s.Deliver(first, &nats.Msg{Subject: first, Data: []byte(storedAt(8))})
			},
		},
		"the key is gone":       {puts: []string{wrongSequence}, reads: []string{noMessage}, expects: []string{"7"}},
		"the key was deleted":   {puts: []string{wrongSequence}, reads: []string{deleted(8)}, expects: []string{"7"}},
		"the key is an old one": {puts: []string{wrongSequence}, reads: []string{alive(6)}, expects: []string{"7"}},
		"the key is the same":   {puts: []string{wrongSequence, storedAt(8)}, reads: []string{alive(7)}, lives: true, from: DefaultTTL / 50, took: DefaultTTL / 50, expects: []string{"7", "7"}},
		"it is not known which": {
			puts: []string{wrongSequence, wrongSequence, storedAt(9)}, reads: []string{unavailable, alive(8)},
			lives: true, from: 2 * DefaultTTL / 50, took: 2 * DefaultTTL / 50, expects: []string{"7", "7", "8"},
		},
		"nor heard": {
			puts: []string{wrongSequence, storedAt(8)}, reads: []string{script.Silence},
			lives: true, from: share + DefaultTTL/50, took: share + DefaultTTL/50, expects: []string{"7", "7"},
		},
		"never answered": {puts: []string{script.Silence}, took: DefaultTTL * 2 / 3, expects: times("7", 8)},
		"always refused": {puts: []string{unavailable}, took: DefaultTTL * 2 / 3, expects: times("7", 34)},
		"lost meanwhile": {puts: []string{script.Silence}, took: share, meet: func(_ *script.Server, own *session) {
			sleepFor(share / 2)
			own.lose()
		}, expects: []string{"7"}},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
				own := live(l)
				own.rev = 7
				s.Answer(putSession, tt.puts...)
				s.Answer("$JS.API.STREAM.MSG.GET.", tt.reads...)
				begun := time.Now()
				if tt.meet != nil {
					go tt.meet(s, own)
				}
				require.Equal(t, tt.lives, l.extend(own))
				require.Equal(t, tt.took, time.Since(begun))
				require.Equal(t, tt.expects, expected(s.Sent(putSession)))
				require.Equal(t, begun.Add(tt.from+DefaultTTL*2/3), own.deadline())
				require.Empty(t, h.drain())
			})
		})
	}
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
		_, err := stop()
		require.NoError(t, err)
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

// The caller is not kept by a call that does not return for longer than the lease: whatever it was, its locks are free then.
func TestRunReturnsWhenACallDoesNot(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		accepts(s)
		blocked := make(chan struct{})
		l.cfg.OnReady = func() { <-blocked }
		stop := running(t, l)
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
