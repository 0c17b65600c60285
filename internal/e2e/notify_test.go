package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/requeue"
)

var memory = notify.Config{Storage: jetstream.MemoryStorage}

// queue is the work stream in virtual time, with one kind and whoever pulls from it.
type queue struct {
	t         *testing.T
	nc        *nats.Conn
	js        jetstream.JetStream
	publisher *notify.Publisher
	requeues  *requeue.Queue

	stopBroker func()
	admin      *nats.Conn // of withUser
	consumer   *notify.Consumer
	helpless   bool // it makes nothing again

	mu  sync.Mutex
	got []*notify.Delivery
	reports
}

// reports are what a consumer passed to OnError and OnChanged.
type reports struct{ troubles, changes []string }

func (q *queue) told() reports {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reports
}

func withQueue(t *testing.T, f func(t *testing.T, q *queue)) {
	t.Helper()
	withServer(t, nil, func(t *testing.T, s *server.Server, nc *nats.Conn, js jetstream.JetStream) {
		require.NoError(t, notify.Streams(t.Context(), nc, memory, "widgets"))
		p, err := notify.NewPublisher(nc, memory)
		require.NoError(t, err)
		r, err := requeue.NewQueue(nc, notify.DefaultPrefix)
		require.NoError(t, err)
		f(t, &queue{t: t, nc: nc, js: js, publisher: p, requeues: r, stopBroker: func() { broker.Stop(s) }})
	})
}

// pull starts a consumer with so many workers that never finish, until stop is called.
func (q *queue) pull(workers int) (stop func()) { return q.pullFrom(q.nc, memory, workers) }

func (q *queue) pullFrom(nc *nats.Conn, cfg notify.Config, workers int) (stop func()) {
	c, err := notify.NewConsumer(q.t.Context(), nc, notify.ConsumerConfig{
		Config: cfg, Kind: "widgets", MaxFree: workers, Free: func() int { return workers - len(q.names()) },
		OnError: func(doing string, err error) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.troubles = append(q.troubles, fmt.Sprint(doing, ": ", err))
		},
		OnChanged: func(what string) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.changes = append(q.changes, what)
			go func() { _ = notify.Streams(q.t.Context(), nc, cfg, "widgets") }()
		},
		OnMissing: func() {
			if q.helpless {
				return
			}
			go func() { _ = notify.Streams(q.t.Context(), nc, cfg, "widgets") }() // a pull that fails again calls again
		},
	})
	require.NoError(q.t, err)
	q.consumer = c
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- c.Run(ctx, func(d *notify.Delivery) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.got = append(q.got, d)
		})
	}()
	return func() {
		cancel()
		require.NoError(q.t, <-done)
	}
}

func (q *queue) names() (names []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range q.got {
		names = append(names, d.Name)
	}
	return names
}

func (q *queue) publish(names ...string) {
	q.t.Helper()
	for _, n := range names {
		require.NoError(q.t, q.publisher.Publish(q.t.Context(), "widgets", n, "test"))
	}
}

func (q *queue) messages(subj string) uint64 {
	q.t.Helper()
	s, err := q.js.Stream(q.t.Context(), "evenkeel_work")
	require.NoError(q.t, err)
	info, err := s.Info(q.t.Context(), jetstream.WithSubjectFilter(subj))
	require.NoError(q.t, err)
	return info.State.Subjects[subj]
}

func TestNotificationsCoalesceAndKeepTheirPlace(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		q.publish("hot", "a", "hot", "b", "hot", "hot")
		defer q.pull(10)()
		synctest.Wait()
		require.Equal(t, []string{"hot", "a", "b"}, q.names())
	})
}

func TestChangeAfterTakeIsQueuedAgain(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		q.publish("x")
		defer q.pull(10)()
		synctest.Wait()
		q.publish("x")
		synctest.Wait()
		require.Equal(t, []string{"x"}, q.names(), "it is still in hand: one notification stands for both")
		require.NoError(t, q.got[0].Take(t.Context()))
		q.publish("x")
		synctest.Wait()
		require.Equal(t, []string{"x", "x"}, q.names())
	})
}

