package e2e

import (
	"fmt"
	"strings"
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
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/requeue"
)

// The stream is deleted and made again while a turn has a notification of the old one in hand.
func TestTakeFromADeletedStreamRemovesNoOthersNotification(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		stop := q.pull(1)
		q.publish("x")
		synctest.Wait()
		stop()
		require.NoError(t, q.js.DeleteStream(t.Context(), "evenkeel_work"))
		advance(time.Second)
		require.NoError(t, notify.Streams(t.Context(), q.nc, memory, "widgets"))
		q.publish("y")
		x := q.got[0]
		q.got = nil
		defer q.pull(1)()
		synctest.Wait()
		require.NoError(t, x.Take(t.Context()))
		require.EqualValues(t, 1, q.messages(fresh("y")))
		require.Equal(t, []string{"y"}, q.names())
	})
}

// The same with a stream that the SDK did not make again, as after a restore from a copy: its sequences have been there before.
func TestTakeFromARestoredStreamRemovesNoOthersNotification(t *testing.T) {
	for name, then := range map[string]func(t *testing.T, q *queue){
		"later":                 func(*testing.T, *queue) { advance(3 * time.Second) },
		"after a reconnect":     func(t *testing.T, q *queue) { require.NoError(t, q.nc.ForceReconnect()); advance(time.Second) },
		"and it is queued anew": func(_ *testing.T, q *queue) { q.publish("x"); advance(3 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			withQueue(t, func(t *testing.T, q *queue) {
				s, err := q.js.Stream(t.Context(), "evenkeel_work")
				require.NoError(t, err)
				cfg := s.CachedInfo().Config
				stop := q.pull(1)
				q.publish("x")
				synctest.Wait()
				stop()
				require.NoError(t, q.js.DeleteStream(t.Context(), "evenkeel_work"))
				_, err = q.js.CreateStream(t.Context(), cfg)
				require.NoError(t, err)
				require.NoError(t, notify.Streams(t.Context(), q.nc, memory, "widgets"))
				q.publish("y")
				x := q.got[0]
				q.got = nil
				defer q.pull(1)()
				then(t, q)
				require.Contains(t, q.names(), "y")
				require.ErrorIs(t, x.Take(t.Context()), notify.ErrGone)
				require.EqualValues(t, 1, q.messages(fresh("y")))
			})
		})
	}
}

var names = subject.Names{Prefix: notify.DefaultPrefix}

func fresh(name string) string { return names.Fresh("widgets", name) }

// What may have lost notifications is reported, so that they are searched for.
func TestChangesOfTheStreamAreReported(t *testing.T) {
	for want, change := range map[string]func(t *testing.T, q *queue){
		"was deleted and made again": func(t *testing.T, q *queue) {
			require.NoError(t, q.js.DeleteStream(t.Context(), "evenkeel_work"))
			require.NoError(t, notify.Streams(t.Context(), q.nc, memory, "widgets"))
		},
		"was purged": func(t *testing.T, q *queue) {
			s, err := q.js.Stream(t.Context(), "evenkeel_work")
			require.NoError(t, err)
			require.NoError(t, s.Purge(t.Context()))
			q.publish("x")
		},
		"has limits, which drop notifications: max_msgs 20, max_bytes 10000, max_msg_size 500, max_age 1h0m0s": func(t *testing.T, q *queue) {
			q.limit(func(cfg *jetstream.StreamConfig) {
				cfg.MaxMsgs, cfg.MaxBytes, cfg.MaxMsgSize, cfg.MaxAge, cfg.Duplicates = 20, 10_000, 500, time.Hour, time.Minute
			})
		},
	} {
		t.Run(strings.Fields(want)[1], func(t *testing.T) {
			withQueue(t, func(t *testing.T, q *queue) {
				defer q.pull(1)()
				advance(time.Minute)
				require.Empty(t, q.told().changes)
				advance(time.Second)
				change(t, q)
				advance(10 * time.Second)
				require.Equal(t, []string{"stream evenkeel_work " + want}, q.told().changes)
				advance(time.Hour)
				require.Len(t, q.told().changes, 1, "once")
			})
		})
	}
}

