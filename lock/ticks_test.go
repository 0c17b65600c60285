package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// sweeping looks after the locks of others until the test ends. passes returns how often the locks were listed since the
// last call.
func sweeping(t *testing.T, s *script.Server, l *Locker) (passes func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.sweepAlways(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	before := 0
	return func() int {
		now := len(s.Sent(lists("lock.jobs.>")))
		defer func() { before = now }()
		return now - before
	}
}

const tick = DefaultTTL / 5

// keeps extends a session until the test ends.
func keeps(l *Locker) *session {
	s := newSession(l.group)
	s.extend(time.Now(), 24*time.Hour)
	l.session.Store(s)
	return s
}

// All locks are looked at when there is a reason to, in three passes if a session may have died, and now and then.
func TestSweepsComeAfterADeath(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		var renewed []string
		for i := range uint64(100) {
			renewed = append(renewed, alive(i+1))
		}
		s.Answer("$JS.API.STREAM.MSG.GET.", renewed...)
		s.Answer(lists("lock.jobs.>"), listing())
		sessions := func(ids ...string) {
			for i := range ids {
				ids[i] = "session." + ids[i]
			}
			s.Answer(lists("session.*"), listing(ids...))
		}
		sessions("x", "y", "z")
		passes := sweeping(t, s, l)
		sleepFor(10 * tick)
		require.Empty(t, s.Sent(""), "without a session of its own it looks for no other's end")
		own := keeps(l)
		sleepFor(3 * tick)
		require.Equal(t, 1, passes(), "the first look")

		sessions("y", "z")
		sleepFor(tick)
		require.Equal(t, 1, passes(), "x has died")
		sleepFor(tick)
		require.Equal(t, 1, passes())
		sleepFor(tick)
		require.Equal(t, 1, passes())
		sleepFor(5 * tick)
		require.Zero(t, passes(), "three passes")

		sessions("z", "closed-y")
		sleepFor(5 * tick)
		require.Zero(t, passes(), "y was closed")
		sessions("z")
		sleepFor(3 * tick)
		require.Zero(t, passes(), "and what said so is gone")

		l.suspect("unheard of")
		sleepFor(tick)
		require.Equal(t, 1, passes(), "a lock is waited for whose session has no key")
		for range 2 {
			l.suspect("unheard of")
			sleepFor(tick)
		}
		sleepFor(3 * tick)
		require.Equal(t, 2, passes(), "the sweep under way finds it")

		require.Empty(t, h.drain())
		s.Answer(lists("session.*"), unavailable)
		sleepFor(3 * tick)
		errs := h.drain()
		require.Len(t, errs, 3)
		require.Contains(t, errs[0], "list lock sessions: ")
		require.Zero(t, passes(), "nobody is dead because the server does not answer")
		sessions("z")
		sleepFor(3 * tick)
		require.Zero(t, passes())
		own.lose()
	})
}

// Ghosts, and markers that stay, are looked for once a minute, in one pass.
func TestSweepsComeOnceAMinute(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		s.Answer(lists("session.*"), listing())
		s.Answer(lists("lock.jobs.>"), listing())
		keeps(l)
		passes := sweeping(t, s, l)
		sleepFor(time.Second)
		require.Equal(t, 1, passes())
		sleepFor(28 * tick)
		require.Zero(t, passes())
		sleepFor(tick)
		require.Equal(t, 1, passes())
		sleepFor(29 * tick)
		require.Zero(t, passes())
		sleepFor(tick)
		require.Equal(t, 1, passes())
		require.Empty(t, h.drain())
	})
}

// A server that comes back may be another one, or have been killed: it may know of locks that were released, and of keys of
// sessions that are dead.
func TestSweepsComeAfterAReconnect(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		s.Answer(lists("session.*"), listing("session.x"))
		s.Answer(lists("lock.jobs.>"), listing())
		s.Answer(reads("session.x"), alive(1), alive(2), alive(3), alive(4), alive(5), alive(6), alive(7), alive(8))
		keeps(l)
		passes := sweeping(t, s, l)
		sleepFor(55 * tick)
		require.Equal(t, 2, passes())
		require.Len(t, s.Sent(reads("session.x")), 4, "three in the beginning, then one in a minute")
		s.Cut()
		synctest.Wait()
		s.SetDown(false)
		sleepFor(tick)
		require.Equal(t, 1, passes())
		require.Len(t, s.Sent(reads("session.x")), 5, "it is doubted at once")
		sleepFor(2 * tick)
		require.Zero(t, passes())
		sleepFor(4 * tick)
		require.Equal(t, 1, passes(), "a minute")
		require.Len(t, s.Sent(reads("session.x")), 6)
		require.Empty(t, h.drain())
	})
}

