package lock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// held is a lock in s that was granted.
func held(t *testing.T, s *session, key string) *Lock {
	t.Helper()
	nonce, ok := s.begin()
	require.True(t, ok)
	k := &Lock{s: s, key: key, nonce: nonce}
	k.ctx, k.cancel = context.WithCancelCause(t.Context())
	require.True(t, s.add(k))
	return k
}

// A third of the lease is left when the holder's context ends: what it has sent by then may take that long.
func TestLocksAreCancelledAtTwoThirdsOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 9 * time.Second
		s := newSession("")
		sent := time.Now()
		time.Sleep(time.Second) // until the answer
		require.True(t, s.extend(sent, ttl))
		require.Equal(t, sent.Add(6*time.Second), s.deadline())
		k, more := held(t, s, "a"), held(t, s, "b")
		ended := make(chan time.Duration, 1)
		go func() {
			s.watch(ttl)
			ended <- time.Since(sent)
		}()

		time.Sleep(4*time.Second - 1)
		synctest.Wait()
		require.NoError(t, k.ctx.Err())
		require.False(t, k.Lost())
		left, ok := s.left()
		require.Equal(t, time.Second+1, left)
		require.True(t, ok)
		renewed := time.Now()
		require.True(t, s.extend(renewed, ttl))
		require.True(t, s.extend(sent, ttl), "a late answer to an earlier renewal")

		<-k.ctx.Done()
		require.Equal(t, sent.Add(6*time.Second), time.Now(), "what was answered last counts")
		require.Equal(t, ErrLost, context.Cause(k.ctx))
		<-s.held.Done()
		require.Equal(t, ErrLost, context.Cause(more.ctx))
		require.Equal(t, ErrLost, context.Cause(s.held))
		require.Equal(t, 6*time.Second, <-ended)
		require.True(t, k.Lost())
		require.False(t, s.add(k), "no lock is granted any more")
		_, ok = s.begin()
		require.False(t, ok, "nor tried")
		require.False(t, s.forget(k), "nor released")
	})
}

// A lock whose answer comes when the session is over is nobody's: it is freed, and what the next holder must know of the one
// before it stays known.
func TestLockOfALostSessionIsNotGranted(t *testing.T) {
	l := &Locker{kv: "$KV.b.", releases: newReleases(nil)}
	s := newSession("")
	require.True(t, s.extend(time.Now(), time.Hour))
	nonce, ok := s.begin()
	require.True(t, ok)
	before := &Predecessor{Holder: "other", Died: true}
	k, err := l.grant(t.Context(), s, "jobs.x", 7, nonce, before)
	require.NoError(t, err)
	require.NoError(t, k.Context().Err())
	require.Equal(t, before, k.Predecessor())
	require.Empty(t, l.releases.pending)

	s.lose()
	require.Equal(t, ErrLost, context.Cause(k.Context()))
	k, err = l.grant(t.Context(), s, "jobs.y", 8, nonce, before)
	require.Nil(t, k)
	require.ErrorIs(t, err, ErrLost)
	require.Len(t, l.releases.pending, 1)
	freed := l.releases.pending[1]
	require.Equal(t, release{subject: "$KV.b.lock.jobs.y", fence: 8, predecessor: before, unsent: true}, release{freed.subject, freed.fence, freed.s, freed.predecessor, time.Time{}, freed.unsent})
}

// A lock is released once, by its revision, and not at all when it is lost: what its holder left behind is found by others.
func TestUnlockReleasesOnceAndOnlyWhatIsHeld(t *testing.T) {
	l := &Locker{kv: "$KV.b.", cfg: Config{Holder: "me"}, releases: newReleases(nil)}
	s := newSession("")
	require.True(t, s.extend(time.Now(), time.Hour))
	grant := func(key string) *Lock {
		nonce, _ := s.begin()
		k, err := l.grant(t.Context(), s, key, 7, nonce, nil)
		require.NoError(t, err)
		return k
	}
	k := grant("a")
	k.Unlock()
	k.Abandon()
	require.Equal(t, ErrReleased, context.Cause(k.Context()))
	require.Len(t, l.releases.pending, 1)
	require.Equal(t, "$KV.b.lock.a", l.releases.pending[1].subject)
	require.Nil(t, l.releases.pending[1].predecessor)
	require.False(t, s.knows(k.nonce))
	grant("b").Abandon()
	require.Equal(t, &Predecessor{Holder: "me"}, l.releases.pending[2].predecessor)
	require.Equal(t, s, l.releases.pending[2].s)
	lost := grant("c")
	s.lose()
	lost.Unlock()
	require.Len(t, l.releases.pending, 2)
	require.Equal(t, ErrLost, context.Cause(lost.Context()))
}

