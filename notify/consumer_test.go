package notify

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

const nextMessage = "$JS.API.CONSUMER.MSG.NEXT.evenkeel_work.widgets"

func TestNewConsumerNeedsNothingButKindAndWorkers(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		cfg := ConsumerConfig{Kind: "widgets", MaxFree: 1, Free: func() int { return 1 }}
		s.Answer(streamInfoOf, unavailable)
		_, err := NewConsumer(t.Context(), nc, cfg)
		require.ErrorContains(t, err, "look at stream evenkeel_work: ")
		s.Answer(streamInfoOf, `{"created":"2026-01-02T03:04:05Z","config":{"num_replicas":2},"state":{"first_seq":4}}`)
		c, err := NewConsumer(t.Context(), nc, cfg)
		require.NoError(t, err)
		require.True(t, c.clustered())
		require.Equal(t, seen{created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), first: 4, replicas: 2}, c.opened)
		c.cfg.OnError("", nil)
		c.cfg.OnMissing()
		c.cfg.OnChanged("")
	})
}

// Trouble that goes on is told at once, after ten seconds, and then ever more rarely.
func TestReportsOfOneTroubleGrowRarer(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, h := consumer(t, s, nc)
		told := func() int {
			c.report("pull", "x", errors.New("no"))
			errs, _, _ := h.drain()
			return len(errs)
		}
		require.Equal(t, 1, told())
		sleepFor(10*time.Second - 1)
		require.Zero(t, told())
		sleepFor(1)
		require.Equal(t, 1, told())
		c.report("pull", "y", errors.New("no"))
		c.report("look", "x", errors.New("no"))
		errs, _, _ := h.drain()
		require.Equal(t, []string{"pull: no", "look: no"}, errs, "others are told")
		times := 0
		for range 3600 {
			sleepFor(time.Second)
			times += told()
		}
		require.InDelta(t, 10, times, 2, "up to ten minutes")
	})
}

func TestLaterCountsTheLaneBehindTheChanges(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		s.Answer(consumerInfo, `{"num_pending":5}`)
		s.Answer(laterInfo, `{"num_pending":17}`, unavailable)
		n, err := c.Later(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 17, n)
		n, err = c.Later(t.Context())
		require.ErrorContains(t, err, "notify: ")
		require.Zero(t, n)
	})
}

// started is a consumer that runs.
type started struct {
	c    *Consumer
	s    *script.Server
	nc   *nats.Conn
	free int // read by the pull loop: set it while that waits
	got  chan *Delivery
	stop func() // waits for the end
}

func start(t *testing.T, s *script.Server, nc *nats.Conn) *started {
	t.Helper()
	r := &started{s: s, nc: nc, free: 4, got: make(chan *Delivery, 100)}
	r.c, _ = consumer(t, s, nc)
	r.c.cfg.Free = func() int { return r.free }
	s.Answer(nextMessage, script.Silence)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		err := r.c.Run(ctx, func(d *Delivery) { r.got <- d })
		if ctx.Err() == nil {
			t.Error("Run has returned before the stop")
		}
		done <- err
	}()
	r.stop = func() {
		cancel()
		require.NoError(t, <-done)
	}
	synctest.Wait()
	return r
}

// pulls are those that were sent, without what comes before the lane: "widgets {…}".
func (r *started) pulls() (found []string) {
	for _, m := range r.s.Sent(nextMessage) {
		found = append(found, strings.TrimPrefix(m.Subject, "$JS.API.CONSUMER.MSG.NEXT.evenkeel_work.")+" "+string(m.Data))
	}
	return found
}

// inbox is where the answers to the pull number i go.
func (r *started) inbox(i int) string { return r.s.Sent(nextMessage)[i].Reply }

// An idle kind keeps one pull in each lane and asks again when the server should have answered.
func TestPullsAsManyAsThereAreFreeWorkers(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		r := start(t, s, nc)
		require.Equal(t, []string{
			`widgets_later {"batch":1,"expires":1000000000}`, `widgets {"batch":3,"expires":1000000000}`,
		}, r.pulls())
		r.c.Wake()
		r.c.Wake()
		sleepFor(pullExpires + pullGrace - 1)
		require.Len(t, r.pulls(), 2, "the workers are spoken for")
		sleepFor(1)
		synctest.Wait()
		require.Len(t, r.pulls(), 4, "it counts as lost")

		for _, i := range []int{2, 3} {
			s.Deliver(r.inbox(i), &nats.Msg{Subject: r.inbox(i), Header: nats.Header{"Status": {"408"}}})
		}
		synctest.Wait()
		require.Len(t, r.pulls(), 6, "at once")
		r.free = 0
		for _, i := range []int{4, 5} {
			s.Deliver(r.inbox(i), &nats.Msg{Subject: r.inbox(i), Header: nats.Header{"Status": {"408"}}})
		}
		synctest.Wait()
		r.free = 2
		synctest.Wait()
		require.Len(t, r.pulls(), 6)
		r.c.Wake()
		synctest.Wait()
		require.Len(t, r.pulls(), 8, "one that is free again is put to use at once")
		before := time.Now()
		r.stop()
		require.Zero(t, time.Since(before), "a stop waits for nothing")
		require.Equal(t, 1, nc.NumSubscriptions(), "that of the answers to requests is left")
	})
}