// A session with a key that is not renewed is dead as well. That its key has gone then is no second death.
func TestSweepFollowsASilentDeath(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		r := &recovery{}
		l.cfg.Recover = r.recover
		s.Answer(lists("session.*"), listing("session.x", "session.y"))
		s.Answer(lists("lock.jobs.>"), listing("lock.jobs.a"))
		s.Answer(reads("lock.jobs.a"), lockedBy(5, "x", 1, nil), lockedBy(5, "x", 1, nil), noMessage)
		s.Answer(reads("session.x"), alive(3), alive(3), alive(3), noMessage)
		s.Answer(reads("session.y"), alive(4))
		s.Answer("$KV.b.session.", storedAt(9))
		keeps(l)
		passes := sweeping(t, s, l)
		sleepFor(DefaultTTL - tick)
		require.Equal(t, 1, passes())
		require.Empty(t, r.drain())
		sleepFor(tick)
		require.Equal(t, []string{"jobs.a of x"}, r.drain())
		require.Equal(t, []release{{subject: anchor, fence: 5, predecessor: &Predecessor{Holder: "x", Died: true}}}, freed(l))
		require.Equal(t, 1, passes())
		s.Answer(lists("session.*"), listing())
		sleepFor(5 * tick)
		require.Equal(t, 2, passes(), "three in all")
		require.Empty(t, h.drain())
	})
}

// What could not be recovered is tried again at each tick, and told of.
func TestSweepIsRepeatedUntilItSucceeds(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		r := &recovery{fails: errors.New("full")}
		l.cfg.Recover = r.recover
		l.cfg.Keys = []string{"none.>", "jobs.>"}
		s.Answer(lists("session.*"), listing())
		s.Answer(lists("lock.jobs.>"), listing("lock.jobs.a"))
		s.Answer(lists("lock.none.>"), listing())
		s.Answer(reads("lock.jobs.a"), lockedBy(5, "x", 1, nil))
		s.Answer(reads("session.x"), noMessage)
		keeps(l)
		passes := sweeping(t, s, l)
		sleepFor(6*tick + 1)
		require.Equal(t, 7, passes())
		require.Len(t, r.drain(), 7)
		require.Empty(t, freed(l))
		errs := h.drain()
		require.Len(t, errs, 7)
		require.Equal(t, "recover locks jobs.>: recover jobs.a: full", errs[0])
		require.Len(t, s.Sent(lists("lock.none.>")), 7)

		r.mu.Lock()
		r.fails = nil
		r.mu.Unlock()
		sleepFor(4 * tick)
		require.Equal(t, 1, passes())
		require.Len(t, freed(l), 1)
		require.Empty(t, h.drain())
	})
}

// A look that leaves locks of the dead to others goes on until they have gone, also while other locks cannot be looked at.
func TestSweepGoesOnWhileOthersAreResponsible(t *testing.T) {
	for name, tt := range map[string]struct {
		later  bool // there is nothing at the first look
		fails  bool
		passes int // afterwards
	}{"at the first look": {}, "at a later one": {later: true}, "with errors": {fails: true, passes: 3}} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
				r := &recovery{}
				l.cfg.Recover = r.recover
				var renewed []string
				for i := range uint64(100) {
					renewed = append(renewed, alive(i+1))
				}
				s.Answer("$JS.API.STREAM.MSG.GET.", renewed...)
				key, sessions := lastInLine(l, keeps(l))
				s.Answer(lists("session.*"), listing(sessions...))
				s.Answer(reads("lock."+key), lockedBy(5, "x", 1, nil))
				s.Answer(reads("session.x"), noMessage)
				locks := []string{"lock." + key}
				if tt.fails {
					locks = append(locks, "lock.jobs.unknown")
					s.Answer(reads("lock.jobs.unknown"), unavailable)
				}
				s.Answer(lists("lock.jobs.>"), listing(locks...))
				if tt.later {
					s.Answer(lists("lock.jobs.>"), listing(), listing(locks...))
				}
				passes := sweeping(t, s, l)
				sleepFor(1)
				if tt.later {
					sleepFor((fullSweep - 1) * tick)
					require.Equal(t, 1, passes()-1)
				}
				require.Empty(t, r.drain())
				sleepFor(tick)
				require.Empty(t, r.drain())
				sleepFor(tick)
				require.Equal(t, []string{key + " of x"}, r.drain(), "the last pass takes what is still there")
				require.Len(t, freed(l), 1)
				passes()
				sleepFor(3 * tick)
				require.Equal(t, tt.passes, passes())
			})
		})
	}
}

