package notify

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// asking is a puller with these pulls open, which expire in a second and a half.
func asking(c *Consumer, open map[uint64]request) *puller {
	p := newPuller(c, "_INBOX.x")
	for id, r := range open {
		r.expires = time.Now().Add(pullExpires + pullGrace)
		p.open[id] = &r
	}
	return p
}

// opened are the ids of the open pulls.
func opened(p *puller) (ids []uint64) {
	for id := range p.open {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// pulled is a message that a consumer delivers.
func pulled(consumer, subject string, pending int) *nats.Msg {
	return &nats.Msg{
		Subject: subject, Header: nats.Header{}, Sub: new(nats.Subscription),
		Reply: "$JS.ACK.evenkeel_work." + consumer + ".3.7.1.1767323045000000000." + strconv.Itoa(pending),
	}
}

// statusOf is what the server says of a pull instead of a message.
func statusOf(id uint64, status, description string) *nats.Msg {
	return &nats.Msg{
		Subject: "_INBOX.x." + strconv.FormatUint(id, 10),
		Header:  nats.Header{"Status": {status}, "Description": {description}},
	}
}

// A message counts for the oldest pull of its lane, whose place is free when the pull is full.
func TestMessageEndsItsPull(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, h := consumer(t, s, nc)
		var got []*Delivery
		c.handle = func(d *Delivery) { got = append(got, d) }
		p := asking(c, map[uint64]request{
			4: {lane: laneFresh, left: 1}, 2: {lane: laneFresh, left: 2}, 1: {lane: laneLater, left: 1}, 3: {lane: laneLater, left: 1},
		})

		p.receive(t.Context(), pulled("widgets", fresh, 9))
		require.Equal(t, []uint64{1, 2, 3, 4}, opened(p))
		require.Equal(t, 4, p.asked())
		p.receive(t.Context(), pulled("widgets", fresh, 8))
		require.Equal(t, []uint64{1, 3, 4}, opened(p))
		p.receive(t.Context(), pulled("widgets_later", later, 5))
		require.Equal(t, []uint64{3, 4}, opened(p))
		require.EqualValues(t, 8, p.lanes[laneFresh].backlog)
		require.EqualValues(t, 5, p.lanes[laneLater].backlog)

		clear(p.open)
		p.receive(t.Context(), pulled("widgets", fresh, 0))
		require.Len(t, got, 4, "one whose pull is forgotten is handled all the same")
		require.True(t, got[0].Asked && got[1].Asked && !got[2].Asked)
		require.Equal(t, "widgets", got[0].Kind)
		require.Equal(t, "a", got[0].Name)
		require.EqualValues(t, 3, got[0].Attempts)
		require.EqualValues(t, 7, got[0].seq)
		require.True(t, got[0].At.Equal(time.Unix(1767323045, 0)))
		require.Equal(t, time.Now(), got[0].received)

		bad := pulled("widgets", fresh, 0)
		bad.Reply = "x"
		p.receive(t.Context(), bad)
		errs, _, _ := h.drain()
		require.Len(t, errs, 1)
		require.Contains(t, errs[0], "read notification: "+fresh)
		bad.Reply = ""
		sleepFor(10 * time.Second) // or it would be the same trouble
		p.receive(t.Context(), bad)
		require.Len(t, got, 4)
		errs, _, _ = h.drain()
		require.Len(t, errs, 1)
	})
}

// The server serves the pulls of one consumer in the order in which they came.
func TestMessageCountsForTheOldestPullOfItsLane(t *testing.T) {
	p := &puller{open: map[uint64]*request{}}
	for id := range uint64(40) {
		p.open[id+10] = &request{lane: int(id+1) % 2}
	}
	require.EqualValues(t, 11, p.oldest(pulled("widgets", fresh, 0)))
	require.EqualValues(t, 10, p.oldest(pulled("widgets_later", later, 0)))
}

