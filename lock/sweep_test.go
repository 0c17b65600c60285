package lock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// recovery notes the calls of Config.Recover, as "key of holder".
type recovery struct {
	mu    sync.Mutex
	calls []string
	fails error
}

func (r *recovery) recover(_ context.Context, key, holder string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, key+" of "+holder)
	return r.fails
}

func (r *recovery) drain() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	slices.Sort(calls)
	return calls
}

const anchor = "$KV.b.lock.jobs.a"

// Only the lock of a dead session is passed on, and its work is done again before: the lock is the only record of it.
func TestVisitFreesOnlyWhatHasNoHolder(t *testing.T) {
	dead, before := &Predecessor{Holder: "other", Died: true}, &Predecessor{Holder: "one before"}
	for name, tt := range map[string]struct {
		lock     func(own string) string
		session  string // the answer for the key of the session "other"
		now      time.Time
		fails    error // what Recover returns
		notOurs  bool  // another Locker is responsible
		recovers bool
		frees    *release
		left     bool
		err      string
	}{
		"its session lives":       {lock: func(string) string { return lockedBy(5, "other", 1, nil) }, session: alive(3)},
		"its session is dead":     {lock: func(string) string { return lockedBy(5, "other", 1, before) }, session: noMessage, recovers: true, frees: &release{subject: anchor, fence: 5, predecessor: dead}},
		"its session was removed": {lock: func(string) string { return lockedBy(5, "other", 1, nil) }, session: deleted(3), recovers: true, frees: &release{subject: anchor, fence: 5, predecessor: dead}},
		"another is responsible":  {lock: func(string) string { return lockedBy(5, "other", 1, nil) }, session: noMessage, notOurs: true, left: true},
		"a live one of another's": {lock: func(string) string { return lockedBy(5, "other", 1, nil) }, session: alive(3), notOurs: true},
		"cannot be recovered":     {lock: func(string) string { return lockedBy(5, "other", 1, nil) }, session: noMessage, fails: errors.New("full"), recovers: true, err: "recover jobs.a: full"},
		"session is not known":    {lock: func(string) string { return lockedBy(5, "other", 1, nil) }, session: unavailable, err: "look at lock session other: "},
		"cannot be looked at":     {lock: func(string) string { return unavailable }, err: "look at lock jobs.a: "},
		"is gone":                 {lock: func(string) string { return noMessage }},
		"a marker":                {lock: func(string) string { return released(5, before) }, now: theTime.Add(16 * time.Minute)},
		"a marker that stays": {
			lock: func(string) string { return released(5, before) }, now: theTime.Add(16*time.Minute + 1), frees: &release{subject: anchor, fence: 5},
		},
		"a ghost of our own":   {lock: func(own string) string { return lockedBy(5, own, 2, before) }, frees: &release{subject: anchor, fence: 5, predecessor: before}},
		"a lock of our own":    {lock: func(own string) string { return lockedBy(5, own, 1, nil) }},
		"a ghost, not of ours": {lock: func(own string) string { return lockedBy(5, own, 2, nil) }, notOurs: true, frees: &release{subject: anchor, fence: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
				r := &recovery{fails: tt.fails}
				l.cfg.Recover = r.recover
				own := live(l)
				_, _ = own.begin()
				s.Answer(reads("lock.jobs.a"), tt.lock(own.id))
				s.Answer(reads("session.other"), tt.session)
				pass := &sweep{l: l, own: own, now: tt.now, alive: map[string]bool{}, group: []string{own.id}}
				if tt.notOurs {
					pass.group = quicker("jobs.a", own.id)
				}
				err := pass.visit(t.Context(), "jobs.a")
				if tt.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.err)
				}
				require.Equal(t, tt.recovers, slices.Equal(r.drain(), []string{"jobs.a of other"}))
				if tt.frees == nil {
					require.Empty(t, freed(l))
				} else {
					require.Equal(t, []release{*tt.frees}, freed(l))
				}
				require.Equal(t, tt.left, pass.left)
			})
		})
	}
}

// quicker is a group in which another one is responsible for a key.
func quicker(key, own string) []string {
	for c := 'a'; ; c++ {
		if weight(key, string(c)) > weight(key, own) {
			return []string{own, string(c)}
		}
	}
}