// A lock that is on the server with this session's name is freed if nothing here can come of it, and only then.
func TestSessionKnowsItsLocks(t *testing.T) {
	s := newSession("")
	require.True(t, s.extend(time.Now(), time.Hour))
	require.True(t, s.quiet())
	try, _ := s.begin()
	require.True(t, s.knows(try), "its answer may come")
	require.False(t, s.quiet())
	s.end(try)
	require.False(t, s.knows(try))
	require.True(t, s.quiet())

	k := held(t, s, "a")
	require.NotEqual(t, try, k.nonce)
	require.True(t, s.knows(k.nonce))
	require.Equal(t, map[string]struct{}{"a": {}}, s.keys())
	other := held(t, s, "b")
	require.Len(t, s.keys(), 2)
	require.True(t, s.forget(k))
	require.False(t, s.knows(k.nonce))
	require.Equal(t, map[string]struct{}{"b": {}}, s.keys())
	require.True(t, s.forget(other))

	lost, _ := s.begin()
	s.doubt("c", lost)
	s.end(lost)
	require.True(t, s.knows(lost), "it may stand on the server")
	require.False(t, s.quiet())
	require.Equal(t, map[uint64]doubt{lost: {key: "c"}}, s.openDoubts())
	s.settle(lost, false)
	require.Equal(t, map[uint64]doubt{lost: {key: "c", looked: 1}}, s.openDoubts())
	s.settle(lost, true)
	require.False(t, s.knows(lost))
	require.True(t, s.quiet())

	s.lose()
	require.True(t, s.knows(12345), "a holder that learned of the loss has left its lock behind, and its work")
}

// Sessions of one group share the work after a death. The group is in the name, so that to know it costs nothing.
func TestSessionNamesItsGroup(t *testing.T) {
	l := &Locker{group: group([]string{"b.>", "a.>"})}
	require.Equal(t, l.group, group([]string{"a.>", "b.>"}), "in any order")
	require.NotEqual(t, l.group, group([]string{"a.>"}))
	require.NotEqual(t, group([]string{"ab", "c"}), group([]string{"a", "bc"}))
	require.Empty(t, group(nil))
	a, b, other, none := newSession(l.group).id, newSession(l.group).id, newSession(group([]string{"c.>"})).id, newSession("").id
	live := map[string]bool{a: true, b: true, other: true, none: true, closedPrefix + b: true}
	got := l.members(live, a)
	slices.Sort(got)
	want := []string{a, b}
	slices.Sort(want)
	require.Equal(t, want, got)
	require.Equal(t, []string{"own"}, l.members(nil, "own"), "a replicated stream may list it late")
}

func TestDeathIsASessionThatIsGoneAndWasNotClosed(t *testing.T) {
	known := map[string]bool{"a": true, "b": true, closedPrefix + "z": true}
	for name, tt := range map[string]struct {
		live []string
		died bool
	}{
		"all there":               {live: []string{"a", "b", "c"}},
		"one is gone":             {live: []string{"a"}, died: true},
		"it was closed":           {live: []string{"a", closedPrefix + "b"}},
		"one closed and one died": {live: []string{closedPrefix + "b"}, died: true},
	} {
		t.Run(name, func(t *testing.T) {
			live := map[string]bool{}
			for _, id := range tt.live {
				live[id] = true
			}
			require.Equal(t, tt.died, (&sweeper{known: known}).died(live))
		})
	}
}