func TestStatusEndsItsPull(t *testing.T) {
	const gone = "the stream or its consumer is gone, or JetStream is not enabled"
	for name, tt := range map[string]struct {
		status, description string
		backlog             uint64
		rests               bool
		err                 string
		missing             int
	}{
		"nothing there":        {status: "404", description: "No Messages"},
		"nothing came":         {status: "408", description: "Request Timeout"},
		"a heartbeat":          {status: "100", backlog: 7},
		"too many pulls":       {status: "409", description: "Exceeded MaxWaiting", backlog: 7, rests: true, err: "the server says 409 Exceeded MaxWaiting"},
		"no one listens":       {status: "503", backlog: 7, rests: true, err: gone, missing: 1},
		"the consumer is gone": {status: "409", description: "Consumer Deleted", backlog: 7, rests: true, err: gone, missing: 1},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
				c, h := consumer(t, s, nc)
				c.handle = func(*Delivery) { t.Error("no notification") }
				p := asking(c, map[uint64]request{1: {lane: laneLater, left: 3}, 12: {lane: laneFresh, left: 3}})
				p.lanes[laneFresh].backlog, p.lanes[laneLater].backlog = 7, 7
				p.receive(t.Context(), statusOf(12, tt.status, tt.description))
				require.Equal(t, []uint64{1}, opened(p))
				require.Equal(t, tt.backlog, p.lanes[laneFresh].backlog)
				require.EqualValues(t, 7, p.lanes[laneLater].backlog)
				require.Equal(t, tt.rests, p.lanes[laneFresh].rest.After(time.Now()))
				require.False(t, p.lanes[laneLater].rest.After(time.Now()))
				errs, missing, _ := h.drain()
				require.Equal(t, tt.missing, missing)
				if tt.err == "" {
					require.Empty(t, errs)
				} else {
					require.Len(t, errs, 1)
					require.Contains(t, errs[0], "pull: $JS.API.CONSUMER.MSG.NEXT.evenkeel_work.widgets: ")
					require.Contains(t, errs[0], tt.err)
				}
				p.receive(t.Context(), statusOf(12, tt.status, tt.description))
				again, missing, _ := h.drain()
				require.Empty(t, again, "a pull that is forgotten says nothing")
				require.Zero(t, missing)
			})
		})
	}
}

// A message may carry the header Status of whoever published it. It is a message all the same.
func TestMessageWithAHeaderStatusIsAMessage(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		got := 0
		c.handle = func(*Delivery) { got++ }
		for _, data := range []string{"", "body"} {
			m := pulled("widgets", fresh, 0)
			m.Header.Set("Status", "404")
			m.Data = []byte(data)
			asking(c, nil).receive(t.Context(), m)
		}
		require.Equal(t, 2, got)
	})
}

// A kind is not served when three pulls in a row failed, and served again with the first one that is answered. The pauses grow
// up to two seconds.
func TestLaneThatFailsRestsEverLonger(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		p := newPuller(c, "_INBOX.x")
		failure := errors.New("refused")
		now := time.Now()
		var pauses []time.Duration
		for i := range 15 {
			p.failed(now, laneFresh, failure)
			pauses = append(pauses, p.lanes[laneFresh].rest.Sub(now))
			require.Equal(t, i >= 2, c.Err() != nil, "after %d", i+1)
		}
		const ms = time.Millisecond
		require.Equal(t, []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms}, pauses[:6])
		for _, p := range pauses[6:] {
			require.Equal(t, 2*time.Second, p)
		}
		require.Equal(t, failure, c.Err())
		p.answered(laneLater)
		require.Equal(t, failure, c.Err(), "the other lane says nothing of this one")
		p.answered(laneFresh)
		require.NoError(t, c.Err())
		for range 3 {
			p.failed(now, laneFresh, failure)
		}
		require.Equal(t, failure, c.Err())
		c.handle = func(*Delivery) {}
		p.receive(t.Context(), pulled("widgets", fresh, 0))
		require.NoError(t, c.Err(), "a message is an answer")
		p.failed(now, laneFresh, failure)
		require.NoError(t, c.Err(), "it counts from none")
		require.Equal(t, 50*ms, p.lanes[laneFresh].rest.Sub(now))

		for range 3 {
			p.failed(now, laneLater, failure)
		}
		require.Equal(t, failure, c.Err(), "either lane")
		p.receive(t.Context(), statusOf(1, "404", ""))
		require.Equal(t, failure, c.Err(), "nobody knows whose pull that was")
		p.open[1] = &request{lane: laneLater, left: 1}
		p.receive(t.Context(), statusOf(1, "408", ""))
		require.NoError(t, c.Err())
	})
}