// lastInLine makes a key, and the keys of three sessions that come before a fourth one in the order of who is responsible.
func lastInLine(l *Locker, own *session) (key string, sessions []string) {
	for c := 'a'; ; c++ {
		key, sessions = "jobs."+string(c), nil
		for _, id := range []string{"a", "b", "c"} {
			if id += "-" + l.group; weight(key, id) > weight(key, own.id) {
				sessions = append(sessions, "session."+id)
			}
		}
		if len(sessions) == 3 {
			return key, sessions
		}
	}
}

// Many locks are recovered at once after a death; the routine is not to be noticed.
func TestRoutineIsSlowAndRecoveryIsFast(t *testing.T) {
	for name, tt := range map[string]struct {
		routine bool
		locks   int
		takes   time.Duration
	}{
		"after a death":               {false, 128, time.Second},
		"after the death of a larger": {false, 129, 2 * time.Second},
		"routine":                     {true, 128, 8 * time.Second},
		"routine with few":            {true, 17, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
				l.cfg.Recover = func(context.Context, string, string) error {
					time.Sleep(time.Second)
					return nil
				}
				var keys []string
				for i := range tt.locks {
					keys = append(keys, "lock.jobs."+strings.Repeat("a", i+1))
				}
				s.Answer(lists("lock.jobs.>"), listing(keys...))
				s.Answer("$JS.API.STREAM.MSG.GET.", lockedBy(5, "x", 1, nil))
				s.Answer(reads("session.x"), noMessage)
				w := &sweeper{l: l, routine: tt.routine}
				begun := time.Now()
				w.sweep(t.Context(), live(l), script.Time)
				require.Equal(t, tt.takes, time.Since(begun))
			})
		})
	}
}

// What is not known of a session is told of, and no reason to sweep.
func TestSessionThatCannotBeReadIsToldOf(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		s.Answer(lists("session.*"), listing("session.x"))
		s.Answer(lists("lock.jobs.>"), listing())
		s.Answer(reads("session.x"), unavailable)
		keeps(l)
		passes := sweeping(t, s, l)
		sleepFor(tick + 1)
		errs := h.drain()
		require.Len(t, errs, 2)
		require.Contains(t, errs[0], "look for dead lock sessions: look at lock session x: ")
		require.Equal(t, 1, passes())
	})
}

// A Locker that can recover nothing does not look.
func TestNobodyLooksWhoCanRecoverNothing(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		l.cfg.Keys = nil
		keeps(l)
		l.sweepAlways(t.Context())
		require.Empty(t, s.Sent(""))
	})
}

// Limits are told of when they appear. Those that remove locks end the session: a lock that is held here may be gone.
func TestLimitsOfTheBucketAreToldOf(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		l.cfg.OnError = func(doing string, err error) {
			require.ErrorIs(t, err, ErrLimited)
			h.onError(doing, err)
		}
		s.Answer(lists("lock.jobs.>"), listing())
		own := keeps(l)
		passes := sweeping(t, s, l)
		for _, step := range []struct {
			config string
			told   []string
			valid  bool
		}{
			{`{"max_msgs_per_subject":1,"discard":"new"}`, nil, true},
			{`{"max_msgs_per_subject":1,"discard":"new","max_msgs":5}`, []string{"look at the lock bucket: " + ErrLimited.Error() + ": stream KV_b has max_msgs 5 (discard new)"}, true},
			{`{"max_msgs_per_subject":1,"discard":"new"}`, nil, true},
			{`{"max_msgs_per_subject":1,"discard":"old","max_msgs":5}`, []string{"look at the lock bucket: " + ErrLimited.Error() + ": stream KV_b has max_msgs 5 (discard old)"}, false},
		} {
			s.Answer(lists("session.*"), listingOf(step.config))
			sleepFor(2 * tick)
			require.Equal(t, step.told, h.drain())
			require.Equal(t, step.valid, own.valid())
		}
		require.Equal(t, 1, passes())
	})
}

// The session may end between the look for it and the tick.
func TestTickWithoutASessionDoesNothing(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		w := &sweeper{l: l, observer: observer{l: l}}
		w.tick(t.Context())
		require.Empty(t, s.Sent(""))
	})
}
