package lock

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/script"
)

// alive is the answer to a read of a session's key.
func alive(revision uint64) string { return found(revision, nil, `{"holder":"other"}`) }

// deleted is the answer to a read of a key with a delete marker whose time to live the server has lost.
func deleted(revision uint64) string {
	return found(revision, nats.Header{"KV-Operation": {"DEL"}}, "")
}

func watching(l *Locker) *observer {
	o := &observer{l: l, everyone: time.Minute}
	o.restart(time.Now())
	return o
}

// A session is dead if its key was not renewed for a whole lease as seen here. Its key is removed by that revision, so that
// its holder learns of it if it lives after all; who is not sure has not seen a death.
func TestSessionThatIsNotRenewedForALeaseIsDead(t *testing.T) {
	removed := storedAt(9)
	for name, tt := range map[string]struct {
		id     string
		reads  []string // at the beginning, and a lease later
		after  time.Duration
		remove string // the answer to the removal of the key, if it is asked for
		dead   bool
		err    string
	}{
		"not renewed":              {reads: []string{alive(5)}, remove: removed, dead: true},
		"renewed":                  {reads: []string{alive(5), alive(6)}},
		"renewed at the removal":   {reads: []string{alive(5)}, remove: wrongSequence},
		"cannot be removed":        {reads: []string{alive(5)}, remove: unavailable, err: "remove dead lock session x: temporarily unavailable"},
		"removal is not heard":     {reads: []string{alive(5)}, remove: script.NoResponders, err: "remove dead lock session x: "},
		"cannot be read":           {reads: []string{alive(5), unavailable}, err: "look at lock session x: "},
		"gone":                     {reads: []string{alive(5), noMessage}},
		"a marker that stays":      {reads: []string{deleted(5)}, remove: removed},
		"closed":                   {id: "closed-x", reads: []string{alive(5)}, remove: removed},
		"looked at too soon after": {reads: []string{alive(5)}, after: DefaultTTL - 1},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
				id := "x"
				if tt.id != "" {
					id = tt.id
				}
				after := DefaultTTL
				if tt.after != 0 {
					after = tt.after
				}
				o := watching(l)
				s.Answer(reads("session."+id), tt.reads...)
				s.Answer("$KV.b.session."+id, tt.remove)
				listed := map[string]bool{id: true, "own": true}
				dead, err := o.look(t.Context(), listed, "own")
				require.NoError(t, err)
				require.Empty(t, dead)
				sleepFor(after)
				dead, err = o.look(t.Context(), listed, "own")
				if tt.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.err)
				}
				if tt.dead {
					require.Equal(t, []string{id}, dead)
				} else {
					require.Empty(t, dead)
				}
				removals := s.Sent("$KV.b.session." + id)
				require.Equal(t, tt.remove != "", len(removals) == 1)
				for _, m := range removals {
					require.Equal(t, marker(nats.NewMsg(""), 5, nil).Header, m.Header)
				}
				require.Empty(t, s.Sent(reads("session.own")))
			})
		})
	}
}

// The time counts from the answer that had the revision first, and is over at a read that is sent after it: what is in
// between may be the link.
func TestSlowAnswersMakeNoSessionDead(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		o := watching(l)
		listed := map[string]bool{"x": true}
		s.Answer(reads("session.x"), alive(5))
		begun := time.Now()
		got, dead, err := o.read(t.Context(), "x", sighting{}, begun.Add(-time.Second))
		require.NoError(t, err)
		require.False(t, dead)
		require.Equal(t, sighting{revision: 5, since: begun, asked: begun.Add(-time.Second)}, got, "the answer took a second")
		o.seen["x"] = got
		sleepFor(DefaultTTL - time.Second)
		found, err := o.look(t.Context(), listed, "own")
		require.NoError(t, err)
		require.Empty(t, found)
		require.Len(t, s.Sent(reads("session.x")), 2)
		require.Empty(t, s.Sent("$KV.b.session.x"))
	})
}

// An error says nothing of the session: it is looked at again at once, and the lease counts from then.
func TestSessionThatCouldNotBeReadIsLookedAtAnew(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		o := watching(l)
		listed := map[string]bool{"x": true, "y": true}
		s.Answer(reads("session.x"), alive(5), unavailable, alive(5))
		s.Answer(reads("session.y"), alive(4), unavailable, alive(4))
		s.Answer("$KV.b.session.", storedAt(9))
		for _, step := range []struct {
			after time.Duration
			fails bool
			dead  int
			reads int
		}{
			{0, false, 0, 2},
			{DefaultTTL, true, 0, 4},
			{time.Second, false, 0, 6},
			{DefaultTTL - 1, false, 0, 6},
			{1, false, 2, 8},
		} {
			sleepFor(step.after)
			dead, err := o.look(t.Context(), listed, "own")
			if step.fails {
				require.ErrorContains(t, err, "look at lock session x: ")
				require.ErrorContains(t, err, "look at lock session y: ")
			} else {
				require.NoError(t, err)
			}
			require.Len(t, dead, step.dead)
			require.Len(t, s.Sent("$JS.API.STREAM.MSG.GET."), step.reads)
		}
	})
}

