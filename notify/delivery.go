package notify

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// Delivery is a notification that was pulled. It comes back after [AckWait] unless one of its methods is called; each
// may be called from any goroutine, one at a time.
type Delivery struct {
	// Kind and Name say which object to look at.
	Kind, Name string
	// Asked is whether somebody asked for the look, now or in an earlier turn that could not do it; otherwise a requeue
	// came due, or it is resync.
	Asked bool
	// GivenUp is how many turns in a row before this one ended without a stored outcome: their holder died or was stopped,
	// or its write was refused. What they wrote may still arrive.
	GivenUp int
	// Reason is what the sender gave as the reason, for people.
	Reason string
	// Header are all headers, a trace context among them. Read-only.
	Header nats.Header
	// Attempts counts how often the notification was handed out, 1 the first time.
	Attempts uint64

	c   *Consumer
	msg *nats.Msg
	seq uint64
}

// Again returns the headers for a requeue after so many turns in a row that ended without a stored outcome: the look that
// was asked for is still owed.
func Again(reason string, givenUp int) nats.Header {
	return nats.Header{headerReason: {reason}, headerGivenUp: {strconv.Itoa(givenUp)}}
}

// Take removes the notification from the stream and returns once it is gone, so that any later change of the object is
// queued again. It must be called with the object's lock held and before the object is read: after it, the lock is the
// only record of the work.
//
// On a single server a confirmed acknowledgement is enough. On a replicated stream its confirmation comes before the
// stream's leader has removed the message (nats-server 2.15.2, processReplicatedAck), and a publish in between would be
// refused as a duplicate of it: there the message is deleted through the leader instead.
func (d *Delivery) Take(ctx context.Context) error {
	var err error
	if d.c.replicated {
		err = jsapi.Delete(ctx, d.c.nc, d.c.stream, d.seq)
	} else {
		err = jsapi.ConfirmedAck(ctx, d.c.nc, d.msg.Reply)
	}
	if err != nil {
		return fmt.Errorf("take notification of %s/%s: %w", d.Kind, d.Name, err)
	}
	return nil
}

// Hold asks for AckWait anew, while the object's lock is held by somebody else. It does not wait for the server.
func (d *Delivery) Hold() error { return d.answer("+WPI", "hold") }

// Return gives the notification back to be pulled at once by whoever has a free worker. It is for a notification that
// this process cannot work on now, never for one that failed: that would be pulled again and again.
func (d *Delivery) Return() error { return d.answer("-NAK", "return") }

func (d *Delivery) answer(word, doing string) error {
	if err := d.c.nc.Publish(d.msg.Reply, []byte(word)); err != nil {
		return fmt.Errorf("%s notification of %s/%s: %w", doing, d.Kind, d.Name, err)
	}
	return nil
}

// setAside stores a message that is no notification in the history stream, then removes it.
func (c *Consumer) setAside(ctx context.Context, m *nats.Msg, why error) error {
	record := nats.NewMsg(c.names.Aside(c.kind))
	for k, v := range m.Header {
		record.Header["Original-"+k] = v
	}
	record.Header.Set(headerSubject, m.Subject)
	record.Header.Set(headerWhy, why.Error())
	record.Header.Set(headerAt, time.Now().UTC().Format(time.RFC3339Nano))
	record.Data = m.Data
	if _, err := jsapi.Publish(ctx, c.nc, record); err != nil {
		return fmt.Errorf("set aside %s: %w", m.Subject, err)
	}
	if err := jsapi.ConfirmedAck(ctx, c.nc, m.Reply); err != nil {
		return fmt.Errorf("remove %s, which is set aside: %w", m.Subject, err)
	}
	return nil
}
