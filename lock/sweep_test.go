package lock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
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
		"is gone":                 {lock: func(string) string { return noMessage }, now: script.Time},
		"a marker":                {lock: func(string) string { return released(5, before) }, now: script.Time.Add(16 * time.Minute)},
		"a marker that stays": {
			lock: func(string) string { return released(5, before) }, now: script.Time.Add(16*time.Minute + 1), frees: &release{subject: anchor, fence: 5},
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
		var keys []string
		for _, k := range []string{"jobs.mine1", "jobs.mine2"} {
			_, err := l.TryLock(t.Context(), k)
			require.NoError(t, err)
			keys = append(keys, "lock."+k)
		}
		for _, k := range []string{"a", "b", "c", "d", "e", "f", "g"} {
			keys = append(keys, "lock.jobs."+k)
			s.Answer(reads("lock.jobs."+k), lockedBy(5, "other", 1, nil))
		}
		for _, k := range []string{"d", "e", "f", "g"} {
			s.Answer(reads("lock.jobs."+k), lockedBy(5, "alive", 1, nil))
		}
		s.Answer(reads("session.other"), noMessage)
		s.Answer(reads("session.alive"), alive(3))
		s.Answer(lists("lock.jobs.>"), listing(keys...))
		pass := &sweep{l: l, own: own, now: script.Time, alive: map[string]bool{}, group: []string{own.id}, atOnce: 1}
		require.NoError(t, pass.run(t.Context(), "jobs.>"))
		require.Equal(t, []string{"jobs.a of other", "jobs.b of other", "jobs.c of other"}, r.drain())
		require.Len(t, freed(l), 3)
		require.Len(t, s.Sent(reads("session.other")), 1)
		require.Len(t, s.Sent(reads("session.alive")), 1)
		require.Empty(t, s.Sent(`$JS.API.STREAM.MSG.GET.KV_b {"last_by_subj":"$KV.b.lock.jobs.mine`), "what is held here needs no look")

		s.Answer(reads("lock.jobs.b"), unavailable)
		s.Answer(reads("lock.jobs.c"), unavailable)
		err := pass.run(t.Context(), "jobs.>")
		require.ErrorContains(t, err, "look at lock jobs.b: ")
		require.ErrorContains(t, err, "look at lock jobs.c: ")
		require.Equal(t, []string{"jobs.a of other"}, r.drain())
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
