package e2e

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

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

// withDelayedLink gives f a work stream, a connection to it over a link with delays, and one without.
func withDelayedLink(t *testing.T, f func(t *testing.T, link *delayed, slow, nc *nats.Conn)) {
	t.Helper()
	withServer(t, nil, func(t *testing.T, s *server.Server, nc *nats.Conn, _ jetstream.JetStream) {
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
