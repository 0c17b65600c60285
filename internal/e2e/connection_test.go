package e2e

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// ended returns what Run returned, or fails the test if it has not.
func (s scenario) ended(r *reconcilertest.Replica) error {
	s.t.Helper()
	require.Len(s.t, s.Timeline().By(r.Name).Only(reconciler.StepStopping), 1, "Run goes on")
	return r.Stop()
}

// A connection that is closed under a runner does not leave it running deaf: functions finish, their status is stored, and
// Run says why it ended.
func TestRunEndsWhenItsConnectionIsClosed(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var nc *nats.Conn
		a := s.StartWith("a", func(cfg *reconciler.Config) { nc = cfg.NATS }, reconciler.For("jobs", work))
		s.put("x", job{Millis: 3000, Value: 1})
		s.Advance(time.Second)
		nc.Close()
		s.Advance(4 * time.Second)
		require.Equal(t, 1, s.get("x").Status.Value, "the run could finish within the lease")
		s.Advance(time.Minute)
		require.ErrorContains(t, s.ended(a), "close it only when Run has returned")
	})
}

func TestStartOnAClosedConnectionFails(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.StartWith("a", func(cfg *reconciler.Config) { cfg.NATS.Close() }, reconciler.For("jobs", work))
		s.Advance(time.Second)
		require.ErrorContains(t, a.Stop(), "close it only when Run has returned")
	})
}

// A stop that somebody asked for stays clean when the connection is closed behind it.
func TestConnectionClosedAfterTheStopIsNoError(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var nc *nats.Conn
		a := s.StartWith("a", func(cfg *reconciler.Config) { nc = cfg.NATS }, reconciler.For("jobs", work))
		s.Advance(time.Second)
		require.NoError(t, a.Stop())
		nc.Close()
	})
}

// Credentials that a server refuses twice close the connection for good, unless the client is told otherwise.
// real time: the client holds its mutex while it is refused, which would stop virtual time.
func TestRunEndsWhenCredentialsAreRefusedForGood(t *testing.T) {
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

// NATS that is away at the start is said at once, with its address, then ever more rarely, and when it is there.
func TestNATSAwayAtTheStartIsSaid(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.StopBroker()
		var log lines
		s.StartWith("a", log.sink, reconciler.For("jobs", work))
		s.Advance(100 * time.Millisecond)
		require.Contains(t, log.text(), "not connected to NATS at nats://")
		require.NotContains(t, log.text(), `"running"`)
		s.Advance(10 * time.Minute)
		said := log.with("trouble, will be retried")
		require.Greater(t, len(said), 15)
		require.Less(t, len(said), 30)
		s.StartBroker()
		s.Advance(10 * time.Second)
		require.Len(t, log.with("connected to NATS"), 1)
		require.Len(t, log.with("running"), 1)
	})
}

// NATS that goes away later is said as well; a restart of a server is not.
func TestNATSThatGoesAwayIsSaid(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var log lines
		a := s.StartWith("a", log.sink, reconciler.For("jobs", work))
		s.Advance(2 * time.Second)
		a.CutNATS()
		s.Advance(500 * time.Millisecond)
		a.Heal()
		s.Advance(time.Second)
		require.NotContains(t, log.text(), "not connected to NATS")
		a.CutNATS()
		s.Advance(5 * time.Second)
		require.Contains(t, log.text(), "not connected to NATS")
		a.Heal()
		s.Advance(5 * time.Second)
		require.Len(t, log.with("connected to NATS"), 1)
	})
}

// "running" is said when work is taken up, not before.
func TestRunningIsSaidWhenItIsTrue(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var log lines
		admit := s.FailBroker(reconcilertest.BrokerFault{Subject: ".session."})
		s.StartWith("a", log.sink, reconciler.For("jobs", work))
		s.put("x", job{Value: 1})
		s.Advance(time.Minute)
		require.Empty(t, log.with("running"))
		require.Empty(t, s.runs("x"))
		admit()
		s.Advance(10 * time.Second)
		require.Len(t, log.with("running"), 1)
		require.Len(t, s.Timeline().Only(reconciler.StepRunning), 1)
		require.Len(t, s.runs("x"), 1)
	})
}

// What is retried each second is not logged each second.
func TestTheSameTroubleIsLoggedRarely(t *testing.T) {
	for what, subject := range map[string]string{"JetStream that does not answer": "$JS.API.", "no lock session": ".session."} {
		t.Run(strings.ReplaceAll(what, " ", "_"), func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				var log lines
				end := s.FailBroker(reconcilertest.BrokerFault{Subject: subject})
				s.StartWith("a", log.sink, reconciler.For("jobs", work))
				s.Advance(10 * time.Minute)
				said := log.with("trouble, will be retried")
				require.NotEmpty(t, said)
				require.Less(t, len(said), 30, said)
				end()
				s.put("x", job{Value: 1})
				s.Advance(time.Minute)
				s.AssertConverged()
			})
		})
	}
}
