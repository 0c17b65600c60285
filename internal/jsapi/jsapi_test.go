package jsapi

import (
	"errors"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// The sequence is the token of a lock: a wrong one, or none that is taken for one, breaks the promise of a single holder.
func TestAckReadsTheSequence(t *testing.T) {
	for text, want := range map[string]uint64{
		`{"stream":"W", "seq": 42}`:                         42,
		`{"seq":1902,"stream":"W","domain":"d"}`:            1902,
		`{"stream":"W","seq":18446744073709551615}`:         math.MaxUint64,
		`{"stream":"W","seq":9,"duplicate":true,"val":"7"}`: 9,
	} {
		seq, err := Ack([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, want, seq, text)
	}
	for _, text := range []string{"garbage", `{"seq":7`, `{"seq":}`, `{"seq":"7"}`, `{"x":42}`, `{}`, `null`, ``} {
		_, err := Ack([]byte(text))
		require.ErrorContains(t, err, "answer", text)
	}
	_, err := Ack([]byte(`{"seq":18446744073709551616}`))
	require.ErrorIs(t, err, strconv.ErrRange)
}

func TestAckTellsRefusalsApart(t *testing.T) {
	_, err := Ack([]byte(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"},"stream":"W","seq":0}`))
	var wrong *WrongSequence
	require.ErrorAs(t, err, &wrong)
	require.EqualValues(t, 7, wrong.Last)
	_, err = Ack([]byte(`{"error":{"err_code":10071,"description":"wrong last sequence: 18446744073709551615"}}`))
	require.ErrorAs(t, err, &wrong)
	require.EqualValues(t, uint64(math.MaxUint64), wrong.Last)
	require.EqualError(t, err, "wrong last sequence: 18446744073709551615")
	_, err = Ack([]byte(`{"error":{"err_code":10071,"description":"wrong last sequence"}}`))
	require.NotErrorAs(t, err, &wrong, "0 would say that there is none")
	require.EqualError(t, err, "wrong last sequence (server error 10071)")

	for text, want := range map[string]error{
		`{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"},"stream":"W","seq":0}`: ErrBusy,
		`{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`:                         ErrNoStream,
		`{"error":{"code":404,"err_code":10037,"description":"no message found"}}`:                         ErrNoMessage,
		`{"error":{"code":404,"err_code":10014,"description":"consumer not found"}}`:                       ErrNoConsumer,
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
		`{"error":{"code":503,"err_code":10076,"description":"JetStream not enabled"}}`:                    ErrNoJetStream,
	} {
		_, err := Ack([]byte(text))
		require.ErrorIs(t, err, want)
	}
	require.NotErrorIs(t, err, ErrNoJetStream)
	require.NotErrorIs(t, err, ErrBusy)
	_, err = Ack([]byte("garbage"))
	require.Error(t, err)
	require.False(t, errors.As(err, &other))
}
