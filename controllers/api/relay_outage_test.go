package api

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// inOrder sweeps n rows in virtual time, whose notifications end one after the other: those of failing are refused. It returns
// which were taken.
func inOrder(t *testing.T, n int, failing func(i int) bool) (taken []int, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var began time.Time
		a := open(t, "sqlite::memory:", func(_ context.Context, _, name, _ string) error {
			i, err := strconv.Atoi(strings.TrimPrefix(name, "w-"))
			if err != nil {
				return err
			}
			time.Sleep(time.Until(began.Add(time.Duration(i) * time.Millisecond)))
			if failing(i) {
				return errDown
			}
			mu.Lock()
			defer mu.Unlock()
			taken = append(taken, i)
			return nil
		})
		create(t, a, n)
		began = time.Now()
		err = a.relay.sweep(t.Context())
	})
	return taken, err
}

// TestOutageIsManyFailuresInARow: neither fewer, nor as many with one that succeeds among them. All is tried where there is none.
func TestOutageIsManyFailuresInARow(t *testing.T) {
	const some = 3 * inFlight
	for name, tt := range map[string]struct {
		good   []int
		rows   int
		outage bool
	}{
		"one fewer":               {rows: giveUpAfter - 1},
		"as many":                 {rows: giveUpAfter, outage: true},
		"one fewer, then others":  {rows: some, good: count(giveUpAfter-1, some)},
		"one fewer, on each side": {rows: 2*giveUpAfter - 1, good: []int{giveUpAfter - 1}},
		"as many behind one":      {rows: giveUpAfter + 1, good: []int{0}, outage: true},
	} {
		t.Run(name, func(t *testing.T) {
			good := map[int]bool{}
			for _, i := range tt.good {
				good[i] = true
			}
			taken, err := inOrder(t, tt.rows, func(i int) bool { return !good[i] })
			require.ErrorIs(t, err, errDown)
			require.Equal(t, tt.good, taken)
			if tt.outage {
				require.ErrorIs(t, err, errOutage)
			} else {
				require.NotErrorIs(t, err, errOutage)
			}
		})
	}
}

// count is from, from+1 and so on, up to n.
func count(from, n int) (all []int) {
	for i := from; i < n; i++ {
		all = append(all, i)
	}
	return all
}

// TestSweepTriesEachRowOnce: what cannot be notified is not asked of the broker again before it has had a pause.
func TestSweepTriesEachRowOnce(t *testing.T) {
	e := &ear{fail: down}
	a := open(t, "sqlite::memory:", e.notify)
	create(t, a, 3)
	for sweeps := range 3 {
		require.ErrorIs(t, a.relay.sweep(t.Context()), errDown)
		require.Equal(t, 3*(sweeps+1), e.tries)
	}
}

// TestNothingDirtyIsNoWrite: a relay that looks every second must not take the store's one writer for it.
func TestNothingDirtyIsNoWrite(t *testing.T) {
	e := new(ear)
	a := open(t, newStore(t), e.notify)
	create(t, a, 1)
	require.NoError(t, a.Flush(t.Context()))
	writer, err := a.store.write.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer writer.Rollback()
	require.NoError(t, a.Flush(t.Context()))
	require.NoError(t, a.relay.sweep(t.Context()))
	require.Len(t, e.drain(), 1)
}

// TestPublishedKindsAreTold, and not those of which the broker has taken nothing. The context of a notification ends with it.
func TestPublishedKindsAreTold(t *testing.T) {
	var last context.Context
	e := new(ear)
	a := open(t, "sqlite::memory:", func(ctx context.Context, kind, name, reason string) error {
		last = ctx
		return e.notify(ctx, kind, name, reason)
	})
	told := map[string]int{}
	a.relay.published = func(kind string) { told[kind]++ }
	create(t, a, 1)
	e.setFail(down)
	require.ErrorIs(t, a.Flush(t.Context()), errDown)
	require.Empty(t, told)
	require.ErrorIs(t, last.Err(), context.Canceled, "nothing of it is left")
	e.setFail(nil)
	require.NoError(t, a.Flush(t.Context()))
	require.Equal(t, map[string]int{"widgets": 1}, told)
}

// TestRelaysTakeTurns: one relay publishes at a time.
func TestRelaysTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		var mu sync.Mutex
		heard := 0
		a := open(t, "sqlite::memory:", func(context.Context, string, string, string) error {
			mu.Lock()
			heard++
			mu.Unlock()
			<-finish
			return nil
		})
		create(t, a, 1)
		var relays sync.WaitGroup
		for range 5 {
			relays.Go(func() {
				if err := a.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(finish)
		relays.Wait()
		require.Equal(t, 1, heard)
	})
}