// What an operator's purge removed is found within the minute, not at the next regular search.
func TestNothingIsLostOfAPurgedStream(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		c.Workers = 4
		s.Start("a", c)
		s.Advance(2 * time.Minute)
		_, js := s.broker()
		for i := range 100 {
			s.put(fmt.Sprintf("o%d", i), job{Millis: 500, Value: 1})
		}
		s.Advance(3 * time.Second)
		stream, err := js.Stream(t.Context(), "evenkeel_work")
		require.NoError(t, err)
		require.NoError(t, stream.Purge(t.Context()))
		s.Advance(90 * time.Second)
		s.AssertConverged()
	})
}

// A consumer that an operator gave limits loses what is past them: it gets its settings back.
func TestConsumerWithLimitsIsRepaired(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.Advance(5 * time.Second)
		_, js := s.broker()
		c, err := js.Consumer(t.Context(), "evenkeel_work", "jobs")
		require.NoError(t, err)
		cfg := c.CachedInfo().Config
		cfg.MaxDeliver, cfg.MaxAckPending = 1, 1
		_, err = js.UpdateConsumer(t.Context(), "evenkeel_work", cfg)
		require.NoError(t, err)
		s.Advance(2 * time.Minute)
		c, err = js.Consumer(t.Context(), "evenkeel_work", "jobs")
		require.NoError(t, err)
		require.Equal(t, -1, c.CachedInfo().Config.MaxDeliver)
		require.Equal(t, -1, c.CachedInfo().Config.MaxAckPending)
		told := s.Timeline().Only(reconciler.StepTrouble)
		require.Len(t, told, 1)
		require.ErrorContains(t, told[0].Err, "consumer jobs of stream evenkeel_work was changed: it has max_ack_pending 1 instead of -1, max_deliver 1 instead of -1")
		require.NoError(t, a.Stop())
	})
}

// A consumer that an operator paused brings nothing until the pause is over, which somebody else must be able to see.
func TestPausedConsumerIsSaid(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.Advance(5 * time.Second)
		_, js := s.broker()
		_, err := js.PauseConsumer(t.Context(), "evenkeel_work", "jobs", time.Now().Add(time.Hour))
		require.NoError(t, err)
		s.put("x", job{Value: 1})
		s.Advance(30 * time.Minute)
		require.Empty(t, s.runs("x"))
		told := s.Timeline().Only(reconciler.StepTrouble)
		require.Len(t, told, 1)
		require.ErrorContains(t, told[0].Err, "consumer jobs of stream evenkeel_work is paused until 2000-01-01T01:00:")
		require.ErrorContains(t, told[0].Err, "nats consumer resume evenkeel_work jobs")
		s.Advance(31 * time.Minute)
		s.AssertConverged()
	})
}

func (q *queue) limit(set func(cfg *jetstream.StreamConfig)) {
	q.t.Helper()
	s, err := q.js.Stream(q.t.Context(), "evenkeel_work")
	require.NoError(q.t, err)
	cfg := s.CachedInfo().Config
	set(&cfg)
	_, err = q.js.UpdateStream(q.t.Context(), cfg)
	require.NoError(q.t, err)
}

// An operator's limit on the work stream drops notifications without a word: it is taken off, and what it dropped is found.
func TestLimitOnTheWorkStreamIsTakenOff(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		c.Workers = 4
		s.Start("a", c)
		s.Advance(2 * time.Minute)
		_, js := s.broker()
		cfg := s.stream(js, "evenkeel_work").Config
		cfg.MaxMsgs = 20
		_, err := js.UpdateStream(t.Context(), cfg)
		require.NoError(t, err)
		for i := range 300 {
			s.put(fmt.Sprintf("o%d", i), job{Millis: 100, Value: 1})
		}
		s.Advance(90 * time.Second)
		s.AssertConverged()
		require.LessOrEqual(t, s.stream(js, "evenkeel_work").Config.MaxMsgs, int64(0))
	})
}