// R10, R4: exactly as many as there are free workers; the rest stays for other replicas.
func TestPullsNoMoreThanFreeWorkers(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		for i := range 50 {
			q.publish(fmt.Sprintf("o%d", i))
		}
		defer q.pull(3)()
		advance(5 * time.Second)
		require.Len(t, q.names(), 3)
		c, err := q.js.Consumer(t.Context(), "evenkeel_work", "widgets")
		require.NoError(t, err)
		require.Equal(t, 3, c.CachedInfo().NumAckPending)
	})
}

func TestUntakenNotificationComesBack(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		q.publish("x")
		defer q.pull(10)()
		advance(notify.AckWait + time.Second)
		require.Equal(t, []string{"x", "x"}, q.names())
		require.EqualValues(t, 2, q.got[1].Attempts)
		advance(notify.AckWait / 2)
		require.NoError(t, q.got[1].Hold())
		advance(notify.AckWait - time.Second)
		require.Len(t, q.names(), 2, "it is held")
	})
}

// P1: what a process gives back is another's at once, and not gone.
func TestReturnedNotificationIsPulledAgainAtOnce(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		q.publish("x")
		defer q.pull(10)()
		advance(time.Second)
		require.Equal(t, []string{"x"}, q.names())
		require.NoError(t, q.got[0].Return())
		advance(time.Second)
		require.Equal(t, []string{"x", "x"}, q.names())
		require.EqualValues(t, 2, q.got[1].Attempts)
		require.NoError(t, q.got[1].Take(t.Context()))
		require.Zero(t, q.messages(fresh("x")))
	})
}

// R24: a fresh change is handled at once and cancels the pending retry.
func TestFreshChangeCancelsThePendingRequeue(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		names := subject.Names{Prefix: notify.DefaultPrefix}
		require.NoError(t, q.requeues.At(t.Context(), "widgets", "x", time.Now().Add(time.Minute), nil))
		require.EqualValues(t, 1, q.messages(names.Schedule("widgets", "x")))
		q.publish("x")
		require.Zero(t, q.messages(names.Schedule("widgets", "x")))
		defer q.pull(10)()
		synctest.Wait()
		require.NoError(t, q.got[0].Take(t.Context()))
		advance(time.Hour)
		require.Equal(t, []string{"x"}, q.names())
	})
}

func TestNewerRequeueReplacesTheOlder(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		defer q.pull(10)()
		began := time.Now()
		require.NoError(t, q.requeues.At(t.Context(), "widgets", "x", began.Add(time.Minute), nil))
		require.NoError(t, q.requeues.At(t.Context(), "widgets", "x", began.Add(1500*time.Millisecond), nats.Header{"Trace": {"1"}}))
		for len(q.names()) == 0 {
			advance(10 * time.Millisecond)
		}
		late := time.Since(began) - 1500*time.Millisecond
		require.GreaterOrEqual(t, late, time.Duration(0))
		require.LessOrEqual(t, late, 300*time.Millisecond)
		d := q.got[0]
		require.False(t, d.Asked)
		require.Equal(t, "1", d.Header.Get("Trace"))
		require.NoError(t, d.Take(t.Context()))
		advance(time.Hour)
		require.Len(t, q.names(), 1)
	})
}

// A requeue that fired says when that was, by the server's clock.
func TestRequeueThatFiredSaysWhen(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		due := time.Now().Add(1500 * time.Millisecond)
		require.NoError(t, q.requeues.At(t.Context(), "widgets", "x", due, nil))
		q.publish("fresh")
		defer q.pull(10)()
		advance(2 * time.Second)
		require.Equal(t, []string{"fresh", "x"}, q.names())
		require.WithinDuration(t, due, q.got[1].At, 300*time.Millisecond)
		require.False(t, q.got[1].At.Before(due))
	})
}

