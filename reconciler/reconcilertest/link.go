package reconcilertest

import (
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
	defer l.mu.Unlock()
	frozen := l.state == linkFrozen
	if l.state != linkDead {
		l.state = s
	}
	if l.state == linkCut || l.state == linkDead {
		for c := range l.conns {
			if frozen {
				c.out.Reset() // it has not left the process
			}
			c.breaks(io.ErrClosedPipe)
		}
	}
	l.changed.Broadcast()
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
	c := &conn{
		Conn: under, r: d.r, link: l, clock: d.r.w.clock(d.r.Name),
		lost: map[string]struct{}{}, asked: map[string]string{}, dueOut: map[string]time.Time{}, dueIn: map[string]time.Time{},
	}
	l.conns[c] = struct{}{}
	go c.pump()
	go c.forward()
	return c, nil
}
