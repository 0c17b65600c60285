package reconciler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/script"
)

// nowhereToGo is a client's connection to servers that are away.
type nowhereToGo struct{}

func (nowhereToGo) Dial(string, string) (net.Conn, error) { return nil, errors.New("no route") }

func disconnected(t *testing.T) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("nats://user:secret@192.0.2.1:4222, nats://192.0.2.2:4222", nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.SetCustomDialer(nowhereToGo{}), nats.IgnoreDiscoveredServers())
	require.NoError(t, err)
	return nc
}

// Servers that are away are waited for. That is said when patience ends, and then ever more rarely, without passwords.
func TestNATSThatIsAwayIsSaidEverMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newReplica(t, func(c *Config) { c.NATS = disconnected(t) })
		defer s.cfg.NATS.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		start := time.Now()
		go func() { done <- s.connected(ctx, 3*time.Second) }()
		time.Sleep(4 * time.Minute)
		cancel()
		require.NoError(t, <-done, "a stop is no error")
		var at []time.Duration
		for _, e := range s.events() {
			require.Equal(t, "connect to NATS", e.Reason)
			require.ErrorContains(t, e.Err, "not connected to NATS at ")
			require.ErrorContains(t, e.Err, "192.0.2.2:4222")
			require.ErrorContains(t, e.Err, "; waiting")
			require.NotContains(t, e.Err.Error(), "secret")
			at = append(at, e.Time.Sub(start)/time.Second)
		}
		require.Equal(t, []time.Duration{3, 8, 18, 38, 68, 98, 128, 158, 188, 218}, at)
	})
}

// A connection that is closed will never be there again: Run must not wait for it.
func TestClosedConnectionEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newReplica(t, func(c *Config) { c.NATS = disconnected(t) })
		var ended error
		done := make(chan struct{})
		go func() { s.watchNATS(t.Context(), func(err error) { ended = err }); close(done) }()
		time.Sleep(blip - 1)
		require.Empty(t, s.events(), "a server that restarts is back by then")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Len(t, s.events(), 1)
		time.Sleep(time.Millisecond)
		closed := time.Now()
		s.cfg.NATS.Close()
		<-done
		require.Equal(t, closed, time.Now(), "at once")
		require.ErrorContains(t, ended, "reconciler: the connection to NATS ")
		require.ErrorContains(t, ended, "close it only when Run has returned")
	})
}

func TestConnectionThatWasNeverTriedHasNoError(t *testing.T) {
	require.EqualError(t, newReplica(t, nil).notConnected(), "not connected to NATS at ; waiting")
}

func TestConnectionThatIsAwaySaysWhatTheServerSaidLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, nc := script.New(t, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		s := newReplica(t, func(c *Config) { c.NATS = nc })
		server.Say(`-ERR 'Permissions Violation for Publish to "there"'`)
		synctest.Wait()
		require.ErrorIs(t, s.notConnected(), nats.ErrPermissionViolation)
		require.ErrorContains(t, s.notConnected(), "; waiting")
	})
}

func TestErrorOfAClosedConnectionIsTheWayOut(t *testing.T) {
	for _, err := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		got := closedBecause(fmt.Errorf("connect: %w", err))
		require.ErrorIs(t, got, err)
		require.ErrorContains(t, got, "nats.IgnoreAuthErrorAbort()")
	}
	got := closedBecause(nats.ErrStaleConnection)
	require.ErrorIs(t, got, nats.ErrStaleConnection)
	require.ErrorContains(t, got, "close it only when Run has returned")
	require.NotContains(t, got.Error(), "IgnoreAuthErrorAbort")
	require.EqualError(t, closedBecause(nil), "reconciler: the connection to NATS was closed while Run ran: close it only when Run has returned")
}

// What a server that is away or not ready says is waited out; what it refuses ends the start with an error.
func TestServerThatIsNotReadyIsToldFromOneThatRefuses(t *testing.T) {
	for _, err := range []error{
		nats.ErrTimeout, nats.ErrNoResponders, nats.ErrConnectionReconnecting, nats.ErrDisconnected, nats.ErrNoServers,
		context.DeadlineExceeded, jetstream.ErrNoStreamResponse, jsapi.ErrNoStream, &jetstream.APIError{Code: 503},
	} {
		require.True(t, transient(fmt.Errorf("make stream: %w", err)), "%v", err)
	}
	for _, err := range []error{
		&jetstream.APIError{Code: 400}, &jetstream.APIError{Code: 500}, nats.ErrPermissionViolation, nats.ErrAuthorization, context.Canceled, errors.New("no"),
	} {
		require.False(t, transient(fmt.Errorf("make stream: %w", err)), "%v", err)
	}
}

func TestMissingRightsComeWithAdvice(t *testing.T) {
	err := fmt.Errorf("make stream: %w", nats.ErrPermissionViolation)
	require.ErrorIs(t, withRights(err), nats.ErrPermissionViolation)
	require.ErrorContains(t, withRights(err), "reconciler.Permissions")
	require.Equal(t, nats.ErrTimeout, withRights(nats.ErrTimeout))
}
