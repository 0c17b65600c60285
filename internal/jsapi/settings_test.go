package jsapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

func TestLimitsNamesWhatRefusesOrDropsMessages(t *testing.T) {
	require.Empty(t, Limits(jetstream.StreamConfig{}))
	require.Empty(t, Limits(jetstream.StreamConfig{MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: -1}))
	require.Equal(t, "max_msgs 1", Limits(jetstream.StreamConfig{MaxMsgs: 1}))
	require.Equal(t, "max_bytes 1", Limits(jetstream.StreamConfig{MaxBytes: 1}))
	require.Equal(t, "max_msg_size 1", Limits(jetstream.StreamConfig{MaxMsgSize: 1}))
	require.Equal(t, "max_age 1ns", Limits(jetstream.StreamConfig{MaxAge: 1}))
	all := jetstream.StreamConfig{MaxMsgs: 2, MaxBytes: 3, MaxMsgSize: 4, MaxAge: time.Hour, DiscardNewPerSubject: true, Replicas: 3}
	require.Equal(t, "max_msgs 2, max_bytes 3, max_msg_size 4, max_age 1h0m0s", Limits(all))
	Unlimit(&all)
	require.Equal(t, jetstream.StreamConfig{MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: -1, Replicas: 3}, all, "as the server keeps none")
}

func TestHasCode(t *testing.T) {
	refused := &jetstream.APIError{ErrorCode: CodeMaxConsumers}
	require.True(t, HasCode(refused, CodeMaxConsumers))
	require.False(t, HasCode(refused, CodeMaxBytesRequired))
	require.False(t, HasCode(errors.New("x"), CodeMaxConsumers))
	require.False(t, HasCode(nil, CodeMaxConsumers))
}

// An account may ask for limits: then those stay that the stream has, and the rest of the change is made all the same.
func TestUpdateStreamKeepsTheLimitsThatTheAccountAsksFor(t *testing.T) {
	const update = "$JS.API.STREAM.UPDATE.W"
	made := `{"type":"io.nats.jetstream.api.v1.stream_update_response","config":{"name":"W","description":"made"}}`
	bytes := script.Error(400, int(CodeMaxBytesRequired), "account requires a stream config to have max bytes set")
	consumers := script.Error(400, int(CodeMaxConsumers), "maximum consumers limit reached")
	have := jetstream.StreamConfig{Name: "W", MaxBytes: 1000, MaxConsumers: 10}
	const unlimited, withBytes, withConsumers, withBoth = "-1/-1", "1000/-1", "-1/10", "1000/10"
	for name, tt := range map[string]struct {
		answers []string
		sent    []string // max_bytes and max_consumers
		refused bool
	}{
		"changed":             {answers: []string{made}, sent: []string{unlimited}},
		"asks for max_bytes":  {answers: []string{bytes, made}, sent: []string{unlimited, withBytes}},
		"few consumers":       {answers: []string{consumers, made}, sent: []string{unlimited, withConsumers}},
		"both":                {answers: []string{bytes, consumers, made}, sent: []string{unlimited, withBytes, withBoth}},
		"refused":             {answers: []string{noStream}, sent: []string{unlimited}, refused: true},
		"refused after bytes": {answers: []string{bytes, noStream}, sent: []string{unlimited, withBytes}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
				js, err := jetstream.New(nc)
				require.NoError(t, err)
				s.Answer(update, append(tt.answers, noStream)...)
				got, err := UpdateStream(t.Context(), js, have, jetstream.StreamConfig{Name: "W", MaxBytes: -1, MaxConsumers: -1})
				require.Equal(t, tt.sent, limitsSent(t, s, update))
				if tt.refused {
					require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
					require.Equal(t, have, got)
					return
				}
				require.NoError(t, err)
				require.Equal(t, "made", got.Description, "what the server made of it")
			})
		})
	}
}

// limitsSent are max_bytes and max_consumers of each configuration that was sent.
func limitsSent(t *testing.T, s *script.Server, subject string) (found []string) {
	t.Helper()
	for _, m := range s.Sent(subject) {
		var c jetstream.StreamConfig
		require.NoError(t, json.Unmarshal(m.Data, &c))
		found = append(found, fmt.Sprintf("%d/%d", c.MaxBytes, c.MaxConsumers))
	}
	return found
}
