package realtime

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/e2e/wire"
	"github.com/evenkeel-io/evenkeel/lock"
)

// stalled is two lockers on a broker, in real time, of which one's link can be stalled. In virtual time it cannot be: who
// waits for the client's mutex is not idle for the bubble, so time would stand still.
type stalled struct {
	a, b *lock.Locker
	link *wire.Wire
	stop func() error // of a
}

func stallable(t *testing.T) stalled {
	t.Helper()
	s, err := broker.Start(t.TempDir(), "")
	require.NoError(t, err)
	t.Cleanup(func() { broker.Stop(s) })
	link, ncA := wire.New(t, s, 0)
	ncB, err := broker.Connect(s)
	require.NoError(t, err)
	js, err := jetstream.New(ncB)
	require.NoError(t, err)
	require.NoError(t, lock.Ensure(t.Context(), js, "locks", 1, jetstream.MemoryStorage))
	run := func(nc *nats.Conn, name string) (*lock.Locker, func() error) {
		ready := make(chan struct{}, 10)
		l, err := lock.New(nc, lock.Config{
			Bucket: "locks", TTL: 2 * time.Second, Holder: name, Keys: []string{">"}, OnReady: func() { ready <- struct{}{} },
			Recover: func(context.Context, string, string) error { return nil },
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		<-ready
		return l, sync.OnceValue(func() error { cancel(); return <-done })
	}
	x := stalled{link: link}
	var stopB func() error
	x.a, x.stop = run(ncA, "a")
	x.b, stopB = run(ncB, "b")
	t.Cleanup(func() {
		_ = x.stop()
		require.NoError(t, stopB())
		ncA.Close()
		ncB.Close()
	})
	return x
}

// congest stalls the link and has the application send over it, so that the client's mutex is held. It returns when the
// client blocks.
func (x stalled) congest(t *testing.T) (resume func()) {
	t.Helper()
	blocks, resume := x.link.Stall()
	var tries sync.WaitGroup
	tries.Go(func() { _, _ = x.a.TryLock(context.Background(), "busy") })
	await(t, "the client blocks", blocks)
	t.Cleanup(tries.Wait)
	t.Cleanup(resume)
	return resume
}

// TestStalledLinkCancelsLocksBeforeTheNextHolder: the client holds its mutex while a write blocks, so that every call of it
// blocks, whatever its context says. The lock's context is cancelled all the same.
func TestStalledLinkCancelsLocksBeforeTheNextHolder(t *testing.T) {
	t.Parallel()
	x := stallable(t)
	held, err := x.a.TryLock(t.Context(), "x")
	require.NoError(t, err)
	x.congest(t)
	freed := make(chan struct{})
	unwatch, err := x.b.OnRelease("x", sync.OnceFunc(func() { close(freed) }))
	require.NoError(t, err)
	defer unwatch()
	_, err = x.b.TryLock(t.Context(), "x")
	require.ErrorIs(t, err, lock.ErrHeld)
	await(t, "the lock is recovered", freed)
	next, err := x.b.TryLock(t.Context(), "x")
	require.NoError(t, err)
	require.ErrorIs(t, context.Cause(held.Context()), lock.ErrLost, "the next one began")
	require.Equal(t, &lock.Predecessor{Holder: "a", Died: true}, next.Predecessor())
	next.Unlock()
}

// A holder that releases a lock over a stalled link goes on at once: it is not the one to wait for it.
func TestUnlockDoesNotWaitForAStalledLink(t *testing.T) {
	t.Parallel()
	x := stallable(t)
	var held []*lock.Lock
	for i := range 3 {
		lk, err := x.a.TryLock(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
		held = append(held, lk)
	}
	resume := x.congest(t)
	unlocked := make(chan struct{})
	go func() {
		defer close(unlocked)
		for _, lk := range held {
			lk.Unlock()
		}
	}()
	await(t, "all are unlocked", unlocked)
	resume()
}

func TestStopReturnsWhileTheLinkIsStalled(t *testing.T) {
	t.Parallel()
	x := stallable(t)
	held, err := x.a.TryLock(t.Context(), "x")
	require.NoError(t, err)
	resume := x.congest(t)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := x.stop(); err != nil {
			t.Log(err)
		}
	}()
	await(t, "it has stopped", stopped)
	require.ErrorIs(t, context.Cause(held.Context()), lock.ErrLost)
	resume()
}
