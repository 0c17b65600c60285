package lock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A lock that has said once that it is lost is not held again: its holder has left it behind.
func TestLostIsForGood(t *testing.T) {
	s := newSession("")
	k := &Lock{s: s}
	now := time.Now()
	require.True(t, s.extend(now.Add(-DefaultTTL), DefaultTTL))
	require.True(t, k.Lost())
	require.False(t, s.extend(now, DefaultTTL), "the answer to a renewal is handled late")
	require.True(t, k.Lost())
}

func TestClockOffsetIsTheServersClockMinusOurs(t *testing.T) {
	sent := time.Now()
	for _, c := range []struct {
		name         string
		server, took time.Duration
		offset       time.Duration
	}{
		{name: "ahead", server: time.Minute, took: 100 * time.Millisecond, offset: time.Minute},
		{name: "behind", server: -time.Minute, took: 100 * time.Millisecond, offset: -time.Minute},
		{name: "half a round trip", server: 50 * time.Millisecond, took: 100 * time.Millisecond},
		{name: "within half a round trip", server: 40 * time.Millisecond, took: 100 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := new(Locker)
			l.measure(sent.Add(c.took/2).Add(c.server).UTC().Round(0), sent, sent.Add(c.took))
			require.Equal(t, c.offset, l.ClockOffset())
			l.measure(time.Time{}, sent, sent)
			require.Equal(t, c.offset, l.ClockOffset(), "an answer without a time says nothing")
		})
	}
}

// A machine that was suspended has a monotonic clock that stood still: only the wall clock tells. One whose clock was set back
// has a wall clock that is wrong: only the monotonic one tells.
func TestSessionIsOverWhenEitherClockSaysSo(t *testing.T) {
	for name, tt := range map[string]struct {
		monotonic, wall time.Duration
		valid           bool
	}{
		"neither":                {time.Hour, time.Hour, true},
		"suspended":              {time.Hour, -time.Second, false},
		"the clock was set back": {-time.Second, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession("")
			require.True(t, s.extend(time.Now(), time.Hour))
			s.until, s.wall = time.Now().Add(tt.monotonic), time.Now().Round(0).Add(tt.wall)
			require.Equal(t, tt.valid, s.valid())
			s.until, s.wall = time.Now().Add(time.Hour), time.Now().Round(0).Add(time.Hour)
			require.Equal(t, tt.valid, s.valid(), "what is lost stays lost")
		})
	}
}

func TestShareOfKeysMovesOnlyFromTheDead(t *testing.T) {
	group := []string{"a", "b", "c", "d"}
	count := map[string]int{}
	for i := range 4000 {
		key := "jobs." + time.Duration(i).String()
		var owner string
		for _, id := range group {
			s := sweep{own: &session{id: id}, group: group}
			if s.responsible(key) {
				require.Empty(t, owner, "one is responsible")
				owner = id
			}
			s.pass = lastPass
			require.True(t, s.responsible(key), "in the end each is")
		}
		require.NotEmpty(t, owner)
		count[owner]++
		without := sweep{own: &session{id: owner}, group: group[:3]}
		if owner != "d" {
			require.True(t, without.responsible(key), "the death of another moves nothing")
		}
	}
	for id, n := range count {
		require.InDelta(t, 1000, n, 150, id)
	}
}
