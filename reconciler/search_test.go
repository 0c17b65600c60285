package reconciler

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

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
		s.has(maxLater / 2)
		room, err := k.roomForLater(t.Context())
		require.NoError(t, err)
		require.Equal(t, maxLater/2, room)
		s.has(maxLater/2 + 1)
		found := make(chan int, 1)
		end := s.always(func(ctx context.Context) {
			room, err := k.roomForLater(ctx)
			if err == nil {
				found <- room
			}
		})
		time.Sleep(10 * laterPause)
		require.Empty(t, found)
		s.has(7)
		time.Sleep(laterPause)
		synctest.Wait()
		require.Len(t, found, 1)
		require.Equal(t, maxLater-7, <-found)
		end()
		s.server.Answer(s.consumers("jobs_later"), script.Error(503, 10008, "temporarily unavailable"))
		_, err = k.roomForLater(t.Context())
		require.ErrorContains(t, err, "temporarily unavailable")
	})
}

// looks are the seconds, from now on, at which the replica asks what a consumer has come to.
func (s *joined) looks(within time.Duration) (at []int) {
	before := len(s.server.Sent(s.consumers("jobs ")))
	for second := range int(within / time.Second) {
		time.Sleep(time.Second)
		synctest.Wait()
		if now := len(s.server.Sent(s.consumers("jobs "))); now > before {
			before = now
			at = append(at, second+1)
		}
	}
	return at
}

// A replica looks for what the broker does not deliver each minute, and when its connection has been away at once and again when
// what was in flight then is not any more.
func TestBrokerIsLookedAtEachMinuteAndAfterAnOutage(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		end := s.always(s.kinds[0].reviveAlways)
		require.Equal(t, []int{60, 120, 180}, s.looks(3*time.Minute+time.Second))
		s.server.Cut()
		s.server.SetDown(false)
		looks := s.looks(2*time.Minute + 30*time.Second)
		require.Len(t, looks, 4)
		require.LessOrEqual(t, looks[0], 8, "the client comes back, and two seconds")
		for i, after := range []int{12, 60, 60} {
			require.Equal(t, after, looks[i+1]-looks[i])
		}
		for _, line := range s.lines() {
			require.NotContains(t, line, "queued again", "nothing was found")
		}
		s.server.Cut()
		s.server.SetDown(true)
		s.events()
		require.Empty(t, s.looks(5*time.Minute))
		for _, e := range s.events() {
			require.NotEqual(t, "revive", e.Reason, "without a connection nothing is asked for")
		}
		end()
	})
}

// What the broker holds and does not deliver is queued again, and said.
func TestNotificationThatIsNotDeliveredIsQueuedAgain(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		require.NoError(t, s.Notify(t.Context(), "jobs", "x", "changed"))
		fresh := s.names.Fresh("jobs", "x")
		end := s.always(s.kinds[0].reviveAlways)
		time.Sleep(time.Minute + time.Second)
		require.Empty(t, s.lines(), "it may be in flight")
		require.Len(t, s.server.Sent(fresh), 1)
		time.Sleep(time.Minute)
		lines := s.lines()
		require.Len(t, lines, 1)
		require.Contains(t, lines[0], "queued again what the broker held and did not deliver")
		require.Contains(t, lines[0], `"count":1`)
		require.Len(t, s.server.Sent(fresh), 2)
		s.server.Answer(s.consumers("jobs"), script.Error(503, 10008, "temporarily unavailable"))
		s.events()
		time.Sleep(time.Minute)
		seen := s.events()
		require.Len(t, seen, 1)
		require.Equal(t, []any{StepTrouble, "revive", "jobs"}, []any{seen[0].Step, seen[0].Reason, seen[0].Kind})
		s.server.Answer(s.consumers("jobs"), script.Silence)
		time.Sleep(time.Minute + time.Second)
		s.events()
		end()
		require.Empty(t, s.events(), "a stop is no trouble")
	})
}