// R3: poison is set aside once, listed, and can be dropped; it is not delivered again and again.
func TestPoisonIsSetAside(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		defer q.pull(10)()
		for _, s := range []string{"evenkeel.n.widgets.garbage", "evenkeel.n.widgets.63.blue", "evenkeel.r.widgets.1.UPPER"} {
			require.NoError(t, q.nc.Publish(s, []byte("body of "+s)))
		}
		q.publish("good")
		advance(time.Minute)
		require.Contains(t, q.names(), "good")
		for _, n := range q.names() {
			require.Equal(t, "good", n)
		}
		aside, err := notify.ListAside(t.Context(), q.nc, memory, "widgets")
		require.NoError(t, err)
		require.Len(t, aside, 3)
		for _, a := range aside {
			require.NotEmpty(t, a.Why)
			require.Equal(t, "body of "+a.Subject, string(a.Data))
			require.WithinDuration(t, time.Now(), a.At, 2*time.Minute)
			require.NoError(t, notify.DropAside(t.Context(), q.nc, memory, a.Sequence))
		}
		aside, err = notify.ListAside(t.Context(), q.nc, memory, "widgets")
		require.NoError(t, err)
		require.Empty(t, aside)
	})
}

// R10: a consumer that somebody deletes is made again, with a word about it.
func TestDeletedConsumerIsRevived(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		defer q.pull(10)()
		advance(time.Second)
		require.NoError(t, q.js.DeleteConsumer(t.Context(), "evenkeel_work", "widgets"))
		require.NoError(t, q.js.DeleteConsumer(t.Context(), "evenkeel_work", "widgets_later"))
		q.publish("x")
		put, err := q.publisher.PublishLater(t.Context(), "widgets", "y", "test")
		require.NoError(t, err)
		require.True(t, put)
		put, err = q.publisher.PublishLater(t.Context(), "widgets", "y", "test")
		require.NoError(t, err)
		require.False(t, put, "it is there already")
		advance(5 * time.Second)
		require.ElementsMatch(t, []string{"x", "y"}, q.names())
		require.NotEmpty(t, q.told().troubles)
	})
}

// Both lanes are served when there is one worker and both have a backlog.
func TestOneWorkerServesBothLanes(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		for i := range 20 {
			q.publish(fmt.Sprintf("fresh%d", i))
			_, err := q.publisher.PublishLater(t.Context(), "widgets", fmt.Sprintf("later%d", i), "test")
			require.NoError(t, err)
		}
		// The server counts in the background what waits for a consumer, and answers the first question with "nothing" if it
		// has not; the next one is a quarter of a second later, when all twenty would be done.
		synctest.Wait()
		var fresh, later int
		free := 1
		c, err := notify.NewConsumer(t.Context(), q.nc, notify.ConsumerConfig{Config: memory, Kind: "widgets", MaxFree: 1, Free: func() int { return free }})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, c.Run(ctx, func(d *notify.Delivery) {
			if d.Asked {
				fresh++
			} else {
				later++
			}
			go func() { _ = d.Take(t.Context()) }() // the pull loop must not block
			if fresh+later == 20 {
				free = 0
				cancel()
			}
		}))
		require.Greater(t, fresh, later, "fresh changes come first")
		require.Positive(t, later, "without starving the rest")
	})
}

