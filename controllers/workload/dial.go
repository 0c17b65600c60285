package workload

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// dialTimeout bounds the time that a connection takes to be made.
const dialTimeout = 10 * time.Second

// dialer makes the connections to a cluster. It leads to nothing else: client-go keeps it for as long as the transport that it is
// for is in use anywhere, and a dialer that led to the cluster would lead to that transport.
type dialer struct {
	mu   sync.Mutex
	made int
	open map[*heldConn]bool
}

func newDialer() *dialer { return &dialer{open: map[*heldConn]bool{}} }

// connections is how many were made so far.
func (d *dialer) connections() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.made
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	plain := net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}
	conn, err := plain.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	held := &heldConn{conn, d}
	d.open[held] = true
	d.made++
	return held, nil
}

// close closes what is open.
func (d *dialer) close() {
	d.mu.Lock()
	all := slices.Collect(maps.Keys(d.open))
	d.mu.Unlock()
	for _, held := range all {
		_ = held.Close() // whatever is wrong with it, it is not used any more
	}
}

// heldConn is a connection that its dialer knows of until it is closed.
type heldConn struct {
	net.Conn
	of *dialer
}

// Close implements net.Conn.
func (h *heldConn) Close() error {
	h.of.mu.Lock()
	delete(h.of.open, h)
	h.of.mu.Unlock()
	return h.Conn.Close()
}
