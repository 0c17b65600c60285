package requeue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/requeue"
)

func TestBackoffCeilingDoublesUpToTheCap(t *testing.T) {
	for _, c := range []struct {
		backoff  requeue.Backoff
		failures int
		want     time.Duration
	}{
		{requeue.Backoff{}, 1, time.Second},
		{requeue.Backoff{}, 2, 2 * time.Second},
		{requeue.Backoff{}, 5, 16 * time.Second},
		{requeue.Backoff{}, 10, 5 * time.Minute},
		{requeue.Backoff{}, 1 << 30, 5 * time.Minute},
		{requeue.Backoff{Base: time.Minute, Cap: time.Second}, 1, time.Second},
		{requeue.Backoff{Base: 3 * time.Second, Cap: time.Hour}, 3, 12 * time.Second},
		{requeue.Backoff{Base: time.Second, Cap: 3 * time.Second}, 2, 2 * time.Second},
		{requeue.Backoff{Base: 1, Cap: 3}, 2, 2},
		{requeue.Backoff{Base: time.Nanosecond, Cap: 1<<63 - 1}, 100, 1<<63 - 1},
	} {
		require.Equal(t, c.want, c.backoff.Ceiling(c.failures), "%+v after %d", c.backoff, c.failures)
	}
}

func TestBackoffHasFullJitterAndKeepsToItsCap(t *testing.T) {
	b := requeue.Backoff{Base: time.Second, Cap: 10 * time.Second}
	var least, most time.Duration = 1 << 62, 0
	for range 10_000 {
		d := b.Delay(20)
		least, most = min(least, d), max(most, d)
	}
	require.GreaterOrEqual(t, least, requeue.Floor)
	require.LessOrEqual(t, most, 10*time.Second)
	require.Less(t, least, time.Second, "the jitter is full: short delays happen")
	require.Greater(t, most, 9*time.Second, "and so do long ones")
}