// While there is a backlog a few free workers wait a moment for others, so that one pull serves them all.
func TestBacklogIsPulledForSeveralWorkersAtOnce(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		c.cfg.MaxFree = 16
		workers := 16
		c.cfg.Free = func() int { return workers }
		p := newPuller(c, "_INBOX.x")
		p.lanes[laneLater].rest = time.Now().Add(time.Hour)
		p.lanes[laneFresh].backlog = 1
		now := time.Now()
		p.pull(now)
		require.Equal(t, 16, p.asked())
		clear(p.open)
		workers = 3
		require.Equal(t, now.Add(gather), p.pull(now.Add(gather-1)))
		require.Zero(t, p.asked())
		workers = 4
		p.pull(now.Add(gather - 1))
		require.Equal(t, 4, p.asked(), "a quarter is enough")
		clear(p.open)
		workers = 3
		p.sent = now
		p.pull(now.Add(gather))
		require.Equal(t, 3, p.asked(), "no longer than that")
		clear(p.open)
		p.sent, p.lanes[laneFresh].backlog = now, 0
		p.pull(now)
		require.Equal(t, 3, p.asked(), "without a backlog there is nothing to wait for")
		clear(p.open)
		workers = 0
		p.lanes[laneFresh].backlog = 1
		p.sent = time.Time{}
		p.pull(now)
		require.Zero(t, p.asked())
	})
}

// The loop sleeps until the first thing that time brings.
func TestPullLooksAgainWhenSomethingIsDue(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		workers := 0
		c.cfg.Free = func() int { return workers }
		now := time.Now()
		in := func(change func(*puller)) time.Duration {
			p := newPuller(c, "_INBOX.x")
			change(p)
			return p.pull(now).Sub(now)
		}
		const ms = time.Millisecond
		require.Equal(t, pullExpires, in(func(*puller) {}))
		require.Equal(t, 300*ms, in(func(p *puller) { p.open[1] = &request{left: 1, expires: now.Add(300 * ms)} }))
		require.Equal(t, 100*ms, in(func(p *puller) {
			for id := range uint64(20) {
				p.open[id] = &request{left: 1, expires: now.Add(time.Duration(id+1) * 100 * ms)}
			}
		}))
		require.Equal(t, pullExpires, in(func(p *puller) { p.lanes[laneLater].rest = now.Add(2 * time.Second) }))
		require.Equal(t, 200*ms, in(func(p *puller) { p.lanes[laneLater].rest = now.Add(200 * ms) }))
		require.Equal(t, 100*ms, in(func(p *puller) {
			p.lanes[laneLater].probe = now.Add(100 * ms)
			p.lanes[laneFresh].rest = now.Add(200 * ms)
		}))
		require.Equal(t, pullExpires, in(func(p *puller) { p.lanes[laneFresh].rest, p.lanes[laneFresh].probe = now, now }))
		workers = 1
		require.Equal(t, probeEvery, in(func(*puller) {}), "a single worker asks the later lane again after its probe")
		synctest.Wait()
		s.Cut()
		synctest.Wait()
		require.Equal(t, errorPause, in(func(*puller) {}))
		require.Len(t, s.Sent(nextMessage), 1, "without a connection nothing is asked: it would pile up")
	})
}

// One pull of a single worker that is not answered: the question of the later lane expires with the grace alone.
func TestPullThatTheServerShallNotKeep(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, h := consumer(t, s, nc)
		p := newPuller(c, "_INBOX.x")
		now := time.Now()
		p.lastID = 10
		p.send(now, laneLater, 1, 0)
		p.send(now, laneFresh, 12, probeEvery)
		synctest.Wait()
		sent := s.Sent(nextMessage)
		require.Len(t, sent, 2)
		require.Equal(t, nextMessage+"_later", sent[0].Subject)
		require.Equal(t, `{"batch":1,"no_wait":true}`, string(sent[0].Data))
		require.Equal(t, "_INBOX.x.11", sent[0].Reply)
		require.Equal(t, `{"batch":12,"expires":250000000}`, string(sent[1].Data))
		require.Equal(t, "_INBOX.x.12", sent[1].Reply)
		require.Equal(t, map[uint64]*request{
			11: {lane: laneLater, left: 1, expires: now.Add(pullGrace)},
			12: {lane: laneFresh, left: 12, expires: now.Add(probeEvery + pullGrace)},
		}, p.open)
		require.Equal(t, 13, p.asked())

		nc.Close()
		p.send(now, laneFresh, 1, 0)
		require.Equal(t, 13, p.asked(), "what could not be sent is not waited for")
		require.True(t, p.lanes[laneFresh].rest.After(now))
		errs, _, _ := h.drain()
		require.Len(t, errs, 1)
		require.Contains(t, errs[0], "pull: nats: connection closed")
	})
}

