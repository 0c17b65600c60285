package realtime

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/notify"
)

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

// P5: a stop waits for no call of the client that hangs on a link which takes no bytes. In real time, because the client
// hangs in a mutex then, and so does virtual time.
func TestStopOfAConsumerDoesNotHangOnAStalledLink(t *testing.T) {
	t.Parallel()
	s, err := broker.Start(t.TempDir(), "")
	require.NoError(t, err)
	defer broker.Stop(s)
	link := &blocking{s: s, blocked: make(chan struct{}, 1), end: make(chan struct{})}
	nc, err := nats.Connect("", nats.InProcessServer(link))
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, notify.Streams(t.Context(), nc, notify.Config{}, "widgets"))
	c, err := notify.NewConsumer(t.Context(), nc, notify.ConsumerConfig{Kind: "widgets", MaxFree: 1, Free: func() int { return 1 }})
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