// Settings that remove locks that are held let two run at once; those that refuse new ones stop the work.
func TestLimitsOfABucketAreNamed(t *testing.T) {
	good := jetstream.StreamConfig{MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: -1, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowMsgTTL: true}
	found, remove := limits(good)
	require.Empty(t, found)
	require.False(t, remove)
	for name, tt := range map[string]struct {
		change func(*jetstream.StreamConfig)
		found  string
		remove bool
	}{
		"refuses at a number": {func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 }, "max_msgs 1", false},
		"refuses at a size":   {func(c *jetstream.StreamConfig) { c.MaxBytes = 5 }, "max_bytes 5", false},
		"removes the oldest of a number": {
			func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardOld }, "max_msgs 1", true,
		},
		"removes the oldest of a size": {
			func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1, jetstream.DiscardOld }, "max_bytes 1", true,
		},
		"would remove the oldest, without a limit": {func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }, "", false},
		"removes by age": {func(c *jetstream.StreamConfig) { c.MaxAge = time.Minute }, "max_age 1m0s", true},
		"keeps history":  {func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 }, "max_msgs_per_subject 2", false},
		"several": {
			func(c *jetstream.StreamConfig) { c.MaxMsgs, c.MaxMsgsPerSubject = 5, -1 }, "max_msgs 5, max_msgs_per_subject -1", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			have := good
			tt.change(&have)
			found, remove := limits(have)
			require.Equal(t, tt.found, found)
			require.Equal(t, tt.remove, remove)
			mended := unlimited(have, 0)
			found, remove = limits(mended)
			require.Empty(t, found)
			require.False(t, remove)
			require.Equal(t, jetstream.DiscardNew, mended.Discard)
		})
	}
	without := good
	without.AllowMsgTTL, without.AllowRollup, without.Replicas = false, true, 3
	mended := unlimited(without, 0)
	require.True(t, mended.AllowMsgTTL)
	require.False(t, mended.AllowRollup)
	require.Equal(t, 3, mended.Replicas, "as it is")
	require.Equal(t, 1, unlimited(without, 1).Replicas)
}

// The value of a lock is written by hand. Whoever reads it must get what was meant, whatever the holder is called.
func TestValueOfALockIsRead(t *testing.T) {
	holder := "a \"b\"\n\\ü"
	self, err := json.Marshal(holder)
	require.NoError(t, err)
	for _, before := range []*Predecessor{nil, {Holder: holder, Died: true}} {
		var e entry
		require.NoError(t, json.Unmarshal(value("s1", self, 1<<63, before), &e))
		require.WithinDuration(t, time.Now(), e.Since, time.Hour)
		e.Since = time.Time{}
		require.Equal(t, entry{Session: "s1", Holder: holder, Nonce: 1 << 63, Predecessor: before}, e)
	}
}

func TestManyErrorsAreToldInShort(t *testing.T) {
	require.NoError(t, brief(nil))
	var errs []error
	for i := range 5 {
		errs = append(errs, fmt.Errorf("e%d", i))
	}
	require.EqualError(t, brief(errs), "e0\ne1\ne2\ne3\ne4")
	errs = append(errs, errors.New("e5"))
	require.EqualError(t, brief(errs), "e0\ne1\ne2\ne3\ne4\nand 1 more")
	require.EqualError(t, brief(append(errs, errors.New("e6"))), "e0\ne1\ne2\ne3\ne4\nand 2 more")
	require.EqualError(t, errs[5], "e5", "they are the caller's")
}

func TestEachIsCalledForAFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, calls atomic.Int64
		began := time.Now()
		each(slices.Values(make([]int, 7)), 3, func(int) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			calls.Add(1)
		})
		require.EqualValues(t, 7, calls.Load())
		require.EqualValues(t, 3, most.Load())
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}

// Only what a Locker can recover is worth a closer look at who holds it.
func TestSuspectsAreThoseOfAGroup(t *testing.T) {
	l := &Locker{suspects: suspects{ids: map[string]struct{}{}}}
	l.suspect("a")
	require.Empty(t, l.suspects.take())
	l.cfg.Keys = []string{"jobs.>"}
	l.suspect("a")
	l.suspect("b")
	l.suspect("a")
	require.Equal(t, map[string]struct{}{"a": {}, "b": {}}, l.suspects.take())
	require.Empty(t, l.suspects.take(), "each is looked at once")
}

func TestReadyIsASessionThatIsValid(t *testing.T) {
	l := new(Locker)
	require.False(t, l.Ready())
	s := newSession("")
	require.True(t, s.extend(time.Now(), time.Hour))
	l.session.Store(s)
	require.True(t, l.Ready())
	s.lose()
	require.False(t, l.Ready())
}
