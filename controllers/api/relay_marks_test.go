package api

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// TestNothingIsMarkedBeforeItIsPublished: an API that dies while it publishes leaves the row dirty for the next one.
func TestNothingIsMarkedBeforeItIsPublished(t *testing.T) {
	var a *API
	dirtyThen := 0
	a = open(t, newStore(t), func(ctx context.Context, _, _, _ string) error {
		_, dirtyThen = rows(t, a)
		deadline, ok := ctx.Deadline()
		require.True(t, ok, "a broker that hangs does not hang the relay")
		require.LessOrEqual(t, time.Until(deadline), publishTimeout)
		return nil
	})
	create(t, a, 1)
	require.NoError(t, a.Flush(t.Context()))
	require.Equal(t, 1, dirtyThen)
	_, dirty := rows(t, a)
	require.Zero(t, dirty)
}

// TestMarkThatFailsIsOwedAgain: what the store could not mark was published, and is published once more. It is an error: a
// relay that knows nothing of it would not say why controllers hear of everything again and again.
func TestMarkThatFailsIsOwedAgain(t *testing.T) {
	e := &ear{}
	a := open(t, newStore(t), e.notify)
	create(t, a, 3)
	_, err := a.store.write.ExecContext(t.Context(), `CREATE TRIGGER full BEFORE UPDATE OF notified_revision ON objects
		WHEN old.name = 'w-0001' BEGIN SELECT RAISE(ABORT, 'the disk is full'); END`)
	require.NoError(t, err)
	for _, relay := range []func() error{
		func() error { return a.Flush(t.Context()) },
		func() error { return a.relay.sweep(t.Context()) },
		func() error { return a.relay.relayNudged(t.Context(), objects.Key{Kind: "widgets", Name: "w-0001"}) },
	} {
		require.ErrorContains(t, relay(), "mark widgets/w-0001 as notified")
		require.Contains(t, e.drain(), "widgets/w-0001 created")
		_, dirty := rows(t, a)
		require.Positive(t, dirty)
	}
	_, err = a.store.write.ExecContext(t.Context(), `DROP TRIGGER full`)
	require.NoError(t, err)
	require.NoError(t, a.Flush(t.Context()))
	require.Contains(t, e.drain(), "widgets/w-0001 created")
	_, dirty := rows(t, a)
	require.Zero(t, dirty)
	require.NoError(t, a.Flush(t.Context()))
	require.Empty(t, e.drain())
}

// TestStoppedRelaySaysSo, marks what the broker has taken, and leaves the rest to whoever comes next.
func TestStoppedRelaySaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	heard := map[string]int{}
	a := open(t, newStore(t), func(_ context.Context, _, name, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		if heard[name]++; len(heard) == 5 {
			cancel()
		}
		return nil
	})
	create(t, a, 100)
	require.ErrorIs(t, a.Flush(ctx), context.Canceled)
	require.Less(t, len(heard), 100)
	_, dirty := rows(t, a)
	require.Equal(t, 100-len(heard), dirty)
	require.ErrorIs(t, a.Flush(ctx), context.Canceled)
	require.NoError(t, a.Flush(t.Context()))
	require.Len(t, heard, 100)
	for name, times := range heard {
		require.Equal(t, 1, times, name)
	}
}

// TestStoreThatCannotBeReadIsSaid by all that looks for dirty rows.
func TestStoreThatCannotBeReadIsSaid(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	require.NoError(t, a.store.read.Close())
	require.ErrorContains(t, a.Flush(t.Context()), "read what is not notified")
	require.ErrorContains(t, a.relay.sweep(t.Context()), "read what is not notified")
	a.relay.cursor = objects.Key{Kind: "widgets", Name: "a"}
	require.ErrorContains(t, a.relay.sweep(t.Context()), "read what is not notified")
	require.ErrorContains(t, a.relay.relayNudged(t.Context(), objects.Key{Kind: "widgets", Name: "a"}), "read what is not notified of widgets/a")
}

// TestFailuresAmongSuccessesAreNoOutage: one sweep gets to all rows, of more than one page, when many of them fail.
func TestFailuresAmongSuccessesAreNoOutage(t *testing.T) {
	const all = batchSize + 44
	bad := func(name string) bool { return name[len(name)-1]%3 == 0 }
	e := &ear{fail: func(name string) error {
		if bad(name) {
			return fmt.Errorf("%w for %s", errDown, name)
		}
		return nil
	}}
	a := open(t, newStore(t), e.notify)
	create(t, a, all)
	var want []string
	for i := range all {
		if name := fmt.Sprintf("w-%04d", i); !bad(name) {
			want = append(want, "widgets/"+name+" created")
		}
	}
	err := a.relay.sweep(t.Context())
	require.ErrorIs(t, err, errDown)
	require.NotErrorIs(t, err, errOutage)
	got := e.drain()
	slices.Sort(got)
	require.Equal(t, want, got)
	require.Equal(t, all, e.tries)
	require.Zero(t, a.relay.cursor, "the next sweep begins at the start")
	_, dirty := rows(t, a)
	require.Equal(t, all-len(want), dirty)
}

