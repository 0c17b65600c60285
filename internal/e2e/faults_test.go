package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// P6: what somebody deletes on the server is made again, and what went with it is found.
func TestNothingIsLostOfWhatIsDeletedOnTheServer(t *testing.T) {
	for what, remove := range map[string]func(ctx context.Context, js jetstream.JetStream) error{
		"consumer": func(ctx context.Context, js jetstream.JetStream) error {
			return js.DeleteConsumer(ctx, "evenkeel_work", "jobs")
		},
		"stream": func(ctx context.Context, js jetstream.JetStream) error { return js.DeleteStream(ctx, "evenkeel_work") },
		"locks": func(ctx context.Context, js jetstream.JetStream) error {
			return js.DeleteKeyValue(ctx, "evenkeel_locks")
		},
	} {
		t.Run(what, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				s.Start("a", reconciler.For("jobs", work))
				s.Advance(5 * time.Second)
				_, js := s.broker()
				require.NoError(t, remove(t.Context(), js))
				s.put("x", job{Value: 1})
				s.Advance(2 * time.Minute)
				s.AssertConverged()
				s.put("x", job{Value: 2})
				s.Advance(time.Second)
				s.AssertConverged()
			})
		})
	}
}

// P6: whoever searches for what was forgotten may die at it; the next one searches.
func TestResyncOutlivesWhoSearches(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		mend := s.Fail(reconcilertest.Fault{Replica: "a", Method: "GET", Delay: 5 * time.Second})
		a := s.Start("a", c)
		s.Advance(2 * time.Second)
		a.Kill()
		mend()
		s.Start("b", c)
		s.Advance(time.Minute)
		s.FailBroker(reconcilertest.BrokerFault{Subject: "CONSUMER.MSG.NEXT", Times: 1})
		s.put("x", job{Value: 1})
		_, js := s.broker()
		stream, err := js.Stream(t.Context(), "evenkeel_work")
		require.NoError(t, err)
		require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject("evenkeel.n.>")))
		s.Advance(15 * time.Minute)
		s.AssertConverged()
		locks, err := js.KeyValue(t.Context(), "evenkeel_locks")
		require.NoError(t, err)
		_, err = locks.Get(t.Context(), "lock."+subject.ResyncLockKey("jobs"))
		require.ErrorIs(t, err, jetstream.ErrKeyNotFound)
	})
}

// P4, P6: a function that runs for an hour does not keep its kind from finding out that the API is back.
func TestOutageEndsAlsoBehindALongRun(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		c.Workers, c.Timeout = 4, 2*time.Hour
		s.Start("a", c)
		s.put("slow", job{Millis: 3_600_000})
		s.Advance(10 * time.Second)
		mend := s.Fail(reconcilertest.Fault{Status: 503})
		for i := range 5 {
			s.put(fmt.Sprintf("o%d", i), job{Value: 1})
		}
		s.Advance(time.Minute)
		mend()
		s.Advance(time.Minute)
		require.Equal(t, 1, s.get("o3").Status.Value)
	})
}

// P2: a status that was sent before the lease ended and arrives late is refused also if the later holder found nothing to
// change.
func TestLateStatusIsRefusedAfterARunThatChangedNothing(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var world atomic.Int64
		sees := reconciler.For("jobs", func(_ context.Context, o *jobObject) (reconciler.Result, error) {
			o.Status.Value = int(world.Load())
			return reconciler.Result{}, nil
		})
		a := s.Start("a", sees)
		s.put("x", job{})
		s.RunUntilSettled()
		s.SetLatency(func(m reconcilertest.Message) time.Duration {
			if m.Replica == "a" && strings.HasPrefix(m.Subject, "PATCH ") && !m.Answer {
				return time.Minute
			}
			return 0
		})
		world.Store(1)
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
		s.Advance(time.Second)
		require.Len(t, s.runs("x"), 2)
		a.Kill() // its status is on its way
		world.Store(0)
		s.Start("b", sees)
		s.Advance(30 * time.Second)
		require.Len(t, s.runs("x"), 3)
		require.NoError(t, s.runs("x")[2].Err)
		s.Advance(time.Minute)
		require.Equal(t, 0, s.get("x").Status.Value)
		require.Len(t, s.runs("x"), 3, "and nothing has to be repaired")
	})
}

// P6: a status that the API refuses for reasons which are not the object's is offered ever more rarely.
func TestRefusedWritesBackOff(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.Advance(time.Second)
		mend := s.Fail(reconcilertest.Fault{Method: "PATCH", Status: 403})
		s.put("x", job{Value: 1})
		s.Advance(time.Hour)
		require.Less(t, len(s.runs("x")), 60)
		mend()
		s.Advance(5 * time.Minute)
		s.AssertConverged()
	})
}