func TestStreamsOfAnEarlierVersionAreUpdated(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		s, err := q.js.Stream(t.Context(), "evenkeel_work")
		require.NoError(t, err)
		old := s.CachedInfo().Config
		old.Subjects = old.Subjects[:2]
		old.Description = "an operator's own words"
		_, err = q.js.UpdateStream(t.Context(), old)
		require.NoError(t, err)
		_, err = q.js.UpdateConsumer(t.Context(), "evenkeel_work", jetstream.ConsumerConfig{
			Durable: "widgets", FilterSubject: "evenkeel.n.widgets.>", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour, MaxAckPending: 5,
		})
		require.NoError(t, err)

		require.NoError(t, notify.Streams(t.Context(), q.nc, memory, "widgets"))
		s, err = q.js.Stream(t.Context(), "evenkeel_work")
		require.NoError(t, err)
		require.Len(t, s.CachedInfo().Config.Subjects, 4)
		require.Equal(t, "an operator's own words", s.CachedInfo().Config.Description)
		c, err := q.js.Consumer(t.Context(), "evenkeel_work", "widgets")
		require.NoError(t, err)
		require.Equal(t, notify.AckWait, c.CachedInfo().Config.AckWait)
		require.Equal(t, -1, c.CachedInfo().Config.MaxAckPending)
	})
}

// R8: what cannot be changed is refused, naming the stream, the setting and the way out.
func TestStreamsThatCannotBeChangedAreRefused(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		_, err := q.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "other_work", Subjects: []string{"other.n.>"}, Storage: jetstream.MemoryStorage})
		require.NoError(t, err)
		err = notify.Streams(t.Context(), q.nc, notify.Config{Prefix: "other", Storage: jetstream.MemoryStorage})
		require.ErrorContains(t, err, "stream other_work: its retention is Limits, Evenkeel needs WorkQueue")
		require.ErrorContains(t, err, "choose another prefix")
		err = notify.Streams(t.Context(), q.nc, notify.Config{})
		require.ErrorContains(t, err, "stream evenkeel_work: its storage is Memory, Evenkeel needs File")
	})
}

// The sentinel at the head is what keeps fetches from scanning every subject (DESIGN.md, "Pulling").
func TestSentinelStaysAtTheHead(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		for i := range 100 {
			q.publish(fmt.Sprintf("o%d", i))
		}
		defer q.pull(200)()
		synctest.Wait()
		for _, d := range q.got {
			require.NoError(t, d.Take(t.Context()))
		}
		require.NoError(t, notify.Streams(t.Context(), q.nc, memory, "widgets"))
		s, err := q.js.Stream(t.Context(), "evenkeel_work")
		require.NoError(t, err)
		require.EqualValues(t, 1, s.CachedInfo().State.Msgs)
		m, err := s.GetMsg(t.Context(), s.CachedInfo().State.FirstSeq)
		require.NoError(t, err)
		require.Equal(t, "evenkeel.sentinel", m.Subject)
	})
}

func TestBadNotificationsAreNamed(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		require.ErrorContains(t, q.publisher.Publish(t.Context(), "Widgets", "x", ""), `kind "Widgets"`)
		require.ErrorContains(t, q.publisher.Publish(t.Context(), "widgets", "a.b", ""), `name "a.b"`)
		require.ErrorContains(t, q.requeues.At(t.Context(), "widgets", "", time.Now(), nil), `name ""`)
		_, err := notify.NewPublisher(q.nc, notify.Config{Prefix: "a.b"})
		require.ErrorContains(t, err, `prefix "a.b"`)
	})
}

// What cannot be sent now is not kept by the client and sent when its time has passed.
func TestNothingIsKeptWithoutAConnection(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		stop := q.pull(1)
		q.publish("x")
		synctest.Wait()
		stop()
		q.stopBroker()
		synctest.Wait()
		began := time.Now()
		kept, err := q.nc.Buffered()
		require.NoError(t, err)
		require.ErrorIs(t, q.got[0].Take(t.Context()), nats.ErrConnectionReconnecting)
		require.ErrorIs(t, q.publisher.Publish(t.Context(), "widgets", "y", "test"), nats.ErrConnectionReconnecting)
		require.ErrorIs(t, q.requeues.At(t.Context(), "widgets", "x", time.Now(), nil), nats.ErrConnectionReconnecting)
		require.Zero(t, time.Since(began), "it fails at once")
		after, err := q.nc.Buffered()
		require.NoError(t, err)
		require.Equal(t, kept, after)
	})
}