// Limits are taken off at the start, too; those that a stream of an earlier version had by default, among them.
func TestStreamsTakesLimitsOff(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		q.limit(func(cfg *jetstream.StreamConfig) {
			cfg.MaxMsgs, cfg.MaxBytes, cfg.MaxMsgSize, cfg.MaxConsumers = 1, 1000, 50, 10
		})
		err := q.publisher.Publish(t.Context(), "widgets", "x", "test")
		require.ErrorIs(t, err, notify.ErrNoRoom)
		require.ErrorIs(t, q.requeues.At(t.Context(), "widgets", "x", time.Now().Add(time.Minute), nil), requeue.ErrNoRoom)
		require.NoError(t, notify.Streams(t.Context(), q.nc, memory, "widgets"))
		q.publish("x", "y")
		require.EqualValues(t, 1, q.messages(fresh("x")))
		s, err := q.js.Stream(t.Context(), "evenkeel_work")
		require.NoError(t, err)
		require.EqualValues(t, 1_000_000, s.CachedInfo().Config.MaxConsumers)
	})
}

// An account may require limits: those stay, and the rest is taken off.
func TestLimitsThatTheAccountRequiresStay(t *testing.T) {
	withServer(t, nil, func(t *testing.T, s *server.Server, nc *nats.Conn, js jetstream.JetStream) {
		require.NoError(t, s.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": {
			MaxMemory: 1 << 30, MaxStore: 1 << 30, MaxStreams: 10, MaxConsumers: 3, MaxBytesRequired: true, MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1,
			MaxAckPending: -1,
		}}))
		err := notify.Streams(t.Context(), nc, memory)
		require.ErrorContains(t, err, "max_bytes_required of the account")
		for _, name := range []string{"work", "history"} {
			cfg := jetstream.StreamConfig{
				Name: "evenkeel_" + name, Subjects: names.WorkSubjects(), Retention: jetstream.WorkQueuePolicy, Storage: jetstream.MemoryStorage,
				MaxBytes: 1 << 20, MaxMsgs: 7, MaxMsgsPerSubject: 1,
			}
			if name == "history" {
				cfg.Subjects, cfg.Retention = names.HistorySubjects(), jetstream.LimitsPolicy
			}
			_, err = js.CreateStream(t.Context(), cfg)
			require.NoError(t, err)
		}
		require.NoError(t, notify.Streams(t.Context(), nc, memory, "widgets"))
		work, err := js.Stream(t.Context(), "evenkeel_work")
		require.NoError(t, err)
		require.EqualValues(t, 1<<20, work.CachedInfo().Config.MaxBytes)
		require.EqualValues(t, -1, work.CachedInfo().Config.MaxMsgs)

		err = notify.Streams(t.Context(), nc, memory, "gadgets")
		require.ErrorIs(t, err, notify.ErrTooManyConsumers)
		require.ErrorContains(t, err, "raise max_consumers of the account")
	})
}

// The server allows 1,000 consumers for a stream unless the stream says otherwise: that would be 500 kinds.
func TestTwelveHundredKinds(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		var kinds []string
		for i := range 1200 {
			kinds = append(kinds, fmt.Sprintf("kind%d", i))
		}
		require.NoError(t, notify.Streams(t.Context(), q.nc, memory, kinds...))
		for kind, want := range map[string]bool{"kind1199": true, "kind1200": false} {
			has, err := notify.HasConsumer(t.Context(), q.nc, memory, kind)
			require.NoError(t, err)
			require.Equal(t, want, has)
		}
		has, err := notify.HasConsumer(t.Context(), q.nc, notify.Config{Prefix: "other"}, "kind1")
		require.NoError(t, err)
		require.False(t, has)
	})
}

// The kind is told of what keeps it from being served, without a word each second.
func TestKindWithoutTheRightToPullIsReported(t *testing.T) {
	withUser(t, []string{"$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.INFO.>"}, func(t *testing.T, nc *nats.Conn, q *queue) {
		q.nc = nc
		defer q.pull(4)()
		advance(10 * time.Second)
		err := q.consumer.Err()
		require.ErrorContains(t, err, "$JS.API.CONSUMER.MSG.NEXT.evenkeel_work.widgets: no answer")
		require.ErrorContains(t, err, "right to publish")
		require.ErrorIs(t, err, nats.ErrPermissionViolation)
		require.Len(t, q.told().troubles, 1)
		require.Contains(t, q.told().troubles[0], "pull: $JS.API.CONSUMER.MSG.NEXT.evenkeel_work.widgets")
		advance(time.Hour)
		require.Less(t, len(q.told().troubles), 15)
		require.Greater(t, len(q.told().troubles), 5)
	})
}