// TestSweepBeginsWhereTheLastOneGaveUp, and comes to those in front as well: in a sweep that finds no outage all is relayed.
func TestSweepBeginsWhereTheLastOneGaveUp(t *testing.T) {
	e := &ear{fail: down}
	a := open(t, newStore(t), e.notify)
	const all = 6 * giveUpAfter
	create(t, a, all)
	for range 2 {
		before := e.tries
		require.ErrorIs(t, a.relay.sweep(t.Context()), errOutage)
		require.LessOrEqual(t, e.tries-before, giveUpAfter+inFlight, "each sweep of an outage gives up")
	}
	at := a.relay.cursor
	require.GreaterOrEqual(t, at.Name, fmt.Sprintf("w-%04d", 2*giveUpAfter-1))
	e.setFail(func(name string) error {
		if name <= at.Name {
			return errDown
		}
		return nil
	})
	require.ErrorIs(t, a.relay.sweep(t.Context()), errDown)
	_, dirty := rows(t, a)
	got := e.drain()
	require.Len(t, got, all-dirty)
	require.NotEmpty(t, got, "those behind come first")
	e.setFail(nil)
	require.NoError(t, a.relay.sweep(t.Context()))
	require.Len(t, e.drain(), dirty)
}

// TestNudgesAreForWhatIsStillDirty: several of one object are one notification, and a sweep may have been there first.
func TestNudgesAreForWhatIsStillDirty(t *testing.T) {
	e := &ear{}
	a := open(t, newStore(t), e.notify)
	create(t, a, 3)
	key := func(i int) objects.Key { return objects.Key{Kind: "widgets", Name: fmt.Sprintf("w-%04d", i)} }
	for range 3 {
		a.relay.nudge(key(0))
		a.relay.nudge(key(1))
		a.relay.nudge(key(99))
	}
	require.NoError(t, a.relay.relayNudged(t.Context(), key(1)))
	got := e.drain()
	slices.Sort(got)
	require.Equal(t, []string{"widgets/w-0000 created", "widgets/w-0001 created"}, got)
	require.Empty(t, a.relay.nudges)
	require.NoError(t, a.relay.relayNudged(t.Context(), key(1)))
	require.Empty(t, e.drain())
	for range 10 * batchSize {
		a.relay.nudge(key(2)) // which never waits
	}
	require.NoError(t, a.relay.relayNudged(t.Context(), key(2)))
	require.Equal(t, []string{"widgets/w-0002 created"}, e.drain())
}

// TestNudgesAreRelayedInBatches: what is published is marked before there is more of it.
func TestNudgesAreRelayedInBatches(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	for i := range 2 * batchSize {
		a.relay.nudge(objects.Key{Kind: "widgets", Name: fmt.Sprintf("none-%d", i)})
	}
	require.NoError(t, a.relay.relayNudged(t.Context(), <-a.relay.nudges))
	require.Len(t, a.relay.nudges, batchSize)
}

// TestFlushRelaysAll, also those at which a sweep gave up, and waits for its turn no longer than it may.
func TestFlushRelaysAll(t *testing.T) {
	e := &ear{fail: down}
	a := open(t, newStore(t), e.notify)
	create(t, a, 6*giveUpAfter)
	require.ErrorIs(t, a.relay.sweep(t.Context()), errOutage)
	require.NotZero(t, a.relay.cursor)
	e.setFail(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.relay.turn <- struct{}{}
	require.ErrorIs(t, a.Flush(ctx), context.Canceled)
	<-a.relay.turn
	require.Empty(t, e.drain())
	require.NoError(t, a.Flush(t.Context()))
	require.Len(t, e.drain(), 6*giveUpAfter)
}

// TestMarksAreInOneOrder, whichever notification ends first: two relays would wait for each other's rows in a circle.
func TestMarksAreInOneOrder(t *testing.T) {
	last := make(chan struct{})
	a := open(t, newStore(t), func(ctx context.Context, _, name, _ string) error {
		switch name {
		case "w-0000":
			select {
			case <-last:
			case <-ctx.Done():
			}
		case "w-0009":
			close(last)
		}
		return ctx.Err()
	})
	create(t, a, 10)
	for _, statement := range []string{
		`CREATE TABLE marks (name TEXT)`,
		`CREATE TRIGGER marked AFTER UPDATE OF notified_revision ON objects BEGIN INSERT INTO marks VALUES (new.name); END`,
	} {
		_, err := a.store.write.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	require.NoError(t, a.Flush(t.Context()))
	var marked string
	err := a.store.read.QueryRowContext(t.Context(), `SELECT group_concat(name, ' ') FROM (SELECT name FROM marks ORDER BY rowid)`).Scan(&marked)
	require.NoError(t, err)
	require.Equal(t, "w-0000 w-0001 w-0002 w-0003 w-0004 w-0005 w-0006 w-0007 w-0008 w-0009", marked)
}

// TestLagIsForHowLongNotEverythingCouldBeRelayed.
func TestLagIsForHowLongNotEverythingCouldBeRelayed(t *testing.T) {
	r := newRelay(nil, nil, logr.Discard())
	require.Zero(t, r.lag(), "nobody relays")
	r.swept.Store(time.Now().UnixNano())
	require.Zero(t, r.lag(), "there is time until the next sweep")
	r.swept.Store(time.Now().Add(-r.poll - time.Hour).UnixNano())
	require.InDelta(t, time.Hour, r.lag(), float64(time.Minute))
}

func TestBackoffOfTheRelay(t *testing.T) {
	for failures, most := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 200 * time.Millisecond, 5: 3200 * time.Millisecond, 6: lastRetry, 9: lastRetry, 1000: lastRetry,
	} {
		longest := time.Duration(0)
		for range 200 {
			d := backoff(failures)
			require.GreaterOrEqual(t, d, most/2)
			require.Less(t, d, most)
			longest = max(longest, d)
		}
		require.Greater(t, longest, most*9/10)
	}
}
