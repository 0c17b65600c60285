package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/broker/bubble"
	"github.com/evenkeel-io/evenkeel/internal/e2e/wire"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// put stores a key of the lock bucket, without a time to live.
func (l *lockers) put(key, value string) {
	l.t.Helper()
	m, err := l.nc.Request("$KV.locks."+key, []byte(value), time.Second)
	require.NoError(l.t, err)
	require.NotContains(l.t, string(m.Data), "error")
}

// keys are the keys of the lock bucket that match a filter.
func (l *lockers) keys(filter string) map[string]uint64 {
	l.t.Helper()
	js, err := jetstream.New(l.nc)
	require.NoError(l.t, err)
	s, err := js.Stream(l.t.Context(), "KV_locks")
	require.NoError(l.t, err)
	info, err := s.Info(l.t.Context(), jetstream.WithSubjectFilter("$KV.locks."+filter))
	require.NoError(l.t, err)
	return info.State.Subjects
}

// free waits until a lock can be taken, releases it, and returns how long that took.
func (l *lockers) free(by *lock.Locker, key string, within time.Duration) time.Duration {
	l.t.Helper()
	began := time.Now()
	for {
		lk, err := by.TryLock(l.t.Context(), key)
		if err == nil {
			lk.Unlock()
			return time.Since(began)
		}
		require.LessOrEqual(l.t, time.Since(began), within, err)
		advance(500 * time.Millisecond)
	}
}

// A server that was killed brings session keys back whose time to live never fires. Only a renewal proves life.
func TestSessionThatIsNotRenewedIsDead(t *testing.T) {
	const lease = lock.DefaultTTL
	bring := func(l *lockers) {
		l.put("session.gone", `{"holder":"gone"}`)
		l.put("session.idle", `{"holder":"idle"}`)
		l.put("lock.x", `{"session":"gone","holder":"gone"}`)
	}
	for name, c := range map[string]struct {
		before, after func(l *lockers)
		waits         bool // another Locker tries to lock it all the time
		within        time.Duration
	}{
		"at a start":            {before: bring, within: lease + 5*time.Second},
		"when the link is back": {after: func(l *lockers) { bring(l); require.NoError(l.t, l.nc.ForceReconnect()) }, within: lease + 8*time.Second},
		"when it is waited for": {after: bring, waits: true, within: lease + 8*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, l *lockers) {
				l.t = t
				if c.before != nil {
					c.before(l)
				}
				alive, stopAlive := l.start("alive")
				defer stopAlive()
				held, err := alive.TryLock(t.Context(), "held")
				require.NoError(t, err)
				b, stop := l.start("b")
				defer stop()
				if c.after != nil {
					advance(10 * time.Minute)
					c.after(l)
				}
				if !c.waits {
					advance(c.within)
					l.mu.Lock()
					require.Contains(t, l.recovered, "x")
					l.mu.Unlock()
					c.within = 0
				}
				l.free(b, "x", c.within)
				advance(3 * time.Minute)
				require.Len(t, l.keys("session.*"), 2, "the keys of dead sessions are removed, also of those that hold nothing")
				require.False(t, held.Lost(), "a session that is renewed is alive")
				require.Contains(t, l.recovered, "x")
			})
		})
	}
}

