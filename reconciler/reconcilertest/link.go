package reconcilertest

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"time"
)

type linkState int

const (
	linkUp     linkState = iota
	linkFrozen           // what is sent waits
	linkCut              // connections break and cannot be made
	linkDead             // cut for good
)

// link is the state of one of a replica's links, and the connections over it.
type link struct {
	mu      sync.Mutex
	changed *sync.Cond
	state   linkState
	conns   map[*conn]struct{}
}

func (l *link) init() {
	l.changed = sync.NewCond(&l.mu)
	l.conns = map[*conn]struct{}{}
}

func (l *link) set(s linkState) {
	l.mu.Lock()
	if l.state != linkDead {
		l.state = s
	}
	var broken []*conn
	if l.state == linkCut || l.state == linkDead {
		for c := range l.conns {
			broken = append(broken, c)
		}
		clear(l.conns)
	}
	l.changed.Broadcast()
	l.mu.Unlock()
	for _, c := range broken {
		_ = c.Conn.Close() // a pipe's never fails
	}
}

// drain waits until what was sent has arrived: bytes that a process has written outlive it.
func (l *link) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		for l.state == linkUp && c.err == nil && (c.out.Len() > 0 || c.sending) {
			l.changed.Wait()
		}
	}
}

// pass waits while the link is frozen, and fails if it is cut.
func (l *link) pass(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})
	defer stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.state == linkFrozen && ctx.Err() == nil {
		l.changed.Wait()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if l.state != linkUp {
		return errCut
	}
	return nil
}

// dialer makes a replica's connections to the broker.
type dialer struct{ r *Replica }

// InProcessConn implements nats.InProcessConnProvider.
func (d dialer) InProcessConn() (net.Conn, error) {
	l := &d.r.nats
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != linkUp { // a frozen process does not dial either, and the client holds its mutex while it does
		return nil, errCut
	}
	under, err := d.r.w.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: under, r: d.r, link: l, lost: map[string]struct{}{}}
	l.conns[c] = struct{}{}
	go c.pump()
	go c.forward()
	return c, nil
}

// conn is a connection whose bytes wait in it while the link is frozen. Neither side ever blocks on the other: in the
// bubble a client that waits with its mutex held would stop time.
type conn struct {
	net.Conn
	r    *Replica
	link *link

	sent, came frames // each used by one goroutine at a time

	// guarded by link.mu
	in, out bytes.Buffer
	sending bool                // bytes that were in out are on their way
	lost    map[string]struct{} // subjects of answers that are to be lost
	err     error               // why nothing more comes
}

// pump reads what the server sends.
func (c *conn) pump() {
	buf := make([]byte, 32<<10)
	for {
		n, err := c.Conn.Read(buf)
		c.link.mu.Lock()
		for _, f := range c.came.split(buf[:n]) {
			subj, ok := f.delivery()
			if _, lose := c.lost[subj]; lose && ok {
				delete(c.lost, subj)
				continue
			}
			c.in.Write(f)
		}
		if err != nil {
			c.err = err
		}
		c.link.changed.Broadcast()
		c.link.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// forward writes what the client has sent and the link lets pass.
func (c *conn) forward() {
	for {
		c.link.mu.Lock()
		for c.err == nil && (c.out.Len() == 0 || c.link.state == linkFrozen) {
			c.link.changed.Wait()
		}
		if c.err != nil {
			c.link.mu.Unlock()
			return
		}
		data := bytes.Clone(c.out.Bytes())
		c.out.Reset()
		c.sending = true
		c.link.mu.Unlock()
		_, err := c.Conn.Write(data)
		c.link.mu.Lock()
		c.sending = false
		c.link.changed.Broadcast()
		c.link.mu.Unlock()
		if err != nil {
			return // pump learns of it too
		}
	}
}

func (c *conn) Read(b []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	for c.link.state == linkFrozen || c.in.Len() == 0 && c.err == nil {
		c.link.changed.Wait()
	}
	if c.link.state != linkUp {
		return 0, io.ErrClosedPipe
	}
	if c.in.Len() == 0 {
		return 0, c.err
	}
	return c.in.Read(b)
}

func (c *conn) Write(b []byte) (int, error) {
	for _, f := range c.sent.split(b) {
		if err := c.r.effect(f.effect(), func() error { return c.send(f) }); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// send posts a frame, with the faults that the test has ordered.
func (c *conn) send(f frame) error {
	subj, reply, ok := f.publish()
	if !ok {
		return c.post(f)
	}
	fault := c.r.w.nextBrokerFault(c.r, subj)
	switch {
	case fault == nil:
	case fault.Lose:
		c.link.mu.Lock()
		c.lost[reply] = struct{}{}
		c.link.mu.Unlock()
	default:
		return nil // it never arrives
	}
	return c.post(f)
}

func (c *conn) post(f frame) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.out.Write(f)
	c.link.changed.Broadcast()
	return nil
}

func (c *conn) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.err = io.ErrClosedPipe
	c.link.changed.Broadcast()
	c.link.mu.Unlock()
	return c.Conn.Close()
}

// Deadlines have no meaning here: a link that is cut fails at once.

func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
