package reconciler

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// A server that is not ready is asked again, with pauses, until it is or the replica is to stop; meanwhile readiness says why.
func TestServerThatIsNotReadyIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, nc := script.New(t)
		server.Answer("$JS.API.", script.Error(503, 10008, "JetStream system temporarily unavailable"))
		s := newReplica(t, func(c *Config) { c.NATS = nc })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.prepare(ctx) }()
		time.Sleep(10 * time.Minute)
		asked := len(server.Sent("$JS.API."))
		require.Greater(t, asked, 40, "every 15 s at least")
		require.Less(t, asked, 400)
		require.ErrorContains(t, s.Ready(), "not running yet: prepare NATS: ")
		require.ErrorContains(t, s.Ready(), "temporarily unavailable")
		told := s.events()
		require.NotEmpty(t, told)
		for _, e := range told {
			require.Equal(t, []any{StepTrouble, "prepare NATS"}, []any{e.Step, e.Reason})
			require.ErrorContains(t, e.Err, "temporarily unavailable")
		}
		cancel()
		require.NoError(t, <-done)
		require.EqualError(t, s.Ready(), "reconciler: not running")
		require.NoError(t, s.prepare(ctx), "a stop before the start is none")
	})
}

// What a server refuses will be refused again.
func TestServerThatRefusesEndsTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, nc := script.New(t)
		server.Answer("$JS.API.", script.Error(400, 10052, "no room for another stream"))
		s := newReplica(t, func(c *Config) { c.NATS = nc })
		began := time.Now()
		err := s.prepare(t.Context())
		require.ErrorContains(t, err, "reconciler: prepare NATS: ")
		require.ErrorContains(t, err, "no room for another stream")
		require.Less(t, time.Since(began), time.Second)
		require.Empty(t, s.events())
		cfg := Config{NATS: nc, API: "http://api.test", Logger: logr.Discard()}
		require.Equal(t, err.Error(), Run(t.Context(), cfg, jobs()).Error())
		cfg.API = ""
		require.ErrorContains(t, Run(t.Context(), cfg, jobs()), "Config.API")
	})
}

// A connection that is closed meanwhile will not come back.
func TestConnectionThatIsClosedEndsTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, nc := script.New(t)
		server.Answer("$JS.API.", script.Error(503, 10008, "JetStream system temporarily unavailable"))
		s := newReplica(t, func(c *Config) { c.NATS = nc })
		done := make(chan error)
		go func() { done <- s.prepare(t.Context()) }()
		time.Sleep(time.Minute)
		nc.Close()
		require.ErrorContains(t, <-done, "the connection to NATS was closed while Run ran")
		require.EqualError(t, s.Ready(), "reconciler: not running")
	})
}

// A server that cannot make again what is missing is asked again, with pauses, and nothing is looked for before.
func TestWhatCannotBeMadeAgainIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, nc := script.New(t)
		server.Answer("$JS.API.", script.Error(503, 10008, "JetStream system temporarily unavailable"))
		s := newReplica(t, func(c *Config) { c.NATS = nc })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.mendAlways(ctx); close(done) }()
		s.lacks()
		time.Sleep(10 * time.Minute)
		asked := len(server.Sent("$JS.API."))
		require.Greater(t, asked, 40)
		require.Less(t, asked, 400)
		require.Empty(t, s.kinds[0].search)
		told := s.events()
		require.NotEmpty(t, told)
		for _, e := range told {
			require.Equal(t, []any{StepTrouble, "make streams again"}, []any{e.Step, e.Reason})
			require.ErrorContains(t, e.Err, "temporarily unavailable")
		}
		server.Answer("$JS.API.", script.Silence)
		time.Sleep(16 * time.Second)
		s.events()
		cancel()
		<-done
		require.Empty(t, s.events(), "a stop is no trouble")
	})
}

// A kind whose stream cannot be looked at is not opened.
func TestKindWithoutAStreamIsNotOpened(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		s.server.Answer("$JS.API.STREAM.INFO."+s.names.WorkStream(), script.Error(404, 10059, "stream not found"))
		require.ErrorContains(t, s.open(t.Context()), "look at stream evenkeel_work: ")
	})
}

// A kind that cannot listen ends the run with an error: nothing would come.
func TestKindThatCannotListenSaysSo(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		s.resign()
		s.nc.Close()
		require.ErrorContains(t, s.kinds[0].run(t.Context(), t.Context()), "notify: subscribe: ")
	})
}

// Whoever ends the run of a kind waits for what it does in the background.
func TestRunOfAKindWaitsForWhatItBegan(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		k := s.kinds[0]
		k.waiting["x"] = &turn{name: "x", unwatch: func() {}}
		s.resign()
		s.hold[""] = make(chan struct{}) // what is said of no object is not over until this is closed
		s.server.Answer("$JS.API.STREAM.INFO.KV_", script.Error(503, 10008, "JetStream system temporarily unavailable"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.run(ctx, ctx) }()
		time.Sleep(2 * holdEvery) // it cannot list the locks, and says so
		cancel()
		time.Sleep(time.Minute)
		require.Empty(t, done)
		close(s.hold[""])
		require.NoError(t, <-done)
		seen := s.events()
		require.Equal(t, "list the locks that are held", seen[len(seen)-1].Reason)
	})
}
