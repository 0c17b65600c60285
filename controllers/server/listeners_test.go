package server

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/notify"
)

// TestListenersAreTheControllersThatHaveRun: their consumers stay when they stop.
func TestListenersAreTheControllersThatHaveRun(t *testing.T) {
	node, err := broker.Start(t.TempDir(), "")
	require.NoError(t, err)
	t.Cleanup(func() { broker.Stop(node) })
	nc, err := broker.Connect(node)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	cfg := notify.Config{Prefix: "ours", Storage: jetstream.MemoryStorage}
	has := listeners(nc, "ours")
	_, err = has(t.Context(), "widgets")
	require.Error(t, err, "there is no stream")
	require.NoError(t, notify.Streams(t.Context(), nc, cfg))
	heard, err := has(t.Context(), "widgets")
	require.NoError(t, err)
	require.False(t, heard)
	require.NoError(t, notify.Streams(t.Context(), nc, cfg, "widgets"))
	heard, err = has(t.Context(), "widgets")
	require.NoError(t, err)
	require.True(t, heard)
}