func TestMissingStreamIsReportedOnceAndThenRarely(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		q.helpless = true
		defer q.pull(4)()
		advance(time.Minute)
		require.NoError(t, q.consumer.Err())
		require.NoError(t, q.js.DeleteStream(t.Context(), "evenkeel_work"))
		advance(time.Minute)
		require.ErrorContains(t, q.consumer.Err(), "the stream or its consumer is gone")
		require.Less(t, len(q.told().troubles), 8)
		require.NoError(t, notify.Streams(t.Context(), q.nc, memory, "widgets"))
		advance(5 * time.Second)
		require.NoError(t, q.consumer.Err())
	})
}

// P4: poison that cannot be set aside delays nothing else.
func TestPoisonThatCannotBeSetAsideDelaysNoOther(t *testing.T) {
	rights := []string{"$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.>", "$JS.ACK.>"}
	withUser(t, rights, func(t *testing.T, nc *nats.Conn, q *queue) {
		q.nc = nc
		defer q.pull(300)()
		for i := range 20 {
			require.NoError(t, q.admin.Publish(fmt.Sprintf("evenkeel.n.widgets.poison.%d", i), nil))
		}
		q.publish("good")
		advance(time.Second)
		require.Equal(t, []string{"good"}, q.names())
		require.NoError(t, q.got[0].Take(t.Context()))
		advance(time.Hour)
		q.publish("better")
		advance(time.Second)
		require.Contains(t, q.names(), "better")
		require.Less(t, len(q.told().troubles), 30)
	})
}

func TestMissingHistoryStreamIsMadeAgain(t *testing.T) {
	withQueue(t, func(t *testing.T, q *queue) {
		defer q.pull(4)()
		require.NoError(t, q.js.DeleteStream(t.Context(), "evenkeel_history"))
		require.NoError(t, q.nc.Publish("evenkeel.n.widgets.garbage", nil))
		advance(notify.AckWait + 5*time.Second)
		aside, err := notify.ListAside(t.Context(), q.nc, memory, "widgets")
		require.NoError(t, err)
		require.Len(t, aside, 1)
	})
}

// withUser gives f a work stream and the connection of a user who may publish to the given subjects alone.
func withUser(t *testing.T, publish []string, f func(t *testing.T, nc *nats.Conn, q *queue)) {
	t.Helper()
	withServer(t, may(publish, nil), func(t *testing.T, s *server.Server, admin *nats.Conn, _ jetstream.JetStream) {
		require.NoError(t, notify.Streams(t.Context(), admin, memory, "widgets"))
		nc := asUser(t, s)
		defer nc.Close()
		publisher, err := notify.NewPublisher(admin, memory)
		require.NoError(t, err)
		f(t, nc, &queue{t: t, admin: admin, publisher: publisher, helpless: true})
	})
}

// JetStream that is off is told in words that name it.
func TestJetStreamThatIsOffIsNamed(t *testing.T) {
	s, err := broker.StartWith(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	require.NoError(t, err)
	defer broker.Stop(s)
	nc, err := broker.Connect(s)
	require.NoError(t, err)
	defer nc.Close()
	for what, err := range map[string]error{
		"Streams": notify.Streams(t.Context(), nc, memory, "widgets"),
		"NewConsumer": func() error {
			_, err := notify.NewConsumer(t.Context(), nc, notify.ConsumerConfig{Kind: "widgets", MaxFree: 1, Free: func() int { return 1 }})
			return err
		}(),
		"HasConsumer": func() error { _, err := notify.HasConsumer(t.Context(), nc, memory, "widgets"); return err }(),
	} {
		require.ErrorIs(t, err, notify.ErrNoJetStream, what)
		require.ErrorContains(t, err, "JetStream is not enabled", what)
	}
}
