package reconciler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// always runs something that goes on until its context ends, and returns what ends it.
func (s *joined) always(f func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() { f(ctx); close(done) }()
	return func() {
		cancel()
		<-done
	}
}

// One replica searches at a time. The others have nothing to say about that.
func TestSearchOfAnotherReplicaIsNoTrouble(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		rival, resign := s.rival()
		defer resign()
		lk, err := rival.TryLock(t.Context(), subject.ResyncLockKey("jobs"))
		require.NoError(t, err)
		end := s.always(s.kinds[0].resyncAlways)
		time.Sleep(3 * time.Minute)
		require.Empty(t, s.requests(), "it does not search beside it")
		require.Empty(t, s.events())
		lk.Unlock()
		time.Sleep(2 * DefaultResync)
		require.NotEmpty(t, s.requests())
		end()
		require.Empty(t, s.events())
	})
}

// A search that is asked for comes when what was lost has been owed for long enough to be found, and a second one soon after it,
// as after a start.
func TestSearchThatIsAskedForIsFollowedByASecond(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		k := s.kinds[0]
		end := s.always(k.resyncAlways)
		defer end()
		time.Sleep(2 * DefaultResync)
		s.requests()
		var asked time.Time
		for { // until the next search is some minutes away
			time.Sleep(time.Second)
			if len(s.requests()) > 0 {
				break
			}
		}
		asked = time.Now()
		k.resyncSoon()
		time.Sleep(owedFor - time.Millisecond)
		require.Empty(t, s.requests())
		time.Sleep(2 * time.Millisecond)
		require.NotEmpty(t, s.requests(), "%s after it was asked for", time.Since(asked))
		time.Sleep(firstResync + firstResync/10)
		require.NotEmpty(t, s.requests())
	})
}

// A search fills the later lane to a bound, and goes on when half of that has been worked off.
func TestSearchWaitsForItsFindsToBeWorkedOff(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		k := s.kinds[0]
		put := func(from, to int) {
			for i := from; i < to; i++ {
				_, err := s.publisher.PublishLater(t.Context(), "jobs", fmt.Sprint(i), "resync")
				require.NoError(t, err)
			}
		}
		put(0, maxLater/2)
		room, err := k.roomForLater(t.Context())
		require.NoError(t, err)
		require.Equal(t, maxLater/2, room)
		put(maxLater/2, maxLater/2+1)
		found := make(chan int, 1)
		end := s.always(func(ctx context.Context) {
			room, err := k.roomForLater(ctx)
			if err == nil {
				found <- room
			}
		})
		time.Sleep(10 * laterPause)
		require.Empty(t, found)
		js, err := s.nc.JetStream()
		require.NoError(t, err)
		names := subject.Names{Prefix: s.cfg.Prefix}
		require.NoError(t, js.PurgeStream(names.WorkStream(), &nats.StreamPurgeRequest{Subject: names.Later("jobs", "0")}))
		time.Sleep(laterPause)
		synctest.Wait()
		require.Len(t, found, 1)
		require.Equal(t, maxLater/2, <-found)
		end()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = k.roomForLater(ctx)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// A replica looks for what the broker does not deliver each minute, and when its connection has been away at once and again when
// what was in flight then is not any more.
func TestBrokerIsLookedAtEachMinuteAndAfterAnOutage(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		other, err := broker.Connect(s.server)
		require.NoError(t, err)
		defer other.Close()
		var began time.Time
		var looks []time.Duration // since it began, in seconds
		_, err = other.Subscribe("$JS.API.CONSUMER.INFO.>", func(m *nats.Msg) {
			if strings.HasSuffix(m.Subject, ".jobs") {
				looks = append(looks, time.Since(began)/time.Second)
			}
		})
		require.NoError(t, err)
		require.NoError(t, other.Flush())
		began = time.Now()
		end := s.always(s.kinds[0].reviveAlways)
		time.Sleep(3*time.Minute + time.Second)
		synctest.Wait()
		require.Equal(t, []time.Duration{60, 120, 180}, looks)
		looks, began = nil, time.Now()
		require.NoError(t, s.nc.ForceReconnect())
		time.Sleep(2*time.Minute + 30*time.Second)
		synctest.Wait()
		require.Len(t, looks, 4)
		require.LessOrEqual(t, looks[0], 4*time.Second/time.Second)
		for i, after := range []time.Duration{12, 60, 60} {
			require.Equal(t, after, looks[i+1]-looks[i])
		}
		end()
		require.Empty(t, s.events())
		require.Empty(t, s.lines(), "nothing was found")
	})
}

// What the broker holds and does not deliver is queued again, and said.
func TestNotificationThatIsNotDeliveredIsQueuedAgain(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		d := s.deliver("x")
		end := s.always(s.kinds[0].reviveAlways)
		time.Sleep(time.Minute + time.Second)
		require.Empty(t, s.lines(), "it may be in flight")
		time.Sleep(time.Minute)
		lines := s.lines()
		require.Len(t, lines, 1)
		require.Contains(t, lines[0], "queued again what the broker held and did not deliver")
		require.Contains(t, lines[0], `"count":1`)
		require.Error(t, d.Take(t.Context()), "it was replaced")
		js, err := s.nc.JetStream()
		require.NoError(t, err)
		require.NoError(t, js.DeleteConsumer(subject.Names{Prefix: s.cfg.Prefix}.WorkStream(), "jobs"))
		s.lines()
		time.Sleep(time.Minute)
		seen := s.events()
		require.Len(t, seen, 1)
		require.Equal(t, []any{StepTrouble, "revive", "jobs"}, []any{seen[0].Step, seen[0].Reason, seen[0].Kind})
		s.resign()
		broker.Stop(s.server)
		s.events()
		time.Sleep(5 * time.Minute)
		for _, e := range s.events() {
			require.NotEqual(t, "revive", e.Reason, "without a connection nothing is asked for")
		}
		end()
	})
}
