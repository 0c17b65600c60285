package e2e

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/requeue"
)

// delayed is a way to the broker on which what the client writes can be kept for a while, as a network does.
type delayed struct {
	s    *server.Server
	mu   sync.Mutex
	keep bool
	kept []byte
	conn net.Conn
}

func (l *delayed) InProcessConn() (net.Conn, error) {
	c, err := l.s.InProcessConn()
	l.conn = c
	return &delayedConn{Conn: c, link: l}, err
}

func (l *delayed) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep = true
}

func (l *delayed) pass(t *testing.T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.conn.Write(l.kept)
	require.NoError(t, err)
	l.keep, l.kept = false, nil
}

type delayedConn struct {
	net.Conn
	link *delayed
}

func (c *delayedConn) Write(b []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.link.keep {
		c.link.kept = append(c.link.kept, b...)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// blocking is a way to the broker that takes no bytes any more once it is told to.
type blocking struct {
	s       *server.Server
	stalled atomic.Bool
	blocked chan struct{} // gets a value when a write begins to hang
	end     chan struct{} // closed to let it go
}

func (l *blocking) InProcessConn() (net.Conn, error) {
	c, err := l.s.InProcessConn()
	return &blockingConn{Conn: c, link: l}, err
}

type blockingConn struct {
	net.Conn
	link *blocking
}

func (c *blockingConn) Write(b []byte) (int, error) {
	if c.link.stalled.Load() {
		select {
		case c.link.blocked <- struct{}{}:
		default:
		}
		<-c.link.end
	}
	return c.Conn.Write(b)
}

// withDelayedLink gives f a work stream, a connection to it over a link with delays, and one without.
func withDelayedLink(t *testing.T, f func(t *testing.T, link *delayed, slow, nc *nats.Conn)) {
	t.Helper()
	forgetTimers()
	defer forgetTimers()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := broker.Start(dir, "")
		require.NoError(t, err)
		defer broker.Stop(s)
		nc, err := broker.Connect(s)
		require.NoError(t, err)
		defer nc.Close()
		require.NoError(t, notify.Streams(t.Context(), nc, memory, "widgets"))
		link := &delayed{s: s}
		slow, err := nats.Connect("", nats.InProcessServer(link), nats.MaxReconnects(-1))
		require.NoError(t, err)
		defer slow.Close()
		f(t, link, slow, nc)
	})
}

// R24: a requeue that was on its way for long, from a replica that has lost the lock meanwhile, does not replace that of
// the present holder.
func TestLateRequeueDoesNotReplaceANewerOne(t *testing.T) {
	withDelayedLink(t, func(t *testing.T, link *delayed, slow, nc *nats.Conn) {
		former, err := requeue.NewQueue(slow, notify.DefaultPrefix)
		require.NoError(t, err)
		holder, err := requeue.NewQueue(nc, notify.DefaultPrefix)
		require.NoError(t, err)
		q := &queue{t: t, nc: nc}
		defer q.pull(10)()
		link.hold()
		require.Error(t, former.At(t.Context(), "widgets", "x", time.Now().Add(9*time.Minute), nil))
		require.NoError(t, holder.At(t.Context(), "widgets", "x", time.Now().Add(40*time.Second), nil))
		link.pass(t)
		advance(41 * time.Second)
		require.Equal(t, []string{"x"}, q.names())
	})
}

// The present holder's requeue replaces one that a former holder's late request left behind.
func TestRequeueReplacesALateOne(t *testing.T) {
	withDelayedLink(t, func(t *testing.T, link *delayed, slow, nc *nats.Conn) {
		former, err := requeue.NewQueue(slow, notify.DefaultPrefix)
		require.NoError(t, err)
		holder, err := requeue.NewQueue(nc, notify.DefaultPrefix)
		require.NoError(t, err)
		q := &queue{t: t, nc: nc}
		defer q.pull(10)()
		link.hold()
		require.Error(t, former.At(t.Context(), "widgets", "x", time.Now().Add(9*time.Minute), nil))
		link.pass(t)
		synctest.Wait()
		require.NoError(t, holder.At(t.Context(), "widgets", "x", time.Now().Add(40*time.Second), nil))
		advance(41 * time.Second)
		require.Equal(t, []string{"x"}, q.names())
	})
}

// P5: a stop waits for no call of the client that hangs on a link which takes no bytes. In real time, because the client
// hangs in a mutex then, and so does virtual time.
func TestStopOfAConsumerDoesNotHangOnAStalledLink(t *testing.T) {
	s, err := broker.Start(t.TempDir(), "")
	require.NoError(t, err)
	defer broker.Stop(s)
	link := &blocking{s: s, blocked: make(chan struct{}, 1), end: make(chan struct{})}
	nc, err := nats.Connect("", nats.InProcessServer(link))
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, notify.Streams(t.Context(), nc, memory, "widgets"))
	c, err := notify.NewConsumer(t.Context(), nc, notify.ConsumerConfig{Config: memory, Kind: "widgets", MaxFree: 1, Free: func() int { return 1 }})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, func(*notify.Delivery) {}) }()
	defer close(link.end)
	link.stalled.Store(true)
	<-link.blocked
	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(20 * time.Second): // real time: without the bound it would never end
		require.Fail(t, "the stop hangs")
	}
}
