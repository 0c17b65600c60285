package e2e

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/lock"
)

// lockers is a broker in virtual time with lockers on it.
type lockers struct {
	t  *testing.T
	nc *nats.Conn
	mu sync.Mutex
	// recovered are the keys that were passed to Recover.
	recovered []string
}

func inBubble(t *testing.T, f func(t *testing.T, l *lockers)) {
	t.Helper()
	withServer(t, nil, func(t *testing.T, _ *server.Server, nc *nats.Conn, js jetstream.JetStream) {
		require.NoError(t, lock.Ensure(t.Context(), js, "locks", 1, jetstream.MemoryStorage))
		f(t, &lockers{t: t, nc: nc})
	})
}

// advance lets virtual time pass.
func advance(d time.Duration) { <-time.After(d) }

// start runs a locker until stop is called.
func (l *lockers) start(name string) (locker *lock.Locker, stop func()) {
	l.t.Helper()
	ready := make(chan struct{})
	locker, err := lock.New(l.nc, lock.Config{
		Bucket: "locks", Holder: name, Keys: []string{">"}, OnReady: sync.OnceFunc(func() { close(ready) }),
		Recover: func(_ context.Context, key, _ string) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.recovered = append(l.recovered, key)
			return nil
		},
		OnError: func(doing string, err error) { l.t.Log(name, doing, err) },
	})
	require.NoError(l.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- locker.Run(ctx) }()
	<-ready
	return locker, sync.OnceFunc(func() {
		cancel()
		require.NoError(l.t, <-done)
	})
}

func TestLockIsExclusiveAndFencesGrow(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stopA := l.start("a")
		defer stopA()
		b, stopB := l.start("b")
		defer stopB()
		first, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		_, err = b.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, lock.ErrHeld)
		require.ErrorContains(t, err, "by a")
		_, err = a.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, lock.ErrHeld, "a process excludes itself too")
		require.ErrorContains(t, err, "by a", "and does not wait for a release that is not on its way")
		first.Unlock()
		require.ErrorIs(t, context.Cause(first.Context()), lock.ErrReleased)
		synctest.Wait()
		second, err := b.TryLock(t.Context(), "x")
		require.NoError(t, err)
		require.Greater(t, second.Fence(), first.Fence())
		advance(time.Hour)
		require.False(t, second.Lost(), "it is renewed for as long as it is held")
		require.NoError(t, context.Cause(second.Context()))
		second.Unlock()
	})
}

func TestCleanStopLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stop := l.start("a")
		lk, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		lk.Unlock()
		stop()
		advance(lock.DefaultTTL + time.Second)
		js, _ := jetstream.New(l.nc)
		s, err := js.Stream(t.Context(), "KV_locks")
		require.NoError(t, err)
		info, err := s.Info(t.Context())
		require.NoError(t, err)
		require.Zero(t, info.State.Msgs, "locks, sessions and markers are gone, and that the session was closed is forgotten")
		require.False(t, a.Ready())
		_, err = a.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, lock.ErrNoSession)
	})
}

func TestDeadHoldersLockIsRecoveredThenFreed(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		// A dead holder is a lock whose session never lived.
		_, err := l.nc.Request("$KV.locks.lock.x", []byte(`{"session":"gone","holder":"dead"}`), time.Second)
		require.NoError(t, err)
		b, stop := l.start("b")
		defer stop()
		began := time.Now()
		for {
			lk, err := b.TryLock(t.Context(), "x")
			if err == nil {
				lk.Unlock()
				break
			}
			require.ErrorIs(t, err, lock.ErrHeld)
			advance(100 * time.Millisecond)
		}
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
		require.Equal(t, []string{"x"}, l.recovered[:1])
	})
}