func TestRunHandsOutWhatArrives(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		r := start(t, s, nc)
		s.Answer("evenkeel.", stored)
		s.Answer("$JS.ACK.", "")
		for _, subj := range []string{fresh, "evenkeel.n.widgets.3.a"} {
			m := pulled("widgets", subj, 0)
			s.Deliver(r.inbox(1), m)
		}
		d := <-r.got
		require.Equal(t, "a", d.Name)
		synctest.Wait()
		require.Empty(t, r.got)
		require.Len(t, s.Sent(asideSubject), 1, "and sets aside what is none")
		sleepFor(3 * lookEvery)
		require.Greater(t, len(s.Sent(streamInfoOf)), 2, "and looks at the stream")
		r.stop()
		synctest.Wait()
		sent := len(s.Sent(""))
		sleepFor(time.Minute)
		require.Len(t, s.Sent(""), sent, "nothing is sent after a stop")
	})
}

// What arrives at a stop goes to another replica at once, not when AckWait is over.
func TestStopGivesBackWhatWasNotHandedOut(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		in := make(chan *nats.Msg, 10)
		_, err := nc.ChanSubscribe("_INBOX.x.*", in)
		require.NoError(t, err)
		synctest.Wait()
		for id := range 3 {
			m := pulled("widgets", fresh, id)
			if id == 1 {
				m.Reply, m.Header = "", nats.Header{"Status": {"408"}}
			}
			s.Deliver("_INBOX.x.1", m)
		}
		synctest.Wait()
		require.Len(t, in, 3)
		c.handBack(in)
		synctest.Wait()
		acks := s.Sent("$JS.ACK.")
		require.Len(t, acks, 2)
		require.Equal(t, "-NAK", string(acks[0].Data))

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.Deliver("_INBOX.x.1", pulled("widgets", fresh, 0))
		synctest.Wait()
		c.handle = func(*Delivery) { t.Error("handed out after the stop") }
		p := newPuller(c, "_INBOX.x")
		p.drain(ctx, in)
		synctest.Wait()
		acks = s.Sent("$JS.ACK.")
		require.Len(t, acks, 3)
		require.Equal(t, "-NAK", string(acks[2].Data))
	})
}

// A message that arrives together with the stop is given back, too.
func TestStopGivesBackWhatArrivesWithIt(t *testing.T) {
	for range 12 { // the loop meets the stop and the message in either order
		scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
			r := start(t, s, nc)
			gate := make(chan struct{})
			r.c.cfg.Free = func() int { <-gate; return 0 }
			r.c.Wake()
			synctest.Wait()
			s.Deliver(r.inbox(1), pulled("widgets", fresh, 0))
			s.Deliver(r.inbox(1), pulled("widgets", fresh, 0))
			synctest.Wait()
			time.AfterFunc(time.Second, func() { close(gate) })
			r.stop()
			synctest.Wait()
			require.Len(t, s.Sent("$JS.ACK."), 2)
			require.Empty(t, r.got)
		})
	}
}

// What has arrived is handed out before the next pull: one for each message would cost the server more.
func TestOnePullFollowsSeveralMessages(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		r := start(t, s, nc)
		gate := make(chan struct{})
		r.c.cfg.Free = func() int { <-gate; return 4 }
		r.c.Wake()
		synctest.Wait()
		for range 3 {
			s.Deliver(r.inbox(1), pulled("widgets", fresh, 50))
		}
		synctest.Wait()
		close(gate)
		synctest.Wait()
		require.Len(t, r.got, 3)
		require.Equal(t, `widgets {"batch":3,"expires":1000000000}`, r.pulls()[2])
		require.Len(t, r.pulls(), 3)
		r.stop()
	})
}

// A free worker is not forgotten because the loop was busy when it became free.
func TestWakeIsRememberedOnce(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		c.Wake()
		c.Wake()
		require.Len(t, c.wake, 1)
	})
}

// Run waits for its goroutines: who has called it may close what the callbacks use.
func TestRunWaitsForItsCallbacks(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		r := start(t, s, nc)
		busy, release := make(chan struct{}), make(chan struct{})
		r.c.cfg.OnMissing = func() { close(busy); <-release }
		s.Answer(streamInfoOf, noStream)
		<-busy
		start := time.Now()
		time.AfterFunc(time.Second, func() { close(release) })
		r.stop()
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestRunThatCannotStartSaysSo(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		c, _ := consumer(t, s, nc)
		nc.Close()
		require.ErrorContains(t, c.Run(t.Context(), func(*Delivery) {}), "notify: subscribe: ")
	})
}

// A function that blocks, or a link that has stalled, does not keep a replica from stopping.
func TestRunReturnsTwoSecondsAfterAStopWhateverHangs(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
		r := start(t, s, nc)
		hangs := make(chan struct{})
		r.c.handle = func(*Delivery) { <-hangs }
		s.Deliver(r.inbox(1), pulled("widgets", fresh, 0))
		synctest.Wait()
		start := time.Now()
		r.stop()
		require.Equal(t, stopWithin, time.Since(start))
		close(hangs)
	})
}
