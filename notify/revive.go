package notify

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// Revive queues again what the stream holds and will not deliver, and says how much that was.
//
// A server that is killed may bring back a notification that was replaced by a later one, and taken: it keeps no record of
// what the limit of one message per subject removes (nats-server 2.15). The consumer is past it, so nobody would ever get
// it; and while it stands there, every further notification of its object is refused because there is one. What is taken
// just now may look the same: then an object is looked at once too often.
func (c *Consumer) Revive(ctx context.Context) (revived int, err error) {
	for _, l := range lanes(c.names, c.kind) {
		var info struct {
			AckFloor struct {
				Stream uint64 `json:"stream_seq"`
			} `json:"ack_floor"`
		}
		if err := jsapi.Request(ctx, c.nc, "$JS.API.CONSUMER.INFO."+c.stream+"."+l.consumer, nil, &info); err != nil {
			return revived, fmt.Errorf("notify: %w", err)
		}
		for {
			m, err := jsapi.First(ctx, c.nc, c.stream, l.filter)
			if errors.Is(err, jsapi.ErrNoMessage) || err == nil && m.Sequence > info.AckFloor.Stream {
				break
			}
			if err == nil {
				err = c.replace(ctx, m)
			}
			if err != nil {
				return revived, fmt.Errorf("notify: look for what is not delivered: %w", err)
			}
			revived++
		}
	}
	return revived, nil
}

// replace puts a message to the end of the queue, unless somebody has replaced it already.
func (c *Consumer) replace(ctx context.Context, old *jsapi.Message) error {
	m := nats.NewMsg(old.Subject)
	m.Header = jsapi.Expect(old.Sequence)
	m.Header[headerReason] = []string{old.Header.Get(headerReason)}
	m.Header[headerGivenUp] = []string{"1"}
	m.Data = old.Data
	_, err := jsapi.Publish(ctx, c.nc, m)
	var wrong *jsapi.WrongSequence
	if errors.As(err, &wrong) {
		return nil
	}
	return err
}
