package realtime

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// Credentials that a server refuses twice close the connection for good, unless the client is told otherwise.
// real time: the client holds its mutex while it is refused, which would stop virtual time.
func TestRunEndsWhenCredentialsAreRefusedForGood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	options := func(password string, port int) *server.Options {
		return &server.Options{
			ServerName: "a", Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true,
			Users: []*server.User{{Username: "u", Password: password}},
		}
	}
	s, err := broker.StartWith(options("right", server.RANDOM_PORT))
	require.NoError(t, err)
	defer broker.Stop(s)
	port := s.Addr().(*net.TCPAddr).Port
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	run := func(opts ...nats.Option) (up chan struct{}, result chan error) {
		nc, err := nats.Connect(s.ClientURL(), append(opts, nats.UserInfo("u", "right"), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		up, result = make(chan struct{}, 10), make(chan error, 1)
		go func() { // the test waits for its result
			result <- reconciler.Run(ctx, reconciler.Config{NATS: nc, API: "http://api", HTTP: apitest.NewMemory(nil).Client(), Logger: quiet, Observer: func(e reconciler.Event) {
				if e.Step == reconciler.StepRunning {
					up <- struct{}{}
				}
			}}, reconciler.For("jobs", func(context.Context, *jobObject) (reconciler.Result, error) { return reconciler.Result{}, nil }))
		}()
		return up, result
	}
	up1, giving := run()
	up2, patient := run(nats.IgnoreAuthErrorAbort())
	await(t, "both run", up1)
	await(t, "both run", up2)
	require.NoError(t, s.ReloadOptions(options("another", port)))
	select {
	case err := <-giving:
		require.ErrorContains(t, err, "connect with nats.IgnoreAuthErrorAbort()")
	case <-time.After(time.Minute):
		require.FailNow(t, "Run goes on without a connection")
	}
	require.Empty(t, patient)
	cancel()
	require.NoError(t, <-patient)
}
