package reconciler

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/lock"
)

func contextWithCancel(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// A request that fails is not repeated by the client: others go first, and the turn is tried again as a whole.
func TestEachRequestIsSentOnce(t *testing.T) {
	asked := 0
	s := newReplica(t, func(c *Config) {
		c.HTTP.Transport = &through{next: c.HTTP.Transport, before: func(*http.Request) error { asked++; return errors.New("away") }}
	})
	_, err := s.kinds[0].api.Get(t.Context(), "blue")
	require.Error(t, err)
	require.Equal(t, 1, asked)
}

// Requeues come due by the server's clock. An estimate within a second is worth no more than the host's own clock.
func TestTimeIsTheServers(t *testing.T) {
	now := time.Now()
	for offset, want := range map[time.Duration]time.Duration{
		0: 0, offsetIgnored: 0, -offsetIgnored: 0, offsetIgnored + 1: offsetIgnored + 1, -time.Hour: -time.Hour, time.Hour: time.Hour,
	} {
		require.Equal(t, now.Add(want), serverTime(now, offset), "%s", offset)
	}
	synctest.Test(t, func(t *testing.T) { require.Equal(t, time.Now(), newReplica(t, nil).now()) })
}

func TestReplicaIsNotReadyBeforeItRuns(t *testing.T) {
	s := newReplica(t, nil)
	require.EqualError(t, s.Ready(), "reconciler: not running")
	why := errors.New("no JetStream")
	s.preparing.Store(&why)
	require.EqualError(t, s.Ready(), "reconciler: not running yet: prepare NATS: no JetStream")
	require.ErrorIs(t, s.Ready(), why)
	s.preparing.Store(nil)
	s.running.Store(true)
	require.EqualError(t, s.Ready(), "reconciler: not connected to NATS")
}

// What the lock reports of the server's side has what is missing made again; other trouble is only said.
func TestLockTroubleThatMeansALostBucketIsRepaired(t *testing.T) {
	for err, repaired := range map[error]int{
		nats.ErrNoResponders: 1, lock.ErrLimited: 1, nats.ErrTimeout: 0, errors.New("no"): 0,
	} {
		s := newReplica(t, nil)
		s.lockTrouble("sweep", err)
		require.Len(t, s.missing, repaired, "%v", err)
		got := s.events()
		require.Len(t, got, 1)
		require.Equal(t, []any{StepTrouble, "sweep", err}, []any{got[0].Step, got[0].Reason, got[0].Err})
	}
}

// Behind a dead search there is no object, nor behind a key that is none of ours: nothing is queued, and the lock is freed.
func TestLocksOfNoObjectAreFreed(t *testing.T) {
	s := newReplica(t, nil, jobs(), For("trees", doNothing))
	require.NoError(t, s.takeOver(t.Context(), "resync.trees", "b"))
	require.Empty(t, s.events())
	require.NoError(t, s.takeOver(t.Context(), "jobs.what", "b"))
	require.Equal(t, "take over jobs.what", s.events()[0].Reason)
	require.Error(t, s.takeOver(t.Context(), s.kinds[0].lockKey("blue"), "b"), "it cannot be queued now, so its lock stays")
	require.Empty(t, s.events())
}

// A stop waits for functions as long as grace allows, cancels them then, and names those that go on all the same.
func TestStopWaitsThenCancelsThenNames(t *testing.T) {
	for name, c := range map[string]struct {
		runs    time.Duration // of the function after the stop
		heeds   bool          // its cancellation
		took    time.Duration
		aborted bool
		want    string
	}{
		"within grace":         {runs: 24 * time.Second, took: 24 * time.Second},
		"too long":             {runs: time.Hour, heeds: true, took: 25 * time.Second, aborted: true},
		"a little too long":    {runs: 25*time.Second + abandonAfter - 1, took: 25*time.Second + abandonAfter - 1, aborted: true},
		"ignores cancellation": {runs: time.Hour, took: 25*time.Second + abandonAfter, aborted: true, want: "their locks expire in up to 10s: [jobs/a trees/b]"},
		"was over already":     {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newReplica(t, nil, jobs(), For("trees", doNothing))
				working, abort := context.WithCancelCause(t.Context())
				for i, k := range s.kinds {
					k.running[string(rune('a'+i))] = struct{}{}
					k.workers.Go(func() {
						heed := t.Context()
						if c.heeds {
							heed = working
						}
						sleep(heed, c.runs-time.Duration(1-i)) // the second is the last to end
					})
				}
				began := time.Now()
				err := s.finish(abort)
				require.Equal(t, c.took, time.Since(began))
				if c.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.want)
				}
				if c.aborted {
					require.Equal(t, ErrStopping, context.Cause(working))
				} else {
					require.NoError(t, working.Err())
				}
				abort(nil)
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		sleep(t.Context(), time.Minute)
		require.Equal(t, time.Minute, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		sleep(ctx, time.Minute)
		require.Equal(t, time.Minute+time.Second, time.Since(began))
	})
}