// A right that is missing shows as silence: nothing else tells the operator.
func TestPullsThatNobodyAnswersAreReported(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, h := consumer(t, s, nc)
		p := newPuller(c, "_INBOX.x")
		lose := func() {
			p.open[1] = &request{lane: laneFresh, left: 1, expires: time.Now().Add(time.Second)}
			p.expire(time.Now().Add(time.Second - 1))
			require.Len(t, p.open, 1, "it may still come")
			p.expire(time.Now().Add(time.Second))
			require.Empty(t, p.open)
		}
		lose()
		lose()
		require.NoError(t, c.Err(), "a leader may be lost with two")
		lose()
		require.ErrorContains(t, c.Err(), "$JS.API.CONSUMER.MSG.NEXT.evenkeel_work.widgets: no answer to 3 pulls: the NATS user needs the right to publish")
		require.ErrorContains(t, c.Err(), "subscribe to _INBOX.x.>")
		require.NotContains(t, c.Err().Error(), "the connection was told", "which it was not")
		errs, _, _ := h.drain()
		require.Len(t, errs, 1)
		lose()
		errs, _, _ = h.drain()
		require.Empty(t, errs, "once")

		s.Say(`-ERR 'Permissions Violation for Publish to "$JS.API.CONSUMER.MSG.NEXT.evenkeel_work.widgets"'`)
		sleepFor(time.Second)
		lose()
		require.ErrorContains(t, c.Err(), "the connection was told: ")
		require.ErrorIs(t, c.Err(), nats.ErrPermissionViolation)
	})
}

// What went down with a connection says nothing of the server, in either lane.
func TestPullsThatWentDownWithTheConnectionDoNotCount(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		p := newPuller(c, "_INBOX.x")
		ask := func() {
			p.send(time.Now(), laneFresh, 1, 0)
			p.send(time.Now(), laneLater, 1, 0)
		}
		expire := func() {
			sleepFor(pullGrace)
			p.expire(time.Now())
			require.Empty(t, p.open)
		}
		for range 2 {
			ask()
			expire()
		}
		ask()
		cut(s, nc)
		expire()
		require.NoError(t, c.Err())
		for range 2 {
			ask()
			expire()
		}
		require.NoError(t, c.Err(), "the count has begun anew")
		ask()
		s.Cut()
		synctest.Wait()
		expire()
		require.NoError(t, c.Err(), "while there is no connection")
		s.SetDown(false)
		sleepFor(time.Second)
		for range 2 {
			ask()
			expire()
		}
		require.NoError(t, c.Err())
		ask()
		expire()
		require.ErrorContains(t, c.Err(), "no answer to 3 pulls")
	})
}

// A notification is work of this kind, of an object that may exist. Everything else is set aside: it would come back for ever.
func TestWhatIsNoNotificationIsSetAside(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		c.handle = func(d *Delivery) { t.Errorf("handed out %s/%s", d.Kind, d.Name) }
		p := newPuller(c, "_INBOX.x")
		for subj, why := range map[string]string{
			"evenkeel.n.widgets.2.a.b":    "want evenkeel.(n|r).kind.shard.name",
			"evenkeel.n.widgets.3.a":      `shard "3"`,
			testNames.Fresh("gears", "a"): "kind gears on a consumer of widgets",
		} {
			p.receive(t.Context(), pulled("widgets", subj, 0))
			require.Len(t, c.poison, 1)
			require.ErrorContains(t, (<-c.poison).why, why)
		}
		for range maxPoison + 1 {
			p.receive(t.Context(), pulled("widgets", "x", 0))
		}
		require.Len(t, c.poison, maxPoison, "what is too much comes back later: the pull loop does not wait")
	})
}

func TestLookThatIsOwedSinceATurnBeforeIsAsked(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		var got *Delivery
		c.handle = func(d *Delivery) { got = d }
		for value, givenUp := range map[string]int{"": 0, "1": 1, "2": 2, "x": 0} {
			m := pulled("widgets_later", later, 0)
			m.Header.Set(headerGivenUp, value)
			m.Header.Set(headerReason, "why")
			newPuller(c, "_INBOX.x").receive(t.Context(), m)
			require.Equal(t, givenUp, got.GivenUp)
			require.Equal(t, givenUp > 0, got.Asked)
			require.Equal(t, "why", got.Reason)
			require.Equal(t, m.Header, got.Header)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got = nil
		m := pulled("widgets", fresh, 0)
		newPuller(c, "_INBOX.x").receive(ctx, m)
		require.Nil(t, got, "after a stop nothing is handed out")
	})
}