// A thousand locks of one dead holder are not a thousand reads of its session, and one that fails keeps none of the others.
func TestSweepVisitsAllLocksUnderAFilter(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		r := &recovery{}
		l.cfg.Recover = r.recover
		own := live(l)
		s.Answer("$KV.b.lock.jobs.mine", storedAt(4))
		_, err := l.TryLock(t.Context(), "jobs.mine")
		require.NoError(t, err)
		keys := []string{"lock.jobs.mine"}
		for _, k := range []string{"a", "b", "c", "d"} {
			keys = append(keys, "lock.jobs."+k)
			s.Answer(reads("lock.jobs."+k), lockedBy(5, "other", 1, nil))
		}
		s.Answer(reads("lock.jobs.d"), lockedBy(5, "alive", 1, nil))
		s.Answer(reads("session.other"), noMessage)
		s.Answer(reads("session.alive"), alive(3))
		s.Answer(lists("lock.jobs.>"), listing(keys...))
		pass := &sweep{l: l, own: own, now: theTime, alive: map[string]bool{}, group: []string{own.id}, atOnce: 1}
		require.NoError(t, pass.run(t.Context(), "jobs.>"))
		require.Equal(t, []string{"jobs.a of other", "jobs.b of other", "jobs.c of other"}, r.drain())
		require.Len(t, freed(l), 3)
		require.Len(t, s.Sent(reads("session.other")), 1)
		require.Len(t, s.Sent(reads("session.alive")), 1)
		require.Empty(t, s.Sent(reads("lock.jobs.mine")), "what is held here needs no look")

		s.Answer(reads("lock.jobs.b"), unavailable)
		s.Answer(reads("lock.jobs.c"), unavailable)
		err = pass.run(t.Context(), "jobs.>")
		require.ErrorContains(t, err, "look at lock jobs.b: ")
		require.ErrorContains(t, err, "look at lock jobs.c: ")
		require.Equal(t, []string{"jobs.a of other"}, r.drain())
		s.Answer(reads("lock.jobs."), noMessage)
		s.Answer(reads("lock.jobs.b"), noMessage)
		s.Answer(reads("lock.jobs.c"), noMessage)
		require.NoError(t, pass.run(t.Context(), "jobs.>"), "an error is of one filter")

		s.Answer(lists("lock.jobs.>"), unavailable)
		require.ErrorContains(t, pass.run(t.Context(), "jobs.>"), "list locks jobs.>: ")
	})
}

// What others are responsible for is not read, but in the pass that looks for ghosts, and in the last.
func TestSweepReadsItsShare(t *testing.T) {
	for name, tt := range map[string]struct {
		pass  int
		all   bool
		reads int
	}{"first": {0, false, 0}, "second": {1, false, 1}, "last": {lastPass, false, 1}, "all": {0, true, 1}} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
				own := live(l)
				s.Answer(lists("lock.jobs.>"), listing("lock.jobs.a"))
				s.Answer(reads("lock.jobs.a"), noMessage)
				pass := &sweep{l: l, own: own, pass: tt.pass, all: tt.all, alive: map[string]bool{}, atOnce: 1, group: quicker("jobs.a", own.id)}
				require.NoError(t, pass.run(t.Context(), "jobs.>"))
				require.Len(t, s.Sent(reads("lock.jobs.a")), tt.reads)
			})
		})
	}
}

// A stop ends a sweep between two locks.
func TestSweepEndsWithItsContext(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		l.cfg.Recover = func(context.Context, string, string) error {
			calls++
			cancel()
			return nil
		}
		s.Answer(lists("lock.jobs.>"), listing("lock.jobs.a", "lock.jobs.b", "lock.jobs.c"))
		s.Answer("$JS.API.STREAM.MSG.GET.", lockedBy(5, "other", 1, nil))
		s.Answer(reads("session.other"), noMessage)
		own := live(l)
		pass := &sweep{l: l, own: own, alive: map[string]bool{}, group: []string{own.id}, atOnce: 1}
		require.ErrorIs(t, pass.run(ctx, "jobs.>"), context.Canceled)
		require.Equal(t, 1, calls)
		require.Len(t, s.Sent("$JS.API.STREAM.MSG.GET."), 2)
	})
}

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
		s.Answer(reads("session."), renewed...)
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
		sleepFor(5 * tick)
		require.Equal(t, 3, passes(), "a lock is waited for whose session has no key")

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
		s.Answer(reads("session.x"), alive(1), alive(2), alive(3), alive(4), alive(5), alive(6), alive(7))
		keeps(l)
		passes := sweeping(t, s, l)
		sleepFor(21 * tick)
		require.Equal(t, 1, passes())
		require.Len(t, s.Sent(reads("session.x")), 3)
		s.Cut()
		synctest.Wait()
		s.SetDown(false)
		sleepFor(tick)
		require.Equal(t, 1, passes())
		require.Len(t, s.Sent(reads("session.x")), 4, "it is doubted at once")
		sleepFor(6 * tick)
		require.Zero(t, passes())
		require.Len(t, s.Sent(reads("session.x")), 5)
		require.Empty(t, h.drain())
	})
}

