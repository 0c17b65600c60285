package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
)

// TestConnectionsToNATSNeverGiveUp: one that is closed for good would leave the API serving and telling nobody.
func TestConnectionsToNATSNeverGiveUp(t *testing.T) {
	node, err := broker.Start(t.TempDir(), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { broker.Stop(node) })
	nc, err := (&natsFlags{NATS: node.ClientURL()}).connect("test")
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	require.Negative(t, nc.Opts.MaxReconnect)
	require.True(t, nc.Opts.IgnoreAuthErrorAbort)
}
