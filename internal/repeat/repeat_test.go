package repeat

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A trouble that goes on is reported at once and then ever more rarely; one that comes back after a while is new.
func TestReportsGrowRarer(t *testing.T) {
	const s = time.Second
	f, start := Filter{First: 10 * s, Max: 10 * time.Minute}, time.Now()
	var at []time.Duration
	met, counted := 0, 0
	for d := time.Duration(0); d <= time.Hour; d += s {
		met++
		if unsaid, ok := f.Due(start.Add(d), "a"); ok {
			at = append(at, d)
			counted += 1 + unsaid
			require.Equal(t, met, counted, "after %s", d)
		}
	}
	require.Equal(t, []time.Duration{0, 10 * s, 30 * s, 70 * s, 150 * s, 310 * s, 630 * s, 1230 * s, 1830 * s, 2430 * s, 3030 * s}, at)
	_, another := f.Due(start.Add(time.Hour), "b")
	require.True(t, another)
	unsaid, again := f.Due(start.Add(time.Hour+time.Minute+s), "a")
	require.True(t, again)
	require.Zero(t, unsaid)
}

func TestFewTroublesAreRemembered(t *testing.T) {
	f, now := Filter{First: time.Second, Max: time.Minute}, time.Now()
	for i := range 10 * maxKnown {
		_, ok := f.Due(now, fmt.Sprint(i))
		require.True(t, ok)
		require.LessOrEqual(t, len(f.known), maxKnown)
	}
	_, ok := f.Due(now, fmt.Sprint(10*maxKnown-1))
	require.False(t, ok, "the newest is known")
}

// The minute that makes a trouble a new one has passed when it is longer ago, not before.
func TestTroubleIsNewAfterAMinute(t *testing.T) {
	f, start := Filter{First: time.Hour, Max: time.Hour}, time.Now()
	for _, tt := range []struct {
		after time.Duration // the one before
		isNew bool
	}{{0, true}, {time.Minute, false}, {time.Minute + 1, true}, {time.Minute, false}} {
		start = start.Add(tt.after)
		_, isNew := f.Due(start, "a")
		require.Equal(t, tt.isNew, isNew)
	}
}

// Many different troubles that are over leave the memory of one that goes on.
func TestWhatGoesOnIsRememberedAmongMany(t *testing.T) {
	f, now := Filter{First: time.Hour, Max: time.Hour}, time.Now()
	_, ok := f.Due(now, "goes on")
	require.True(t, ok)
	for round := range 3 {
		for i := range maxKnown - 1 {
			_, ok := f.Due(now, fmt.Sprint(round, i))
			require.True(t, ok)
		}
		require.Len(t, f.known, maxKnown)
		for _, d := range []time.Duration{forget / 2, forget/2 + 1} {
			now = now.Add(d)
			_, ok := f.Due(now, "goes on")
			require.False(t, ok)
		}
	}
}
