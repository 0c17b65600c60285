package notify

import (
	"context"
	"errors"
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
	// Asked is whether the look was asked for, now or in an earlier turn that could not do it; otherwise a requeue came due,
	// or it is resync.
	Asked bool
	// GivenUp is how many turns in a row before this one ended without a stored outcome: their holder died or was stopped,
	// or its write was refused. The look is still owed then, and the next failure waits longer.
	GivenUp int
	// Reason is what the sender gave as the reason, for people.
	Reason string
	// Header are all headers, a trace context among them. Read-only.
	Header nats.Header
	// Attempts counts how often the notification was handed out, 1 the first time.
	Attempts uint64
	// At is when the server stored the notification, by its own clock: for a requeue, when it fired.
	At time.Time

	c        *Consumer
	msg      *nats.Msg
	seq      uint64
	received time.Time // by the local clock
	connects uint64    // how often the connection had been made again by then
}

// Again returns the headers for a requeue after so many turns in a row that ended without a stored outcome: the look that
// was asked for is still owed.
func Again(reason string, givenUp int) nats.Header {
	return nats.Header{headerReason: {reason}, headerGivenUp: {strconv.Itoa(givenUp)}}
}

// certainFor is for how long after a first delivery its sequence is taken for that of its message without a look. It is
// shorter than AckWait, so nobody else has got the notification by then.
const certainFor = 2 * time.Second

// Take removes the notification from the stream and returns once it is gone, so that any later change of the object is
// queued again. It must be called with the object's lock held and before the object is read: after it, the lock is the
// only record of the work. After another error than [ErrGone] it is not known whether the notification is gone.
//
// On a single server a confirmed acknowledgement is enough. On a replicated stream its confirmation comes before the
// stream's leader has removed the message (nats-server 2.15.2, processReplicatedAck), and a publish in between would be
// refused as a duplicate of it. In a cluster, where a stream may become replicated at any time, the message is therefore
// deleted through the leader.
//
// Either way names the message by its sequence, which is another object's after the stream was restored from a copy. So
// Take looks first whether the sequence is this object's when the connection has been away since the delivery, when that
// is more than two seconds ago, or when the notification was handed out before. If it is not, Take fails with [ErrGone].
func (d *Delivery) Take(ctx context.Context) error {
	gone, err := d.gone(ctx)
	switch {
	case err != nil:
	case gone:
		err = ErrGone
	case d.c.clustered():
		err = jsapi.Delete(ctx, d.c.nc, d.c.stream, d.seq)
	default:
		err = jsapi.ConfirmedAck(ctx, d.c.nc, d.msg.Reply)
	}
	if err != nil {
		return fmt.Errorf("take notification of %s/%s: %w", d.Kind, d.Name, err)
	}
	return nil
}

// gone reports whether the notification is known to be gone; false is no proof of the contrary.
func (d *Delivery) gone(ctx context.Context) (bool, error) {
	if d.Attempts <= 1 && time.Since(d.received) < certainFor && d.c.nc.Stats().Reconnects == d.connects {
		return false, nil
	}
	m, err := jsapi.Last(ctx, d.c.nc, d.c.stream, d.msg.Subject)
	if errors.Is(err, jsapi.ErrNoMessage) {
		return true, nil
	}
	return err == nil && m.Sequence != d.seq, err
}

// Hold starts AckWait again, for a notification whose object is locked elsewhere. It does not wait for the server.
func (d *Delivery) Hold() error { return d.answer("+WPI", "hold") }

// Return gives the notification back, to be pulled at once by a replica with a free worker. It is for a notification that
// this process cannot work on now, never for one that failed: that would be pulled again and again.
func (d *Delivery) Return() error { return d.answer("-NAK", "return") }

func (d *Delivery) answer(word, doing string) error {
	if err := d.c.nc.Publish(d.msg.Reply, []byte(word)); err != nil {
		return fmt.Errorf("%s notification of %s/%s: %w", doing, d.Kind, d.Name, err)
	}
	return nil
}
