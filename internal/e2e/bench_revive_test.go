package e2e

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/notify"
)

// BenchmarkRevive is what the look for notifications that are not delivered costs while 300,000 objects of the kind wait.
func BenchmarkRevive(b *testing.B) {
	x := newBench(b)
	ctx := context.Background()
	nc := x.conn()
	require.NoError(b, notify.Streams(ctx, nc, notify.Config{}, "widgets"))
	names := subject.Names{Prefix: notify.DefaultPrefix}
	x.fill(300_000, func(s string) string { return names.Fresh("widgets", s) })
	c, err := notify.NewConsumer(ctx, nc, notify.ConsumerConfig{Kind: "widgets", MaxFree: 1, Free: func() int { return 0 }})
	require.NoError(b, err)
	for b.Loop() {
		_, err := c.Revive(ctx, func(context.Context, string, string) (bool, error) { return false, nil })
		require.NoError(b, err)
	}
}
