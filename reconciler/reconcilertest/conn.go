package reconcilertest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"time"
)

// conn is a connection whose bytes wait in it while the link is frozen. Neither side ever blocks on the other: in the
// bubble a client that waits with its mutex held would stop time.
type conn struct {
	net.Conn
	r     *Replica
	link  *link
	clock clock

	sent, came frames // each used by one goroutine at a time

	// guarded by link.mu
	in, out bytes.Buffer
	sending bool                 // bytes that were in out are on their way
	lost    map[string]struct{}  // subjects of answers that are to be lost
	asked   map[string]string    // stable subjects of requests, by the subjects of their answers
	dueOut  map[string]time.Time // when the last message of a subject arrives
	dueIn   map[string]time.Time // the same of answers
	flying  int                  // messages that have not arrived
	err     error                // why the client gets nothing more
	gone    bool                 // nothing arrives any more
}

// breaks ends the connection for the client. What it has sent still arrives, but for what a frozen link holds back: that would
// come minutes later, when the client has given the link up. Callers hold link.mu.
func (c *conn) breaks(why error) {
	if c.link.state == linkFrozen {
		c.out.Reset()
	}
	delete(c.link.conns, c)
	if c.err == nil {
		c.err = why
	}
	c.link.changed.Broadcast()
}

// after delivers a message under link.mu when it is due, which is not before earlier ones of its subject. Callers hold
// link.mu.
func (c *conn) after(f fate, due map[string]time.Time, subject string, deliver func()) {
	if f.lost {
		return
	}
	do := func() {
		deliver()
		if f.twice {
			deliver()
		}
		c.link.changed.Broadcast()
	}
	now := time.Now()
	at := now.Add(f.delay)
	if last, ok := due[subject]; ok && !at.After(last) {
		at = last.Add(time.Nanosecond)
	}
	if !at.After(now) {
		do()
		return
	}
	due[subject] = at
	c.flying++
	time.AfterFunc(at.Sub(now), func() {
		c.link.mu.Lock()
		defer c.link.mu.Unlock()
		c.flying--
		if due[subject].Equal(at) {
			delete(due, subject)
		}
		do()
	})
}

// pump reads what the server sends.
func (c *conn) pump() {
	buf := make([]byte, 32<<10)
	for {
		n, err := c.Conn.Read(buf)
		c.link.mu.Lock()
		for _, f := range c.came.split(buf[:n]) {
			c.arrive(f)
		}
		if err != nil {
			c.gone = true
			c.breaks(err)
		}
		c.link.changed.Broadcast()
		c.link.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// arrive takes a frame from the server, with the faults that the test has ordered. Callers hold link.mu.
func (c *conn) arrive(f frame) {
	if c.err != nil {
		return
	}
	subj, ok := f.delivery()
	if !ok {
		c.in.Write(f)
		return
	}
	if _, lose := c.lost[subj]; lose {
		delete(c.lost, subj)
		return
	}
	if !c.clock.same() {
		f = f.translated(c.clock.in)
	}
	about := stable(subj)
	if request, ok := c.asked[subj]; ok {
		about = request
		if !strings.HasPrefix(request, "$JS.API.CONSUMER.MSG.NEXT.") { // a pull has several answers
			delete(c.asked, subj)
		}
	}
	c.after(c.r.w.fate(c.r.Name, about, true), c.dueIn, subj, func() { c.in.Write(f) })
}

// ended reports whether the client has no more to send, or the server does not read any more. Callers hold link.mu.
func (c *conn) ended() bool { return c.gone || c.err != nil && c.out.Len() == 0 && c.flying == 0 }

// sendable reports whether bytes can be passed to the server. Callers hold link.mu.
func (c *conn) sendable() bool {
	return c.out.Len() > 0 && (c.err != nil || c.link.state != linkFrozen)
}

// forward writes what the client has sent and the link lets pass. It ends, and the connection with it, when the client has
// closed its side and all that it sent has arrived.
func (c *conn) forward() {
	defer func() { _ = c.Conn.Close() }() // a pipe's never fails
	for {
		c.link.mu.Lock()
		for !c.ended() && !c.sendable() {
			c.link.changed.Wait()
		}
		if c.ended() {
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
	if c.link.state != linkUp || errors.Is(c.err, io.ErrClosedPipe) {
		return 0, io.ErrClosedPipe
	}
	if c.in.Len() == 0 {
		return 0, c.err
	}
	return c.in.Read(b)
}

func (c *conn) Write(b []byte) (int, error) {
	for _, f := range c.sent.split(b) {
		what := ""
		if f.effect() {
			subj, _, _ := f.publish()
			what = stable(subj)
		}
		if err := c.r.effect(what, func() error { return c.send(f) }); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// send posts a frame, with the faults that the test has ordered.
func (c *conn) send(f frame) error {
	subj, reply, ok := f.publish()
	if !ok {
		return c.post(f, "")
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
	return c.post(f, subj)
}

// post sends a frame on its way. That of a message has a subject.
func (c *conn) post(f frame, subj string) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if subj == "" {
		c.out.Write(f)
		c.link.changed.Broadcast()
		return nil
	}
	subj = stable(subj)
	if _, reply, _ := f.publish(); reply != "" {
		c.asked[reply] = subj
	}
	if !c.clock.same() {
		f = f.translated(c.clock.out)
	}
	c.after(c.r.w.fate(c.r.Name, subj, false), c.dueOut, subj, func() { c.out.Write(f) })
	return nil
}

func (c *conn) Close() error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.breaks(io.ErrClosedPipe)
	return nil
}

// Deadlines have no meaning here: a link that is cut fails at once.

func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