// TestReleasedLockThatComesBackIsFreed: a server that was killed may bring back a lock whose release it had confirmed. Its
// session lives, so nobody else can tell that nothing stands behind it.
func TestReleasedLockThatComesBackIsFreed(t *testing.T) {
	for name, c := range map[string]struct {
		event  func(l *lockers)
		within time.Duration
	}{
		"with the connection": {func(l *lockers) { require.NoError(l.t, l.nc.ForceReconnect()) }, 7 * time.Second},
		"unseen":              {func(*lockers) {}, 65 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, l *lockers) {
				l.t = t
				a, stopA := l.start("a")
				defer stopA()
				b, stopB := l.start("b")
				defer stopB()
				held, err := a.TryLock(t.Context(), "held")
				require.NoError(t, err)
				lk, err := a.TryLock(t.Context(), "x")
				require.NoError(t, err)
				js, err := jetstream.New(l.nc)
				require.NoError(t, err)
				kv, err := js.KeyValue(t.Context(), "locks")
				require.NoError(t, err)
				entry, err := kv.Get(t.Context(), "lock.x")
				require.NoError(t, err)
				lk.Unlock()
				advance(10 * time.Second) // the marker has expired, and the sweeps of a start are over
				_, err = kv.Create(t.Context(), "lock.x", entry.Value())
				require.NoError(t, err)
				c.event(l)
				began := time.Now()
				for {
					lk, err := b.TryLock(t.Context(), "x")
					if err == nil {
						lk.Unlock()
						break
					}
					require.LessOrEqual(t, time.Since(began), c.within, err)
					advance(100 * time.Millisecond)
				}
				_, err = b.TryLock(t.Context(), "held")
				require.ErrorIs(t, err, lock.ErrHeld, "what is held stays so")
				require.NoError(t, context.Cause(held.Context()))
				held.Unlock()
			})
		})
	}
}

func TestLostSessionCancelsBeforeARivalCanStart(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stopA := l.start("a")
		b, stopB := l.start("b")
		defer stopB()
		lk, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		// Somebody deletes a's session: the renewal is refused.
		js, _ := jetstream.New(l.nc)
		kv, err := js.KeyValue(t.Context(), "locks")
		require.NoError(t, err)
		keys, err := kv.Keys(t.Context())
		require.NoError(t, err)
		for _, k := range keys {
			if k != "lock.x" {
				require.NoError(t, kv.Delete(t.Context(), k))
			}
		}
		<-lk.Context().Done()
		lost := time.Now()
		require.ErrorIs(t, context.Cause(lk.Context()), lock.ErrLost)
		require.True(t, lk.Lost())
		lk.Unlock() // of a lock that is lost: it must not free the next holder's
		stopA()
		for {
			next, err := b.TryLock(t.Context(), "x")
			if err == nil {
				require.Greater(t, next.Fence(), lk.Fence())
				require.True(t, time.Now().After(lost) || time.Now().Equal(lost))
				next.Unlock()
				break
			}
			if time.Since(lost) > 3*time.Minute {
				require.NoError(t, err)
			}
			if !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrNoSession) && !errors.Is(err, lock.ErrLost) {
				require.NoError(t, err)
			}
			advance(100 * time.Millisecond)
		}
	})
}

func TestReleaseIsHeardOf(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stopA := l.start("a")
		defer stopA()
		b, stopB := l.start("b")
		defer stopB()
		lk, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		heard := make(chan struct{}, 10)
		stop, err := b.OnRelease("x", func() { heard <- struct{}{} })
		require.NoError(t, err)
		lk.Unlock()
		<-heard
		stop()
	})
}

func TestBadLockConfigIsNamed(t *testing.T) {
	nc := &nats.Conn{}
	for _, c := range []struct {
		cfg  lock.Config
		want string
	}{
		{lock.Config{}, "Bucket"},
		{lock.Config{Bucket: "b", TTL: 1500 * time.Millisecond}, "whole seconds"},
		{lock.Config{Bucket: "b", Keys: []string{">"}}, "Recover"},
	} {
		_, err := lock.New(nc, c.cfg)
		require.ErrorContains(t, err, c.want)
	}
}

// R12, R14: whoever lost a lock and releases it late leaves the next holder's alone.
func TestLateReleaseLeavesTheNextHoldersLock(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stopA := l.start("a")
		defer stopA()
		b, stopB := l.start("b")
		defer stopB()
		lost, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		// The lock passes on behind its holder's back.
		_, err = l.nc.Request("$KV.locks.lock.x", []byte(`{"session":"gone","holder":"somebody"}`), time.Second)
		require.NoError(t, err)
		advance(time.Minute + 10*time.Second) // it is swept
		next, err := b.TryLock(t.Context(), "x")
		require.NoError(t, err)
		lost.Unlock()
		advance(5 * time.Second)
		_, err = a.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, lock.ErrHeld)
		require.False(t, next.Lost())
		next.Unlock()
	})
}
