package api

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// sweeper is a relay that runs in virtual time on a store in memory.
type sweeper struct {
	t    *testing.T
	api  *API
	stop func()

	mu     sync.Mutex
	fail   map[string]bool            // the names of objects that cannot be notified
	heard  map[string][]time.Duration // when each object was tried, since the relay began
	logged []string
}

// sweeps runs do beside a relay, in virtual time.
func sweeps(t *testing.T, do func(t *testing.T, s *sweeper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &sweeper{t: t, fail: map[string]bool{}, heard: map[string][]time.Duration{}}
		began := time.Now()
		s.api = open(t, "sqlite::memory:", func(_ context.Context, _, name, _ string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.heard[name] = append(s.heard[name], time.Since(began))
			if s.fail[name] {
				return errDown
			}
			return nil
		})
		began = time.Now() // goose waits now and then
		s.api.relay.log = funcr.New(func(_, args string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.logged = append(s.logged, args)
		}, funcr.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			require.NoError(t, s.api.relay.run(ctx))
		}()
		s.stop = sync.OnceFunc(func() { cancel(); <-ended })
		defer s.stop()
		synctest.Wait()
		do(t, s)
	})
}

// write makes an object of which nobody nudges the relay, which cannot be notified if it is bad.
func (s *sweeper) write(name string, bad bool) objects.Key {
	s.t.Helper()
	s.mu.Lock()
	s.fail[name] = bad
	s.mu.Unlock()
	k := objects.Key{Kind: "widgets", Name: name}
	_, err := s.api.store.create(s.t.Context(), k, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
	require.NoError(s.t, err)
	return k
}

// tried is when an object was, and forgets it.
func (s *sweeper) tried(name string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer delete(s.heard, name)
	return s.heard[name]
}

func (s *sweeper) setBad(name string, bad bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail[name] = bad
}

// wantBackoff: the tries are as far apart as they should be after so many earlier failures.
func wantBackoff(t *testing.T, failures int, tries []time.Duration) {
	t.Helper()
	for i := range len(tries) - 1 {
		most := lastRetry
		for d, n := firstRetry, failures+i; d < lastRetry; d *= 2 {
			if n--; n < 0 {
				most = d
				break
			}
		}
		gap := tries[i+1] - tries[i]
		require.GreaterOrEqual(t, gap, most/2, "after %d failures", failures+i)
		require.Less(t, gap, most, "after %d failures", failures+i)
	}
}

// TestSweepsBackOffInAnOutage, each time anew: the broker is asked again soon at first, and never less than every 5 seconds.
func TestSweepsBackOffInAnOutage(t *testing.T) {
	sweeps(t, func(t *testing.T, s *sweeper) {
		for range 2 {
			s.logged = nil
			s.write("w", true)
			time.Sleep(30 * time.Second)
			synctest.Wait()
			tries := s.tried("w")
			require.Greater(t, len(tries), 10)
			wantBackoff(t, 0, tries)
			require.Len(t, s.logged, len(tries))
			for i, line := range s.logged {
				require.Contains(t, line, "notify widgets/w")
				require.Contains(t, line, fmt.Sprintf(`"failures"=%d`, i+1))
			}
			s.setBad("w", false)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			require.Len(t, s.tried("w"), 1)
			_, _, err := s.api.store.change(t.Context(), objects.Key{Kind: "widgets", Name: "w"}, objects.RequestRetry)
			require.NoError(t, err)
			time.Sleep(defaultPoll)
			synctest.Wait()
			require.Len(t, s.tried("w"), 1, "the sweeps are as often as before")
			_, e, err := s.api.store.change(t.Context(), objects.Key{Kind: "widgets", Name: "w"}, objects.RequestDeletion)
			require.NoError(t, err)
			require.True(t, e.Gone)
			time.Sleep(defaultPoll)
			synctest.Wait()
			require.Len(t, s.tried("w"), 1)
		}
	})
}

// TestFirstFailureBringsTheSweepForward: who wrote when the broker was away for a moment does not wait for the next poll.
func TestFirstFailureBringsTheSweepForward(t *testing.T) {
	sweeps(t, func(t *testing.T, s *sweeper) {
		s.api.relay.nudge(s.write("w", true))
		time.Sleep(defaultPoll / 2)
		synctest.Wait()
		tries := s.tried("w")
		require.Greater(t, len(tries), 2)
		require.Zero(t, tries[0])
		wantBackoff(t, 0, tries)
	})
}

// TestWritesPutOffNoSweep: neither those that are notified nor those that cannot be. What nobody nudges the relay about is told
// at the next poll, or when the broker is asked again.
func TestWritesPutOffNoSweep(t *testing.T) {
	for _, bad := range []bool{false, true} {
		sweeps(t, func(t *testing.T, s *sweeper) {
			often := s.write("often", bad)
			s.api.relay.nudge(often)
			synctest.Wait()
			s.write("unknown", false)
			var told []time.Duration
			for range 200 {
				time.Sleep(10 * time.Millisecond)
				_, _, err := s.api.store.change(t.Context(), often, objects.RequestRetry)
				require.NoError(t, err)
				s.api.relay.nudge(often)
				synctest.Wait()
				told = append(told, s.tried("unknown")...)
			}
			require.Len(t, told, 1)
			if bad {
				wantBackoff(t, 0, []time.Duration{0, told[0]})
				return
			}
			require.Equal(t, defaultPoll, told[0], "a write that is notified costs no sweep")
		})
	}
}

// TestLagGrowsWhileSomethingCannotBeRelayed, from the beginning, and is none before and afterwards.
func TestLagGrowsWhileSomethingCannotBeRelayed(t *testing.T) {
	sweeps(t, func(t *testing.T, s *sweeper) {
		lag := s.api.relay.lag
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Zero(t, lag())
		s.write("w", true)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, time.Minute-defaultPoll, lag(), "it is as long as the last sweep that found all relayed is ago, but for a poll")
		s.setBad("w", false)
		time.Sleep(lastRetry)
		synctest.Wait()
		require.Zero(t, lag())
		s.stop()
		time.Sleep(time.Hour)
		require.Zero(t, lag(), "nobody relays")
		require.NotEmpty(t, s.logged)
	})
}

// TestRelayThatNeverSucceededLags, since it began.
func TestRelayThatNeverSucceededLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries []time.Duration
		var began time.Time
		a := open(t, "sqlite::memory:", func(context.Context, string, string, string) error {
			tries = append(tries, time.Since(began))
			return errDown
		})
		create(t, a, 1)
		began = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- a.relay.run(ctx) }()
		time.Sleep(time.Minute)
		lag := a.relay.lag()
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, time.Minute-defaultPoll, lag)
		wantBackoff(t, 0, tries)
	})
}

// TestStopIsNoFailure: a relay that is stopped in the middle of a sweep logs nothing.
func TestStopIsNoFailure(t *testing.T) {
	var logged []string
	begun := make(chan struct{})
	a := open(t, "sqlite::memory:", func(ctx context.Context, _, _, _ string) error {
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	})
	a.relay.log = funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	create(t, a, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.relay.run(ctx) }()
	<-begun
	cancel()
	require.NoError(t, <-ended)
	require.Empty(t, logged, strings.Join(logged, "\n"))
}
