package reconciler

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

// The defaults are those that the documentation names, and stand only for what is not given.
func TestDefaultsAreAsDocumented(t *testing.T) {
	host, err := os.Hostname()
	require.NoError(t, err)
	c := Config{}.withDefaults()
	require.Equal(t, "evenkeel", c.Prefix)
	require.Equal(t, fmt.Sprintf("%s-%d", host, os.Getpid()), c.Name)
	require.NotNil(t, c.Logger.GetSink())
	require.Equal(t, []time.Duration{lock.DefaultTTL, 25 * time.Second, 10 * time.Minute}, []time.Duration{c.Lease, c.Grace, c.Resync})
	require.Nil(t, c.Observer)

	given := Config{
		Prefix: "ours", Name: "a", Lease: time.Second, Grace: 2 * time.Second, Resync: 3 * time.Second, Logger: c.Logger.WithName("x"),
		Replicas: 3, Storage: jetstream.MemoryStorage,
	}
	require.Equal(t, given, given.withDefaults())
	require.Equal(t, notify.Config{Prefix: "ours", Replicas: 3, Storage: jetstream.MemoryStorage}, given.notify())

	k := jobs().withDefaults()
	require.Equal(t, 16, k.Workers)
	require.Equal(t, 10*time.Minute, k.Timeout)
	require.Equal(t, "jobs", k.Kind())
	k.Workers, k.Timeout = 1, time.Second
	k = k.withDefaults()
	require.Equal(t, 1, k.Workers)
	require.Equal(t, time.Second, k.Timeout)
}
