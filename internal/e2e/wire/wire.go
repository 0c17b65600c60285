// Package wire is a way to a broker for tests that is slow, stalls, or ends elsewhere.
package wire

import (
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// Wire is a way to the broker that takes time, and that can stall: what is written blocks the client then, as a link does
// whose buffers are full.
type Wire struct {
	mu      sync.Mutex
	sending time.Duration // how long what the client sends takes
	answers time.Duration // and what the server sends
	node    nats.InProcessConnProvider
	open    []net.Conn
	stalled chan struct{} // closed when writes may go on; nil if they may
	blocks  chan struct{} // closed when a write waits for that
}

// New makes a wire to a broker that takes so long each way, and a connection over it, which the caller closes.
func New(t *testing.T, s nats.InProcessConnProvider, delay time.Duration) (*Wire, *nats.Conn) {
	t.Helper()
	w := &Wire{node: s, sending: delay, answers: delay}
	nc, err := nats.Connect("", nats.InProcessServer(w), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	require.NoError(t, err)
	return w, nc
}

// MoveTo breaks all connections; new ones go to another server.
func (w *Wire) MoveTo(s nats.InProcessConnProvider) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node = s
	for _, c := range w.open {
		_ = c.Close() // a pipe's never fails
	}
	w.open = nil
}

// Stall makes writes block until resume is called; blocks is closed when the first does.
func (w *Wire) Stall() (blocks <-chan struct{}, resume func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gate := make(chan struct{})
	w.stalled, w.blocks = gate, make(chan struct{})
	return w.blocks, sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stalled = nil
		close(gate)
	})
}

// InProcessConn is what nats.Connect calls.
func (w *Wire) InProcessConn() (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	under, err := w.node.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: under, w: w, out: make(chan packet, 1<<16), in: make(chan packet, 1<<16), closed: make(chan struct{})}
	w.open = append(w.open, c)
	go c.forward()
	go c.pump()
	return c, nil
}

// Slow changes how long each way takes from now on.
func (w *Wire) Slow(sending, answers time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sending, w.answers = sending, answers
}

// due is when a packet that is sent now arrives.
func (w *Wire) due(sent bool) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if sent {
		return time.Now().Add(w.sending)
	}
	return time.Now().Add(w.answers)
}

// wait returns when a packet is due, or false when the connection is closed before.
func (c *wireConn) wait(due time.Time) bool {
	select {
	case <-time.After(time.Until(due)):
		return true
	case <-c.closed:
		return false
	}
}

type packet struct {
	data []byte
	due  time.Time
}

type wireConn struct {
	net.Conn
	w       *Wire
	out, in chan packet
	rest    []byte // read by the client only
	once    sync.Once
	closed  chan struct{}
}

func (c *wireConn) Write(b []byte) (int, error) {
	c.w.mu.Lock()
	gate := c.w.stalled
	if gate != nil && c.w.blocks != nil {
		close(c.w.blocks)
		c.w.blocks = nil
	}
	c.w.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-c.closed:
			return 0, io.ErrClosedPipe
		case <-time.After(time.Minute): // the client's deadline
			return 0, os.ErrDeadlineExceeded
		}
	}
	select {
	case c.out <- packet{append([]byte(nil), b...), c.w.due(true)}:
		return len(b), nil
	case <-c.closed:
		return 0, io.ErrClosedPipe
	}
}

func (c *wireConn) forward() {
	for {
		select {
		case p := <-c.out:
			if !c.wait(p.due) {
				return
			}
			if _, err := c.Conn.Write(p.data); err != nil {
				_ = c.Close() // a pipe's never fails
				return
			}
		case <-c.closed:
			return
		}
	}
}

func (c *wireConn) pump() {
	defer close(c.in)
	buf := make([]byte, 32<<10)
	for {
		n, err := c.Conn.Read(buf)
		if n > 0 {
			select {
			case c.in <- packet{append([]byte(nil), buf[:n]...), c.w.due(false)}:
			case <-c.closed:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *wireConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		p, ok := <-c.in
		if !ok {
			return 0, io.EOF
		}
		if !c.wait(p.due) {
			return 0, io.EOF
		}
		c.rest = p.data
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *wireConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Deadlines have no meaning here, but that of a write that is stalled.

func (c *wireConn) SetDeadline(time.Time) error      { return nil }
func (c *wireConn) SetReadDeadline(time.Time) error  { return nil }
func (c *wireConn) SetWriteDeadline(time.Time) error { return nil }
