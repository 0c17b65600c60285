package notify

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

const asideSubject = "evenkeel.x.widgets"

// settingAside starts what sets messages aside.
func settingAside(t *testing.T, c *Consumer) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.setAsideAlways(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// The record says all that there is to know, and is stored before the message is removed.
func TestSetAsideKeepsTheMessageAndWhy(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, h := consumer(t, s, nc)
		s.Answer("evenkeel.", stored)
		s.Answer("$JS.ACK.", "")
		defer settingAside(t, c)()
		m := pulled("widgets", "evenkeel.n.widgets.3.a", 0)
		m.Header, m.Data = nats.Header{"Traceparent": {"x", "y"}, "Other": {"z"}}, []byte("body")
		c.poisoned(m, errors.New("wrong shard"))
		synctest.Wait()
		sent := s.Sent("")[1:]
		require.Len(t, sent, 2)
		require.Equal(t, asideSubject, sent[0].Subject)
		require.Equal(t, nats.Header{
			"Original-Traceparent": {"x", "y"}, "Original-Other": {"z"}, "Evenkeel-Subject": {"evenkeel.n.widgets.3.a"}, "Evenkeel-Why": {"wrong shard"},
			"Evenkeel-At": {time.Now().UTC().Format(time.RFC3339Nano)},
		}, sent[0].Header)
		require.Equal(t, "body", string(sent[0].Data))
		require.Equal(t, m.Reply, sent[1].Subject)
		require.Equal(t, "+ACK", string(sent[1].Data))
		errs, _, _ := h.drain()
		require.Equal(t, []string{"read notification: wrong shard"}, errs)
	})
}

// A message that cannot be stored is not removed; a server that refuses is not asked in a loop.
func TestSetAsideThatFailsIsTriedWithGrowingPauses(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, h := consumer(t, s, nc)
		s.Answer("evenkeel.", unavailable)
		s.Answer("$JS.ACK.", "")
		stop := settingAside(t, c)
		start := time.Now()
		put := func(n int) {
			for range n {
				c.poisoned(pulled("widgets", "x", 0), errors.New("no subject"))
			}
		}
		put(20)
		var at []time.Duration
		for known := 0; known < 12; sleepFor(time.Millisecond) {
			synctest.Wait()
			if n := len(s.Sent(asideSubject)); n > known {
				known = n
				at = append(at, time.Since(start).Round(time.Millisecond))
			}
		}
		const ms = time.Millisecond
		require.Equal(t, []time.Duration{0, 50 * ms, 150 * ms, 350 * ms, 750 * ms, 1550 * ms, 3150 * ms, 5150 * ms, 7150 * ms}, at[:9])
		require.Empty(t, s.Sent("$JS.ACK."))
		errs, missing, _ := h.drain()
		require.Len(t, errs, 4, "each trouble at once and after ten seconds: %v", errs)
		require.Contains(t, errs[1], "set aside: set aside x: ")
		require.Zero(t, missing)

		s.Answer("evenkeel.", stored)
		sleepFor(2 * time.Second)
		require.Len(t, s.Sent("$JS.ACK."), 8, "what is left goes at once")

		s.Answer("evenkeel.", script.NoResponders, stored)
		put(2)
		sleepFor(errorPause - 1)
		require.Len(t, s.Sent(asideSubject), 21, "the pause begins anew")
		_, missing, _ = h.drain()
		require.Equal(t, 1, missing, "nothing takes the record: the stream is gone")
		sleepFor(1)
		synctest.Wait()
		require.Len(t, s.Sent(asideSubject), 22)

		s.Answer("$JS.ACK.", script.Silence)
		sleepFor(time.Minute)
		h.drain()
		put(1)
		sleepFor(20 * time.Second)
		errs, _, _ = h.drain()
		require.Len(t, errs, 2)
		require.Contains(t, errs[1], "remove x, which is set aside: ")

		s.Answer("evenkeel.", script.Silence)
		sleepFor(time.Hour)
		put(2)
		synctest.Wait()
		h.drain()
		stop()
		errs, _, _ = h.drain()
		require.Empty(t, errs, "a stop is no trouble")
	})
}
