package notify

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

const ackReply = "$JS.ACK.evenkeel_work.widgets.1.7.1.1767323045000000000.0"

// delivery is a notification with sequence 7 that has just come.
func delivery(c *Consumer) *Delivery {
	return &Delivery{
		Kind: "widgets", Name: "a", c: c, msg: &nats.Msg{Subject: fresh, Reply: ackReply}, seq: 7,
		received: time.Now(), connects: c.nc.Stats().Reconnects,
	}
}

func sleepFor(d time.Duration) { <-time.After(d) }

// The sequence may be another object's after the connection was away or time has passed: see TestTakeFromARestoredStream… in
// internal/e2e. In between, a look at each Take would cost a round trip.
func TestTakeLooksFirstWhenTheSequenceMayBeAnothers(t *testing.T) {
	for name, tt := range map[string]struct {
		after  time.Duration
		before bool // it was handed out before
		cut    bool
		answer string
		looks  int
		acks   int
		err    string
	}{
		"at once":                           {acks: 1},
		"just before it is uncertain":       {after: certainFor - 1, acks: 1},
		"late, and it is still there":       {after: certainFor, answer: script.Stored(fresh, 7, nil, ""), looks: 1, acks: 1},
		"late, and it is gone":              {after: certainFor, answer: noMessage, looks: 1, err: ErrGone.Error()},
		"late, and there is a newer one":    {after: certainFor, answer: script.Stored(fresh, 9, nil, ""), looks: 1, err: ErrGone.Error()},
		"handed out again":                  {before: true, answer: script.Stored(fresh, 7, nil, ""), looks: 1, acks: 1},
		"handed out again, and gone":        {before: true, answer: noMessage, looks: 1, err: ErrGone.Error()},
		"late, and the server cannot say":   {after: certainFor, answer: unavailable, looks: 1, err: "take notification of widgets/a: "},
		"the connection was away":           {cut: true, answer: script.Stored(fresh, 7, nil, ""), looks: 1, acks: 1},
		"the connection was away, and gone": {cut: true, answer: noMessage, looks: 1, err: ErrGone.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
				c, _ := consumer(t, s, nc)
				s.Answer(getMessage, tt.answer)
				s.Answer("$JS.ACK.", "")
				d := delivery(c)
				if tt.before {
					d.Attempts = 2
				}
				if tt.cut {
					cut(s, nc)
				}
				sleepFor(tt.after)
				err := d.Take(t.Context())
				if tt.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.err)
				}
				require.Len(t, s.Sent(getMessage), tt.looks)
				acks := s.Sent(ackReply)
				require.Len(t, acks, tt.acks)
				for _, m := range acks {
					require.Equal(t, "+ACK", string(m.Data))
					require.NotEmpty(t, m.Reply, "it is confirmed")
				}
			})
		})
	}
}

// In a cluster the confirmation of an ack comes before the message is gone.
func TestTakeDeletesThroughTheLeaderWhereTheStreamMayBeReplicated(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		require.False(t, c.clustered())
		c.replicated.Store(true)
		require.True(t, c.clustered())
		s.Answer(deleteMessage, `{"success":true}`, noMessage, unavailable)
		require.NoError(t, delivery(c).Take(t.Context()))
		require.NoError(t, delivery(c).Take(t.Context()), "gone is gone")
		require.ErrorContains(t, delivery(c).Take(t.Context()), "take notification of widgets/a: ")
		require.Empty(t, s.Sent("$JS.ACK."))
		sent := s.Sent(deleteMessage + "evenkeel_work")
		require.Len(t, sent, 3)
		require.JSONEq(t, `{"seq":7,"no_erase":true}`, string(sent[0].Data))
	})
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		s.Say(`INFO {"server_id":"script","version":"2.15.2","proto":1,"headers":true,"cluster":"c","max_payload":1048576}`)
		synctest.Wait()
		require.True(t, c.clustered(), "a stream of one server may become replicated at any time")
	})
}

func TestHoldAndReturnDoNotWaitForTheServer(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		d := delivery(c)
		require.NoError(t, d.Hold())
		require.NoError(t, d.Return())
		synctest.Wait()
		sent := s.Sent(ackReply)
		require.Len(t, sent, 2)
		require.Equal(t, "+WPI", string(sent[0].Data))
		require.Equal(t, "-NAK", string(sent[1].Data))
		require.Empty(t, sent[0].Reply+sent[1].Reply)
		nc.Close()
		require.ErrorContains(t, d.Hold(), "hold notification of widgets/a: ")
		require.ErrorContains(t, d.Return(), "return notification of widgets/a: ")
	})
}

func TestAgainSaysHowManyTurnsWereGivenUp(t *testing.T) {
	require.Equal(t, nats.Header{"Evenkeel-Reason": {"died"}, "Evenkeel-Given-Up": {"3"}}, Again("died", 3))
}
