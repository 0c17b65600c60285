package reconciler

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/lock"
)

// The second search follows within a minute, whatever the interval is: an outage at the start may have swallowed something.
// Then the interval is kept, jittered by a tenth, so that replicas do not search all at once.
func TestSearchesKeepTheirInterval(t *testing.T) {
	within := func(got, want time.Duration) {
		t.Helper()
		require.InDelta(t, want, got, float64(want/10))
	}
	spread := map[bool]int{}
	for range 200 {
		p := newResyncPace(10 * time.Minute)
		within(p.pause(lock.ErrHeld), firstResync)
		within(p.pause(nil), firstResync)
		within(p.pause(nil), 10*time.Minute)
		wait := p.pause(fmt.Errorf("lock: %w", lock.ErrHeld))
		within(wait, 10*time.Minute)
		spread[wait > 10*time.Minute]++
		short := newResyncPace(5 * time.Second)
		within(short.pause(nil), 5*time.Second)
		within(short.pause(nil), 5*time.Second)
	}
	require.InDelta(t, 100, spread[true], 60)
}

// A search that failed is repeated soon, but never sooner than the backoff of an outage says, nor later than the next one was due.
func TestFailedSearchIsRepeatedSoon(t *testing.T) {
	for _, err := range []error{errors.New("no answer"), lock.ErrNoSession} {
		var longest [8]time.Duration
		for range 300 {
			p := newResyncPace(time.Hour)
			p.pause(nil)
			for n := range longest {
				longest[n] = max(longest[n], p.pause(err))
			}
			require.Greater(t, p.pause(nil), 50*time.Minute, "it succeeded")
			require.LessOrEqual(t, p.pause(err), outage.Base, "another outage")
		}
		for n, pause := range longest {
			require.LessOrEqual(t, pause, outage.Ceiling(n+1))
			require.Greater(t, pause, outage.Ceiling(n+1)*4/5)
		}
	}
	p := newResyncPace(time.Second)
	for range 100 {
		require.LessOrEqual(t, p.pause(errors.New("no answer")), 1100*time.Millisecond)
	}
}

// What was listed as owed may have been reconciled since, and be owed something else by now: somebody is on it.
func TestOnlyWhatIsOwedTheSameStillIsForgotten(t *testing.T) {
	now := time.Now()
	owed := func(since time.Duration) *apiclient.Raw {
		return &apiclient.Raw{Generation: 2, ChangedAt: now.Add(-since), Reconciliation: apiclient.Reconciliation{ObservedGeneration: 1}}
	}
	settled := &apiclient.Raw{ChangedAt: now.Add(-time.Hour)}
	require.True(t, owedStill(owed(time.Hour), owed(time.Hour), now))
	require.False(t, owedStill(owed(time.Hour), owed(time.Minute), now), "it changed again, which queued it")
	require.False(t, owedStill(owed(time.Hour), settled, now))
	require.False(t, owedStill(settled, settled, now), "it was owed by another host's clock")
}

// Without a lock session there is nothing to be said about the search: the lock says it.
func TestSearchWithoutASessionIsNoTroubleOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1)
		ended := make(chan struct{})
		ctx, cancel := contextWithCancel(t)
		go func() { d.resyncAlways(ctx); close(ended) }()
		d.resyncSoon()
		time.Sleep(2*time.Minute + 1)
		require.Empty(t, d.search, "it was asked for")
		require.Empty(t, d.events())
		select {
		case <-ended:
			require.Fail(t, "it gave up")
		default:
		}
		stopped := time.Now()
		cancel()
		<-ended
		require.Equal(t, stopped, time.Now())
		require.ErrorIs(t, d.resync(t.Context()), lock.ErrNoSession)
	})
}
