package kubetest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// Link is a way to the API server that can be cut: a proxy of TCP connections. Its methods may be called from several
// goroutines.
type Link struct {
	listener net.Listener
	target   string // host:port
	running  sync.WaitGroup

	mu     sync.Mutex
	state  linkState
	turn   chan struct{}    // closed when the state changes
	conns  map[net.Conn]end // both of each
	closed bool
}

type linkState int

const (
	whole  linkState = iota
	cut              // connections are reset, and new ones too
	silent           // connections stand, but nothing passes
)

// end is whom a connection is with.
type end int

const (
	client end = iota
	server
)

// Link makes a way to the API server, which ends with the test.
func (c *Cluster) Link(t testing.TB) *Link {
	t.Helper()
	to, err := url.Parse(c.admin.Host)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed by name
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{listener: listener, target: to.Host, turn: make(chan struct{}), conns: map[net.Conn]end{}}
	l.running.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

// Over returns an access that goes over the link.
func (l *Link) Over(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = "https://" + l.listener.Addr().String()
	return config
}

// Cut resets all connections, and new ones, until [Link.Heal].
func (l *Link) Cut() { l.become(cut) }

// Silence lets connections stand, and be made, but nothing passes until [Link.Heal]: what a network does that loses all
// packets. What was sent meanwhile arrives then.
func (l *Link) Silence() { l.become(silent) }

// Heal makes the link whole.
func (l *Link) Heal() { l.become(whole) }

// Connections counts those that clients have made and not closed. While the link is silent it does not hear of the latter.
func (l *Link) Connections() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, with := range l.conns {
		if with == client {
			n++
		}
	}
	return n
}

func (l *Link) become(s linkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	close(l.turn)
	l.turn = make(chan struct{})
	if s == cut {
		l.reset()
	}
}

// reset closes all connections. l.mu is held.
func (l *Link) reset() {
	for conn := range l.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, no farewell
		}
		_ = conn.Close() // the pipes notice
	}
}

func (l *Link) close() {
	l.mu.Lock()
	l.closed = true
	l.reset()
	close(l.turn)
	l.turn = make(chan struct{})
	l.mu.Unlock()
	_ = l.listener.Close() // ends accept
	l.running.Wait()
}

// enter takes a connection in, unless the link is cut.
func (l *Link) enter(conn net.Conn, with end) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == cut || l.closed {
		return false
	}
	l.conns[conn] = with
	return true
}

func (l *Link) leave(conn net.Conn) {
	l.mu.Lock()
	delete(l.conns, conn)
	l.mu.Unlock()
	_ = conn.Close() // it may be closed
}

// pass waits until something may pass, and reports whether it ever may.
func (l *Link) pass() bool {
	for {
		l.mu.Lock()
		state, turn, closed := l.state, l.turn, l.closed
		l.mu.Unlock()
		if closed || state != silent {
			return !closed && state == whole
		}
		<-turn
	}
}

func (l *Link) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		l.running.Go(func() { l.join(near) })
	}
}

// join connects one connection with the API server.
func (l *Link) join(near net.Conn) {
	defer l.leave(near)
	if !l.enter(near, client) || !l.pass() {
		return
	}
	far, err := new(net.Dialer).DialContext(context.Background(), "tcp", l.target)
	if err != nil {
		return // the API server is down: so is the connection
	}
	defer l.leave(far)
	if !l.enter(far, server) {
		return
	}
	var pipes sync.WaitGroup
	pipes.Go(func() { l.pipe(far, near) })
	pipes.Go(func() { l.pipe(near, far) })
	pipes.Wait()
}

// pipe copies until either side ends, and takes the other with it.
func (l *Link) pipe(to, from net.Conn) {
	defer func() { _ = errors.Join(to.Close(), from.Close()) }() // they may be closed
	_, _ = io.Copy(gate{to, l}, from)                            // either end may break it off
}

// gate lets writes wait while the link is silent.
type gate struct {
	to   io.Writer
	link *Link
}

func (g gate) Write(p []byte) (int, error) {
	if !g.link.pass() {
		return 0, net.ErrClosed
	}
	return g.to.Write(p)
}
