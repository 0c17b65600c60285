package e2e

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// An operator's limits on the lock bucket remove locks that are held, or refuse new ones: they are taken off. What ran under
// a lock that may be gone is cancelled before another replica has been on the object for long.
func TestLimitOnTheLockBucketIsTakenOff(t *testing.T) {
	for name, limit := range map[string]func(cfg *jetstream.StreamConfig){
		"drops the oldest": func(cfg *jetstream.StreamConfig) { cfg.MaxMsgs, cfg.Discard = 2, jetstream.DiscardOld },
		"drops by age":     func(cfg *jetstream.StreamConfig) { cfg.MaxAge, cfg.Duplicates = 3*time.Second, time.Second },
		"refuses":          func(cfg *jetstream.StreamConfig) { cfg.MaxMsgs, cfg.MaxBytes, cfg.MaxMsgSize = 3, 1000, 100 },
		"keeps history":    func(cfg *jetstream.StreamConfig) { cfg.MaxMsgsPerSubject = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				var log lines
				s.StartWith("a", log.sink, reconciler.For("jobs", work))
				s.StartWith("b", log.sink, reconciler.For("jobs", work))
				s.Advance(2 * time.Minute)
				for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
					s.put(name, job{Millis: 60_000, Value: 1})
				}
				s.Advance(time.Second)
				_, js := s.broker()
				cfg := s.stream(js, "KV_evenkeel_locks").Config
				limit(&cfg)
				_, err := js.UpdateStream(t.Context(), cfg)
				require.NoError(t, err)
				for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
					s.put(name, job{Millis: 20_000, Value: 2})
				}
				s.Advance(4 * time.Minute)
				s.AssertConverged()
				have := s.stream(js, "KV_evenkeel_locks").Config
				require.LessOrEqual(t, have.MaxMsgs, int64(0))
				require.LessOrEqual(t, have.MaxBytes, int64(0))
				require.Zero(t, have.MaxAge)
				require.EqualValues(t, 1, have.MaxMsgsPerSubject)
				require.Equal(t, jetstream.DiscardNew, have.Discard)
				require.Contains(t, log.text(), lock.ErrLimited.Error())
				for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
					runs := s.runs(name)
					for i, r := range runs[1:] {
						require.Less(t, runs[i].End.Sub(r.Start), 3*time.Second, "%s: two writers: %+v", name, runs)
					}
				}
			})
		})
	}
}
