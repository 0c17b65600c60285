package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// Held reports whether some process holds the lock of an object.
type Held func(ctx context.Context, kind, name string) (bool, error)

// Revive queues again the notifications that the stream holds and its consumers will not deliver, and returns how many
// those were, without those that another replica was first to queue. It must not be called by two goroutines at a time.
//
// A server that is killed may bring back a notification that was replaced by a later one, and taken: it keeps no record of
// what the limit of one message per subject removes (nats-server 2.15). The consumer is past it, so it is never
// delivered; and while it is in the stream, every further notification of its object is refused because there is one.
//
// Below the consumer's ack floor nothing is in flight, so what is found there is queued again at once. Above it a
// notification may be in flight: it is queued again when two calls that are at least AckWait apart have seen it and held
// says that its object's lock is free, because a notification in flight is taken, held by a turn that waits for that lock,
// or delivered again within that time. If it is in flight nevertheless, the object is looked at once too often.
//
// A consumer whose settings were changed so that it loses or delays notifications is reported to OnChanged, one that was
// paused to OnError.
//
// One call costs eight requests and one more for each notification in flight.
func (c *Consumer) Revive(ctx context.Context, held Held) (revived int, err error) {
	now, seen := time.Now(), map[uint64]time.Time{}
	for _, l := range lanes(c.names, c.kind) {
		n, err := c.reviveLane(ctx, l, held, now, seen)
		revived += n
		if err != nil {
			return revived, fmt.Errorf("notify: look for notifications of %s that are not delivered: %w", c.kind, err)
		}
	}
	c.suspects = seen
	return revived, nil
}

func (c *Consumer) reviveLane(ctx context.Context, l lane, held Held, now time.Time, seen map[uint64]time.Time) (revived int, err error) {
	type position struct {
		Stream uint64 `json:"stream_seq"`
	}
	var at struct {
		AckFloor  position                 `json:"ack_floor"`
		Delivered position                 `json:"delivered"`
		Config    jetstream.ConsumerConfig `json:"config"`
		Paused    bool                     `json:"paused"`
	}
	if err := jsapi.Request(ctx, c.nc, "$JS.API.CONSUMER.INFO."+c.stream+"."+l.consumer, nil, &at); err != nil {
		return 0, err
	}
	if found := l.differences(at.Config); found != c.differing[l.consumer] {
		c.differing[l.consumer] = found
		if found != "" {
			c.cfg.OnChanged(fmt.Sprintf("consumer %s of stream %s was changed: it has %s", l.consumer, c.stream, found))
		}
	}
	c.tellPause(l, at.Paused, at.Config.PauseUntil)
	for m, err := range c.stored(ctx, l.filter) {
		if err != nil || m.Sequence > at.Delivered.Stream {
			return revived, err
		}
		if m.Sequence > at.AckFloor.Stream {
			since, again := c.suspects[m.Sequence]
			if !again {
				since = now
			}
			seen[m.Sequence] = since
			if now.Sub(since) <= AckWait {
				continue
			}
			kind, name, err := c.names.Parse(m.Subject)
			if err != nil {
				continue // no notification: it is set aside when it is delivered
			}
			if busy, err := held(ctx, kind, name); err != nil || busy {
				if err != nil {
					c.report("look for the lock of a notification", "", fmt.Errorf("%s: %w", name, err))
				}
				continue
			}
		}
		replaced, err := c.replace(ctx, m)
		if err != nil {
			return revived, err
		}
		if replaced {
			revived++
		}
	}
	return revived, nil
}

// tellPause tells of a pause when it begins. It is left alone: an operator has asked for it, and it ends by itself.
func (c *Consumer) tellPause(l lane, paused bool, until *time.Time) {
	before := c.paused[l.consumer]
	c.paused[l.consumer] = paused
	if !paused || before || until == nil {
		return
	}
	c.cfg.OnError("look at the consumer", fmt.Errorf("consumer %s of stream %s is paused until %s, and %s wait for that: to end it, "+
		"nats consumer resume %s %s", l.consumer, c.stream, until.UTC().Format(time.RFC3339), l.about, c.stream, l.consumer))
}

// stored yields the messages of a lane in the order of the stream. It reads them one by one behind the first message of
// the stream, which is looked at by itself: see [jsapi.Next].
func (c *Consumer) stored(ctx context.Context, filter string) func(func(*jsapi.Message, error) bool) {
	return func(yield func(*jsapi.Message, error) bool) {
		var info struct {
			State struct {
				First uint64 `json:"first_seq"`
			} `json:"state"`
		}
		if err := jsapi.Request(ctx, c.nc, "$JS.API.STREAM.INFO."+c.stream, nil, &info); err != nil {
			yield(nil, err)
			return
		}
		first, err := jsapi.Get(ctx, c.nc, c.stream, info.State.First)
		switch {
		case errors.Is(err, jsapi.ErrNoMessage):
		case err != nil:
			yield(nil, err)
			return
		case subject.Matches(filter, first.Subject) && !yield(first, nil):
			return
		}
		for next := info.State.First + 1; ; {
			m, err := jsapi.Next(ctx, c.nc, c.stream, filter, next)
			if errors.Is(err, jsapi.ErrNoMessage) || !yield(m, err) || err != nil {
				return
			}
			next = m.Sequence + 1
		}
	}
}

// replace puts a message to the end of the queue, and reports false if that has been done already.
func (c *Consumer) replace(ctx context.Context, old *jsapi.Message) (bool, error) {
	m := nats.NewMsg(old.Subject)
	m.Header = jsapi.Expect(old.Sequence)
	m.Header[headerReason] = []string{old.Header.Get(headerReason)}
	m.Header[headerGivenUp] = []string{"1"}
	m.Data = old.Data
	_, err := jsapi.Publish(ctx, c.nc, m)
	var wrong *jsapi.WrongSequence
	if errors.As(err, &wrong) {
		return false, nil
	}
	return err == nil, err
}