// TestKilledBrokerBringsNoDeadHolderBack: replicas come and go for minutes, then the broker is killed: what its folder holds
// is all that is left. It brings back keys of sessions that had ended, and locks that had been released.
func TestKilledBrokerBringsNoDeadHolderBack(t *testing.T) {
	dir := t.TempDir()
	bubble.Run(t, func(t *testing.T) {
		s, err := broker.Start(dir, "")
		require.NoError(t, err)
		link, nc := wire.New(t, s, 0)
		defer nc.Close()
		require.NoError(t, notify.Streams(t.Context(), nc, notify.Config{}, "jobs"))
		publisher, err := notify.NewPublisher(nc, notify.Config{})
		require.NoError(t, err)
		memory := apitest.NewMemory(publisher.Publish)
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Go(func() { _ = memory.Run(ctx) })
		jobs, err := apiclient.New[job, done](apiclient.Config{URL: "http://api", HTTP: memory.Client()}, "jobs")
		require.NoError(t, err)
		start := func() (stop func()) {
			ctx, cancel := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() {
				ended <- reconciler.Run(ctx, reconciler.Config{NATS: nc, API: "http://api", HTTP: memory.Client(), Storage: jetstream.FileStorage},
					reconciler.ForWithCleanup("jobs", work, func(context.Context, *jobObject) (reconciler.Result, error) {
						return reconciler.Result{}, nil
					}))
			}()
			return func() { cancel(); require.NoError(t, <-ended) }
		}
		put := func(value int) {
			for i := range 12 {
				_, err := jobs.Put(ctx, fmt.Sprintf("o%d", i), job{Value: value})
				require.NoError(t, err)
			}
		}
		stop := start()
		put(1)
		advance(time.Minute)
		stop()
		stop = start()
		defer func() { stop() }()
		advance(10*time.Minute + 30*time.Second)

		killed, err := broker.Start(copied(t, dir), "")
		require.NoError(t, err)
		defer broker.Stop(killed)
		require.Greater(t, sessions(t, killed), 1, "nothing comes back: have servers learned to remember what they removed?")
		link.MoveTo(killed)
		broker.Stop(s)
		advance(5 * time.Second)
		put(2)
		advance(time.Minute)
		for i := range 12 {
			o, err := jobs.Get(ctx, fmt.Sprintf("o%d", i))
			require.NoError(t, err)
			require.Equal(t, 2, o.Status.Value, o.Name)
			_, err = jobs.Delete(ctx, o.Name)
			require.NoError(t, err)
		}
		advance(time.Minute)
		for i := range 12 {
			_, err := jobs.Get(ctx, fmt.Sprintf("o%d", i))
			require.ErrorIs(t, err, apiclient.ErrNotFound, "deletions work, too")
		}
		require.Equal(t, 1, sessions(t, killed), "what came back is removed")
	})
}

// sessions is how many keys of sessions a broker has.
func sessions(t *testing.T, s nats.InProcessConnProvider) int {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(s))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	st, err := js.Stream(t.Context(), "KV_evenkeel_locks")
	require.NoError(t, err)
	info, err := st.Info(t.Context(), jetstream.WithSubjectFilter("$KV.evenkeel_locks.session.*"))
	require.NoError(t, err)
	return len(info.State.Subjects)
}

// A marker that the server forgot to remove does no harm, and is removed.
func TestMarkerWithoutTimeToLiveIsRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		m := nats.NewMsg("$KV.locks.lock.x")
		m.Header.Set("KV-Operation", "DEL")
		_, err := l.nc.RequestMsg(m, time.Second)
		require.NoError(t, err)
		a, stop := l.start("a")
		defer stop()
		advance(3 * time.Minute)
		require.Empty(t, l.keys("lock.>"))
		l.free(a, "x", 0)
	})
}

// P1: the lock is the only record of a dead holder's work. It stays until that is queued again, however often that fails.
func TestDeadHoldersLockIsHeldUntilItIsRecovered(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		calls := 0
		var b *lock.Locker
		b, err := lock.New(l.nc, lock.Config{Bucket: "locks", Holder: "b", Keys: []string{">"}, Recover: func(ctx context.Context, key, _ string) error {
			calls++
			advance(100 * time.Millisecond)
			held, err := b.Held(ctx, key)
			require.NoError(t, err)
			require.True(t, held, "call %d", calls)
			if calls < 4 {
				return errors.New("fails")
			}
			return nil
		}})
		require.NoError(t, err)
		l.put("lock.x", `{"session":"gone","holder":"dead"}`)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		defer func() { cancel(); require.NoError(t, <-done) }()
		l.free(b, "x", 15*time.Second)
		require.Equal(t, 4, calls)
	})
}