// A session with a key that is not renewed is dead as well; that one can be seen twice is no second death.
func TestSweepFollowsASilentDeath(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
		r := &recovery{}
		l.cfg.Recover = r.recover
		s.Answer(lists("session.*"), listing("session.x"))
		s.Answer(lists("lock.jobs.>"), listing("lock.jobs.a"))
		s.Answer(reads("lock.jobs.a"), lockedBy(5, "x", 1, nil), lockedBy(5, "x", 1, nil), noMessage)
		s.Answer(reads("session.x"), alive(3), alive(3), alive(3), noMessage)
		s.Answer("$KV.b.session.x", storedAt(9))
		keeps(l)
		passes := sweeping(t, s, l)
		sleepFor(DefaultTTL - tick)
		require.Equal(t, 1, passes())
		require.Empty(t, r.drain())
		sleepFor(tick)
		require.Equal(t, []string{"jobs.a of x"}, r.drain())
		require.Equal(t, []release{{subject: anchor, fence: 5, predecessor: &Predecessor{Holder: "x", Died: true}}}, freed(l))
		require.Equal(t, 1, passes())
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

// A first look that leaves locks of the dead to others goes on until they have gone.
func TestSweepGoesOnWhileOthersAreResponsible(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		r := &recovery{}
		l.cfg.Recover = r.recover
		own := keeps(l)
		var ids, keys []string
		for _, id := range []string{"a", "b", "c"} {
			ids = append(ids, id+"-"+l.group)
			keys = append(keys, "session."+id+"-"+l.group)
			s.Answer(reads("session."+id+"-"+l.group), alive(1), alive(2), alive(3))
		}
		key := ""
		for c := 'a'; key == ""; c++ { // one for which two others come before
			if more := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return weight("jobs."+string(c), id) < weight("jobs."+string(c), own.id) }); len(more) == 3 {
				key = "jobs." + string(c)
			}
		}
		s.Answer(lists("session.*"), listing(keys...))
		s.Answer(lists("lock.jobs.>"), listing("lock."+key))
		s.Answer(reads("lock."+key), lockedBy(5, "x", 1, nil))
		s.Answer(reads("session.x"), noMessage)
		passes := sweeping(t, s, l)
		sleepFor(1)
		require.Empty(t, r.drain())
		sleepFor(tick)
		require.Empty(t, r.drain())
		sleepFor(tick)
		require.Equal(t, []string{key + " of x"}, r.drain(), "the last pass takes what is still there")
		require.Equal(t, 3, passes())
		sleepFor(3 * tick)
		require.Zero(t, passes())
	})
}

// Many locks are recovered at once after a death; the routine is not to be noticed.
func TestRoutineIsSlowAndRecoveryIsFast(t *testing.T) {
	for name, tt := range map[string]struct {
		routine bool
		takes   time.Duration
	}{"after a death": {false, time.Second}, "routine": {true, 8 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
				l.cfg.Recover = func(context.Context, string, string) error {
					time.Sleep(time.Second)
					return nil
				}
				var keys []string
				for i := range 128 {
					keys = append(keys, "lock.jobs."+strings.Repeat("a", i+1))
				}
				s.Answer(lists("lock.jobs.>"), listing(keys...))
				s.Answer("$JS.API.STREAM.MSG.GET.", lockedBy(5, "x", 1, nil))
				s.Answer(reads("session.x"), noMessage)
				w := &sweeper{l: l, routine: tt.routine}
				begun := time.Now()
				w.sweep(t.Context(), live(l), theTime)
				require.Equal(t, tt.takes, time.Since(begun))
			})
		})
	}
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
