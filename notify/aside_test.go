package notify

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

const getAside = "$JS.API.STREAM.MSG.GET.evenkeel_history"

func TestListAsideReadsEachRecordOnce(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		s.Answer(streamInfoOf, `{"config":{"name":"evenkeel_history"}}`)
		s.Answer(getAside,
			script.Stored("evenkeel.x.widgets", 3, nats.Header{headerSubject: {"x"}, headerWhy: {"no name"}, headerAt: {"2026-01-02T03:04:05.6Z"}}, "body"),
			script.Stored("evenkeel.x.widgets", 8, nil, ""), noMessage)
		records, err := ListAside(t.Context(), nc, Config{}, "widgets")
		require.NoError(t, err)
		require.Equal(t, []Aside{
			{Sequence: 3, Subject: "x", Why: "no name", At: time.Date(2026, 1, 2, 3, 4, 5, 6e8, time.UTC), Data: []byte("body")},
			{Sequence: 8, Data: []byte{}},
		}, records)
		var from []uint64
		for _, m := range s.Sent(getAside) {
			var req struct {
				Seq    uint64 `json:"seq"`
				Filter string `json:"next_by_subj"`
			}
			require.NoError(t, json.Unmarshal(m.Data, &req))
			require.Equal(t, "evenkeel.x.widgets", req.Filter)
			from = append(from, req.Seq)
		}
		require.Equal(t, []uint64{1, 4, 9}, from)
	})
}

// An error must not look like an empty list: nobody would know that something was set aside.
func TestListAsideThatFailsReturnsNoList(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		s.Answer(streamInfoOf, noStream)
		_, err := ListAside(t.Context(), nc, Config{}, "widgets")
		require.ErrorContains(t, err, "look at stream evenkeel_history")

		s.Answer(streamInfoOf, `{"config":{"name":"evenkeel_history"}}`)
		s.Answer(getAside, script.Stored("evenkeel.x.widgets", 3, nil, ""), unavailable)
		records, err := ListAside(t.Context(), nc, Config{}, "widgets")
		require.ErrorContains(t, err, "list what is set aside of widgets")
		require.Nil(t, records)
	})
}

func TestDropAsideOfWhatIsGoneIsNoError(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		s.Answer(deleteMessage, `{"success":true}`, noMessage, unavailable)
		require.NoError(t, DropAside(t.Context(), nc, Config{}, 5))
		require.NoError(t, DropAside(t.Context(), nc, Config{}, 5))
		require.ErrorContains(t, DropAside(t.Context(), nc, Config{}, 5), "drop record 5")
		sent := s.Sent(deleteMessage + "evenkeel_history")
		require.Len(t, sent, 3)
		require.JSONEq(t, `{"seq":5,"no_erase":true}`, string(sent[0].Data))
	})
}
