package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// at5to9 is a consumer whose ack floor is 5 and that has delivered up to 9.
func at5to9(filter, more string) string {
	return `{"ack_floor":{"stream_seq":5},"delivered":{"stream_seq":9},"config":{"filter_subject":"` + filter +
		`","ack_wait":10000000000,"max_ack_pending":-1,"max_deliver":-1` + more + `}}`
}

// reviving is a consumer with a fresh lane that the given messages stand in, and a later one without any.
func reviving(t *testing.T, stored ...string) (*Consumer, *heard, *script.Server) {
	t.Helper()
	s, nc := script.New(t)
	c, h := consumer(t, s, nc)
	s.Answer("evenkeel.", `{"stream":"evenkeel_work","seq":20}`)
	s.Answer(consumerInfo, at5to9("evenkeel.n.widgets.>", ""))
	s.Answer(laterInfo, at5to9("evenkeel.r.widgets.>", ""))
	round := append([]string{script.Stored("evenkeel.sentinel", 1, nil, "")}, stored...)
	round = append(round, noMessage, script.Stored("evenkeel.sentinel", 1, nil, ""), noMessage)
	var answers []string
	for range 4 {
		answers = append(answers, round...)
	}
	s.Answer(getMessage, answers...)
	return c, h, s
}

func free(context.Context, string, string) (bool, error) { return false, nil }

// Below the ack floor nothing is in flight: a notification there is lost, and keeps others out.
func TestReviveQueuesAgainWhatIsBelowTheAckFloor(t *testing.T) {
	scripted(t, func(t *testing.T, _ *script.Server, _ *nats.Conn) {
		c, _, s := reviving(t)
		s.Answer(getMessage, noMessage,
			script.Stored(fresh, 4, nats.Header{headerReason: {"changed"}}, "body"),
			script.Stored("evenkeel.n.widgets.9.x", 5, nil, ""),
			script.Stored("evenkeel.n.widgets.9.y", 10, nil, ""), noMessage, noMessage)
		s.Answer("evenkeel.n.widgets.9.x", wrongSequence) // it has been replaced meanwhile
		n, err := c.Revive(t.Context(), free)
		require.NoError(t, err)
		require.Equal(t, 1, n, "another replica has replaced one")
		sent := s.Sent("evenkeel.")
		require.Len(t, sent, 2, "what is not delivered yet is left alone")
		require.Equal(t, fresh, sent[0].Subject)
		require.Equal(t, nats.Header{
			"Nats-Expected-Last-Subject-Sequence": {"4"}, headerReason: {"changed"}, headerGivenUp: {"1"},
		}, sent[0].Header)
		require.Equal(t, "body", string(sent[0].Data))
	})
}

// Above the floor it may be in flight: only what two looks see, further apart than the ack wait, is lost, if its lock is free.
func TestReviveWaitsForWhatMayBeInFlight(t *testing.T) {
	held, heldErr := false, error(nil)
	for name, tt := range map[string]struct {
		wait    time.Duration
		held    bool
		err     error
		revived int
	}{
		"too soon":         {wait: AckWait},
		"long enough":      {wait: AckWait + 1, revived: 1},
		"its lock is held": {wait: AckWait + 1, held: true},
		"nobody knows":     {wait: AckWait + 1, err: errors.New("no answer")},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, _ *script.Server, _ *nats.Conn) {
				c, h, s := reviving(t)
				var answers []string
				for range 3 {
					answers = append(answers, noMessage, script.Stored("evenkeel.n.widgets.9.bad", 8, nil, ""), script.Stored(fresh, 9, nil, ""),
						script.Stored(testNames.Fresh("widgets", "b"), 10, nil, ""), noMessage, noMessage) // b is not delivered yet
				}
				s.Answer(getMessage, answers...)
				asked := 0
				lock := func(_ context.Context, kind, name string) (bool, error) {
					asked++
					require.Equal(t, "widgets/a", kind+"/"+name)
					return held, heldErr
				}
				held, heldErr = tt.held, tt.err
				n, err := c.Revive(t.Context(), lock)
				require.NoError(t, err)
				require.Zero(t, n)
				require.Zero(t, asked)
				sleepFor(tt.wait / 2)
				n, err = c.Revive(t.Context(), lock)
				require.NoError(t, err)
				require.Zero(t, n, "it counts from the first look")
				sleepFor(tt.wait - tt.wait/2)
				n, err = c.Revive(t.Context(), lock)
				require.NoError(t, err)
				require.Equal(t, tt.revived, n)
				require.Len(t, s.Sent("evenkeel."), tt.revived)
				errs, _, _ := h.drain()
				if tt.err != nil {
					require.Equal(t, []string{"look for the lock of a notification: a: no answer"}, errs)
				} else {
					require.Empty(t, errs)
				}
			})
		})
	}
}

// What has gone in between is forgotten: a stream that was restored gives sequences twice.
func TestReviveForgetsWhatItDoesNotSeeAgain(t *testing.T) {
	scripted(t, func(t *testing.T, _ *script.Server, _ *nats.Conn) {
		c, _, s := reviving(t, script.Stored(fresh, 6, nil, ""))
		look := func() int {
			n, err := c.Revive(t.Context(), free)
			require.NoError(t, err)
			sleepFor(AckWait + 1)
			return n
		}
		there := []string{noMessage, script.Stored(fresh, 6, nil, ""), noMessage, noMessage, noMessage}
		gone := []string{noMessage, noMessage, noMessage, noMessage}
		s.Answer(getMessage, there...)
		require.Zero(t, look())
		s.Answer(getMessage, gone...)
		require.Zero(t, look())
		s.Answer(getMessage, there...)
		require.Zero(t, look())
		s.Answer(getMessage, there...)
		require.Equal(t, 1, look())
	})
}

