package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

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