// Each session costs a read in a minute, and one in a lease when there is a reason to doubt it.
func TestSessionsAreReadSeldom(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		var renewed []string
		for i := range uint64(50) {
			renewed = append(renewed, alive(i+1))
		}
		s.Answer(reads("session.x"), renewed...)
		o := watching(l)
		listed := map[string]bool{"x": true}
		var at []string
		begun := time.Now()
		for time.Since(begun) < 5*time.Minute {
			before := len(s.Sent(reads("session.x")))
			dead, err := o.look(t.Context(), listed, "own")
			require.NoError(t, err)
			require.Empty(t, dead)
			if len(s.Sent(reads("session.x"))) > before {
				at = append(at, fmt.Sprint(time.Since(begun)))
			}
			if now := time.Since(begun); now == 100*time.Second || now == 160*time.Second {
				l.suspect("x") // before the next look
			}
			if time.Since(begun) == 240*time.Second {
				o.restart(time.Now())
			}
			sleepFor(2 * time.Second)
		}
		require.Equal(t, []string{"0s", "10s", "20s", "1m20s", "1m42s", "2m42s", "3m42s", "4m2s", "4m12s", "4m22s"}, at)
	})
}

// A lock whose session has no key was stored after the end of that session: only who waits for it can tell.
func TestLockThatIsWaitedForMayBeOfASessionWithoutAKey(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		s.Answer(reads("session.x"), alive(5))
		o := watching(l)
		look := func() {
			_, err := o.look(t.Context(), map[string]bool{"x": true}, "own")
			require.NoError(t, err)
		}
		look()
		require.False(t, o.unlisted)
		l.suspect("x")
		look()
		require.False(t, o.unlisted)
		l.suspect("x")
		l.suspect("y")
		l.suspect("z")
		look()
		require.True(t, o.unlisted)
		l.suspect("x")
		look()
		require.True(t, o.unlisted, "until somebody has swept for it")
	})
}

// A server that is silent holds a look up for no longer than one answer may take, for each sixteen sessions.
func TestSessionsAreReadSixteenAtOnce(t *testing.T) {
	for sessions, want := range map[int]time.Duration{16: jsapi.Timeout, 17: 2 * jsapi.Timeout} {
		scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
			s.Answer("$JS.API.STREAM.MSG.GET.", script.Silence)
			listed := map[string]bool{}
			for i := range sessions {
				listed[strconv.Itoa(i)] = true
			}
			begun := time.Now()
			_, err := watching(l).look(t.Context(), listed, "own")
			require.Error(t, err)
			require.Equal(t, want, time.Since(begun))
		})
	}
}

// What is not listed any more is forgotten: were it to come back, it would be a new one.
func TestSessionThatIsGoneIsForgotten(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		s.Answer("$JS.API.STREAM.MSG.GET.", alive(5))
		o := watching(l)
		for _, listed := range []map[string]bool{{"x": true, "y": true, "z": true}, {}, {"x": true}} {
			dead, err := o.look(t.Context(), listed, "own")
			require.NoError(t, err)
			require.Empty(t, dead)
			require.Len(t, o.seen, len(listed))
			sleepFor(DefaultTTL)
		}
		require.Len(t, s.Sent(reads("session.x")), 2)
		require.Empty(t, s.Sent("$KV.b.session."))
	})
}

func TestSessionLivesWhileItsKeyIsThere(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		s.Answer(reads("session.x"), alive(5), deleted(6), noMessage, unavailable)
		for _, want := range []uint64{5, 0, 0} {
			revision, err := l.lives(t.Context(), "x")
			require.NoError(t, err)
			require.Equal(t, want, revision)
		}
		_, err := l.lives(t.Context(), "x")
		require.ErrorContains(t, err, "look at lock session x: ")
	})
}

// The list of sessions tells the server's clock, too.
func TestSessionsAreListedWithTheServersClock(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		s.Answer(lists("session.*"), listing("session.a", "session.closed-b"), noStream)
		all, list, err := l.sessions(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]bool{"a": true, "closed-b": true}, all)
		require.Equal(t, script.Time, list.Time)
		require.Equal(t, time.Until(script.Time), l.ClockOffset())
		_, _, err = l.sessions(t.Context())
		require.ErrorContains(t, err, "stream not found")
	})
}
