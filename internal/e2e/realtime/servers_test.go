package realtime

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/requeue"
)

// serversEnv names a folder with a folder for each version of nats-server, named after it, with the program in it.
const serversEnv = "EVENKEEL_NATS_SERVERS"

// TestServersOfOtherVersions starts real servers: those that would break promises silently are refused, with the version
// that is needed; with the others requeues come, and fresh changes cancel them.
func TestServersOfOtherVersions(t *testing.T) {
	t.Parallel()
	folder := os.Getenv(serversEnv)
	if folder == "" {
		t.Skip("needs nats-servers of other versions: make old-nats, then " + serversEnv + "=$PWD/.cache/nats")
	}
	programs, err := filepath.Glob(filepath.Join(folder, "v*", "nats-server"))
	require.NoError(t, err)
	require.NotEmpty(t, programs)
	for _, program := range programs {
		version := filepath.Base(filepath.Dir(program))
		t.Run(version, func(t *testing.T) {
			nc := startServer(t, program)
			err := notify.Streams(t.Context(), nc, notify.Config{}, "widgets")
			if strings.HasPrefix(version, "v2.10.") || strings.HasPrefix(version, "v2.11.") {
				require.ErrorIs(t, err, notify.ErrServerTooOld)
				require.ErrorContains(t, err, "nats-server "+strings.TrimPrefix(version, "v")+" is connected")
				require.ErrorContains(t, err, "needs nats-server "+notify.LeastServer+" or later")
				require.ErrorIs(t, notify.Streams(t.Context(), nc, notify.Config{}), notify.ErrServerTooOld, "what was found is checked, too")
				return
			}
			require.NoError(t, err)
			requeueComesAndIsCancelled(t, nc)
		})
	}
}

func requeueComesAndIsCancelled(t *testing.T, nc *nats.Conn) {
	q, err := requeue.NewQueue(nc, notify.DefaultPrefix)
	require.NoError(t, err)
	p, err := notify.NewPublisher(nc, notify.Config{})
	require.NoError(t, err)
	c, err := notify.NewConsumer(t.Context(), nc, notify.ConsumerConfig{Kind: "widgets", MaxFree: 4, Free: func() int { return 4 }})
	require.NoError(t, err)
	got := make(chan string, 4)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.Run(ctx, func(d *notify.Delivery) {
			_ = d.Take(ctx)
			got <- d.Name
		})
	}()
	now := time.Now()
	require.NoError(t, q.At(ctx, "widgets", "cancelled", now.Add(time.Second), nil))
	require.NoError(t, q.At(ctx, "widgets", "slept", now.Add(10*time.Minute), nil))
	require.NoError(t, q.At(ctx, "widgets", "slept", now.Add(2*time.Second), nil))
	require.NoError(t, p.Publish(ctx, "widgets", "cancelled", "changed"))
	require.Equal(t, "cancelled", <-got)
	require.Equal(t, "slept", <-got, "the other one is not looked at twice")
	cancel()
	require.NoError(t, <-done)
}

// startServer starts a program with JetStream on a loopback port until the test ends.
func startServer(t *testing.T, program string) *nats.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	cmd := exec.Command(program, "-js", "-sd", t.TempDir(), "-a", "127.0.0.1", "-p", fmt.Sprint(port))
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	})
	var nc *nats.Conn
	eventually(t, func() (err error) {
		nc, err = nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		if _, err = nc.Request("$JS.API.INFO", nil, time.Second); err != nil {
			nc.Close()
		}
		return err
	})
	t.Cleanup(nc.Close)
	return nc
}