// P3: a value that somebody put under a lock's key by hand does not keep the locks of the dead from being found.
func TestForeignLockDoesNotStopTheTakeover(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		a := s.Start("a", c)
		_, js := s.broker()
		s.Advance(time.Second)
		locks, err := js.KeyValue(t.Context(), "evenkeel_locks")
		require.NoError(t, err)
		_, err = locks.Put(t.Context(), "lock.jobs.1.foreign", []byte("by hand"))
		require.NoError(t, err)
		for i := range 10 {
			s.put(fmt.Sprintf("o%d", i), job{Millis: 5000, Value: 1})
		}
		s.Advance(time.Second)
		s.Start("b", c)
		a.Kill()
		s.Advance(25 * time.Second)
		s.AssertConverged()
	})
}

// P6: nor does it keep other objects from being found when they were forgotten.
func TestForeignLockDoesNotStopResync(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.Advance(2 * time.Minute)
		mend := s.FailBroker(reconcilertest.BrokerFault{Subject: "CONSUMER.MSG.NEXT"})
		s.Advance(3 * time.Second)
		s.put("a", job{Value: 1})
		s.put("z", job{Value: 1})
		s.Advance(time.Second)
		_, js := s.broker()
		stream, err := js.Stream(t.Context(), "evenkeel_work")
		require.NoError(t, err)
		require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject("evenkeel.n.>")))
		locks, err := js.KeyValue(t.Context(), "evenkeel_locks")
		require.NoError(t, err)
		_, err = locks.Put(t.Context(), "lock."+subject.LockKey("jobs", "a"), []byte("by hand"))
		require.NoError(t, err)
		mend()
		s.Advance(15 * time.Minute)
		require.Equal(t, 1, s.get("z").Status.Value)
	})
}

// P5: a stop while the broker refuses what is to be handed over neither spins nor hangs.
func TestStopWithoutAStreamEnds(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.StartWith("a", func(cfg *reconciler.Config) { cfg.Grace = time.Second }, reconciler.For("jobs", work))
		s.put("x", job{Millis: 60_000, Value: 1})
		s.Advance(5 * time.Second)
		nc, js := s.broker()
		require.NoError(t, js.DeleteStream(t.Context(), "evenkeel_work"))
		before := nc.Stats().OutMsgs
		_ = a.Stop() // that not everything could be handed over may be an error; the lock says the rest
		s.Advance(10 * time.Second)
		require.Less(t, nc.Stats().OutMsgs-before, uint64(100))
	})
}

// What waits for a lock stops watching it when its turn ends, however it ends.
func TestWatchesOfLocksEnd(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", work)
		c.Timeout, c.Workers = time.Hour, 32
		s.Start("a", c)
		for i := range 20 {
			s.put(fmt.Sprintf("o%d", i), job{Millis: 600_000})
		}
		s.Advance(2 * time.Second)
		var connection interface{ NumSubscriptions() int }
		s.StartWith("b", func(cfg *reconciler.Config) { connection = cfg.NATS }, c)
		s.Advance(2 * time.Second)
		before := connection.NumSubscriptions()
		for i := range 20 {
			s.put(fmt.Sprintf("o%d", i), job{Value: 1})
		}
		for range 3 { // every try for a lock ends in a timeout, for twelve seconds
			s.Advance(30 * time.Second)
			mend := s.FailBroker(reconcilertest.BrokerFault{Replica: "b", Subject: "locks.lock.jobs."})
			s.Advance(12 * time.Second)
			mend()
		}
		s.Advance(15 * time.Minute)
		s.RunUntilSettled()
		require.LessOrEqual(t, connection.NumSubscriptions(), before)
	})
}

// A time that the server cannot count to is no time that has passed.
func TestRequeueAfterCenturiesSleeps(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", func(context.Context, *jobObject) (reconciler.Result, error) {
			return reconciler.Result{RequeueAfter: math.MaxInt64}, nil
		}))
		s.put("x", job{Value: 1})
		s.Advance(time.Minute)
		require.Len(t, s.Timeline().Of("jobs", "x").Only(reconciler.StepLocked), 1)
	})
}

// R24: a requeue of a replica that was cut off before it could be sent does not come later, in place of a newer one.
func TestRequeueOfAReplicaThatWasCutOffIsNotSentLater(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var good atomic.Bool
		c := reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if o.Spec.Value == 1 {
				<-time.After(3 * time.Second)
				return reconciler.Result{RequeueAfter: 9 * time.Minute}, nil
			}
			if !good.Load() {
				return reconciler.Result{RequeueAfter: 30 * time.Second}, errors.New("a passing fault")
			}
			return work(ctx, o)
		})
		a := s.Start("a", c)
		s.put("x", job{Value: 1})
		s.Advance(time.Second)
		a.CutNATS()
		s.Start("b", c)
		s.Advance(30 * time.Second)
		s.put("x", job{Value: 2})
		s.Advance(5 * time.Second)
		require.Equal(t, apiclient.StateRetrying, s.get("x").Reconciliation.State)
		a.Heal()
		good.Store(true)
		s.Advance(40 * time.Second)
		require.Equal(t, 2, s.get("x").Status.Value)
	})
}