// The first message of the stream is read by itself: a search from there on is slow.
func TestReviveLooksAtTheFirstMessageByItself(t *testing.T) {
	scripted(t, func(t *testing.T, _ *script.Server, _ *nats.Conn) {
		c, _, s := reviving(t)
		s.Answer(streamInfoOf, `{"state":{"first_seq":3}}`)
		s.Answer(getMessage, script.Stored(fresh, 3, nil, ""), script.Stored(fresh, 4, nil, ""), noMessage, script.Stored(fresh, 3, nil, ""), noMessage)
		n, err := c.Revive(t.Context(), free)
		require.NoError(t, err)
		require.Equal(t, 2, n, "one of the other lane is not its own")
		var asked []string
		for _, m := range s.Sent(getMessage) {
			asked = append(asked, string(m.Data))
		}
		next := func(lane string, sequence int) string {
			b, err := json.Marshal(map[string]any{"seq": sequence, "next_by_subj": "evenkeel." + lane + ".widgets.>"})
			require.NoError(t, err)
			return string(b)
		}
		require.Equal(t, []string{`{"seq":3}`, next("n", 4), next("n", 5), `{"seq":3}`, next("r", 4)}, asked)
	})
}

func TestReviveReportsWhatFails(t *testing.T) {
	sentinel := script.Stored("evenkeel.sentinel", 1, nil, "")
	for name, change := range map[string]func(s *script.Server){
		"consumer":       func(s *script.Server) { s.Answer(consumerInfo, unavailable) },
		"later consumer": func(s *script.Server) { s.Answer(laterInfo, unavailable) },
		"stream":         func(s *script.Server) { s.Answer(streamInfoOf, unavailable) },
		"first message":  func(s *script.Server) { s.Answer(getMessage, unavailable) },
		"next message":   func(s *script.Server) { s.Answer(getMessage, sentinel, unavailable) },
		"publish":        func(s *script.Server) { s.Answer("evenkeel.", unavailable) },
		"second publish": func(s *script.Server) { s.Answer("evenkeel.", stored, unavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, _ *script.Server, _ *nats.Conn) {
				c, _, s := reviving(t, script.Stored(fresh, 4, nil, ""), script.Stored(fresh, 5, nil, ""))
				change(s)
				n, err := c.Revive(t.Context(), free)
				require.ErrorContains(t, err, "notify: look for notifications of widgets that are not delivered: ")
				want := 0
				switch name {
				case "second publish":
					want = 1
				case "later consumer":
					want = 2
				}
				require.Equal(t, want, n)
			})
		})
	}
}

// A consumer that was changed is told once for each change, and again if it was right in between.
func TestReviveTellsOfAConsumerThatWasChanged(t *testing.T) {
	scripted(t, func(t *testing.T, _ *script.Server, _ *nats.Conn) {
		c, h, s := reviving(t)
		s.Answer(getMessage, noMessage)
		look := func(more string) []string {
			s.Answer(consumerInfo, at5to9("evenkeel.n.widgets.>", more))
			_, err := c.Revive(t.Context(), free)
			require.NoError(t, err)
			_, _, changed := h.drain()
			return changed
		}
		require.Empty(t, look(""))
		limited := []string{"consumer widgets of stream evenkeel_work was changed: it has max_deliver 5 instead of -1"}
		require.Equal(t, limited, look(`,"max_deliver":5`))
		require.Empty(t, look(`,"max_deliver":5`))
		require.Empty(t, look(""))
		require.Equal(t, limited, look(`,"max_deliver":5`))
	})
}

// An operator who has paused a consumer and forgotten it is told, not overruled.
func TestReviveTellsOfAPauseWhenItBegins(t *testing.T) {
	scripted(t, func(t *testing.T, _ *script.Server, _ *nats.Conn) {
		c, h, s := reviving(t)
		s.Answer(getMessage, noMessage)
		look := func(paused bool, until string) []string {
			s.Answer(laterInfo, fmt.Sprintf(`{"paused":%t,%s`, paused, at5to9("evenkeel.r.widgets.>", until)[1:]))
			_, err := c.Revive(t.Context(), free)
			require.NoError(t, err)
			errs, _, changed := h.drain()
			require.Empty(t, changed)
			return errs
		}
		const until = `,"pause_until":"2026-01-02T03:04:05+01:00"`
		want := []string{"look at the consumer: consumer widgets_later of stream evenkeel_work is paused until 2026-01-02T02:04:05Z, and requeues and resync of " +
			"widgets wait for that: to end it, nats consumer resume evenkeel_work widgets_later"}
		require.Empty(t, look(false, until))
		require.Equal(t, want, look(true, until))
		require.Empty(t, look(true, until))
		require.Empty(t, look(false, until))
		require.Equal(t, want, look(true, until))
		require.Empty(t, look(false, ""))
		require.Empty(t, look(true, ""), "until when is not known")
	})
}
