package jsapi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// What an operator is told of a request without an answer names the cause, if it is known, and keeps the error.
func TestExplainNamesTheCause(t *testing.T) {
	for name, tt := range map[string]struct {
		subject string
		err     error
		want    string
	}{
		"no JetStream": {"$JS.API.STREAM.INFO.x", nats.ErrNoResponders, "JetStream is not enabled, or not for the account"},
		"nor of consumers": {
			"$JS.API.CONSUMER.INFO.x.y", nats.ErrNoResponders, "JetStream is not enabled, or not for the account",
		},
		"no stream":   {"w.a", nats.ErrNoResponders, "nothing on the server listens"},
		"no consumer": {"$JS.API.CONSUMER.MSG.NEXT.x.y", nats.ErrNoResponders, "nothing on the server listens"},
		"no answer":   {"$JS.API.STREAM.INFO.x", context.DeadlineExceeded, "request $JS.API.STREAM.INFO.x: no answer: context"},
		// A stream that met a write error answers no publish, not even with an error: its silence must lead to the server's log.
		"a silent stream": {
			"$KV.locks.a", context.DeadlineExceeded, "request $KV.locks.a: no answer (if this goes on, see the log of nats-server",
		},
		"canceled":        {"w.a", context.Canceled, "request w.a: context canceled"},
		"canceled reads":  {"$JS.API.STREAM.INFO.x", context.Canceled, "request $JS.API.STREAM.INFO.x: context canceled"},
		"closed for good": {"w.a", nats.ErrConnectionClosed, "request w.a: nats: connection closed"},
	} {
		t.Run(name, func(t *testing.T) {
			err := explain(new(nats.Conn), tt.subject, tt.err)
			require.ErrorContains(t, err, tt.want)
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, strings.HasPrefix(tt.want, ErrNoJetStream.Error()), errors.Is(err, ErrNoJetStream))
		})
	}
}

// The server tells a connection that it may not publish or subscribe, and leaves the request without an answer.
func TestDeniedRequestSaysSo(t *testing.T) {
	const (
		publish = `Permissions Violation for Publish to "$JS.API.STREAM.INFO.W"`
		inbox   = `Permissions Violation for Subscription to "_INBOX.x.*"`
	)
	for name, tt := range map[string]struct {
		told   string
		denied bool
	}{
		"nothing":         {"", false},
		"the request":     {publish, true},
		"its answers":     {inbox, true},
		"another request": {`Permissions Violation for Publish to "w.a"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
				s.Answer("", script.Silence)
				if tt.told != "" {
					s.Say("-ERR '" + tt.told + "'")
				}
				synctest.Wait()
				for what, err := range map[string]error{
					"asked":   Request(t.Context(), nc, "$JS.API.STREAM.INFO.W", nil, nil),
					"by nats": Unanswered(nc, "STREAM.INFO.W", nats.ErrTimeout),
					"context": Unanswered(nc, "STREAM.INFO.W", context.DeadlineExceeded),
				} {
					require.ErrorContains(t, err, "no answer", what)
					require.NotContains(t, err.Error(), "nil", what)
					require.Equal(t, tt.denied, errors.Is(err, nats.ErrPermissionViolation), what)
					require.True(t, errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout), what)
				}
			})
		})
	}
}

func TestUnansweredLeavesOtherErrorsAlone(t *testing.T) {
	for _, err := range []error{nil, context.Canceled, nats.ErrConnectionClosed} {
		require.Equal(t, err, Unanswered(new(nats.Conn), "W", err))
	}
}
