package jsapi

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

func TestAckTellsRefusalsApart(t *testing.T) {
	seq, err := Ack([]byte(`{"stream":"W", "seq": 42}`))
	require.NoError(t, err)
	require.EqualValues(t, 42, seq)

	_, err = Ack([]byte(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"},"stream":"W","seq":0}`))
	var wrong *WrongSequence
	require.ErrorAs(t, err, &wrong)
	require.EqualValues(t, 7, wrong.Last)

	for text, want := range map[string]error{
		`{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"},"stream":"W","seq":0}`: ErrBusy,
		`{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`:                         ErrNoStream,
		`{"error":{"code":404,"err_code":10037,"description":"no message found"}}`:                         ErrNoMessage,
	} {
		_, err := Ack([]byte(text))
		require.ErrorIs(t, err, want)
	}
	_, err = Ack([]byte(`{"error":{"code":503,"err_code":10008,"description":"temporarily unavailable"}}`))
	var other *APIError
	require.ErrorAs(t, err, &other)
	require.Equal(t, 503, other.Code)
	require.NotErrorIs(t, err, ErrNoRoom)
	for text, want := range map[string]error{
		`{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}`:                ErrNoRoom,
		`{"error":{"code":500,"err_code":10047,"description":"insufficient storage resources available"}}`: ErrNoRoom,
		`{"error":{"code":429,"err_code":10167,"description":"too many requests"}}`:                        ErrNoRoom,
		`{"error":{"code":503,"err_code":10039,"description":"JetStream not enabled for account"}}`:        ErrNoJetStream,
	} {
		_, err := Ack([]byte(text))
		require.ErrorIs(t, err, want)
	}
	_, err = Ack([]byte("garbage"))
	require.Error(t, err)
	require.False(t, errors.As(err, &other))
}

// A stream that met a write error answers no publish, not even with an error: its silence must lead to the server's log.
func TestPublishWithoutAnAnswerPointsToTheServersLog(t *testing.T) {
	err := explain(new(nats.Conn), "$KV.locks.session.x", context.DeadlineExceeded)
	require.ErrorContains(t, err, "request $KV.locks.session.x: no answer (if this goes on, see the log of nats-server")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotContains(t, explain(new(nats.Conn), "$JS.API.STREAM.INFO.x", context.DeadlineExceeded).Error(), "full disk")
}
