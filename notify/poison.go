package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// maxPoison is how many messages wait to be set aside; more are left to come back after AckWait.
const maxPoison = 256

// poison is a message that is no notification, and why it is not.
type poison struct {
	msg *nats.Msg
	why error
}

// poisoned hands a message to the goroutine that sets it aside. It does not block: the pull loop calls it.
func (c *Consumer) poisoned(m *nats.Msg, why error) {
	select {
	case c.poison <- poison{m, why}:
	default: // it comes back after AckWait
	}
}

// setAsideAlways sets aside, one after the other, what poisoned was given. One that cannot be set aside comes back after
// AckWait; a server that refuses is given growing pauses.
func (c *Consumer) setAsideAlways(ctx context.Context) {
	pause := errorPause
	for {
		var p poison
		select {
		case <-ctx.Done():
			return
		case p = <-c.poison:
		}
		c.report("read notification", "", p.why)
		err := c.setAside(ctx, p.msg, p.why)
		if err == nil {
			pause = errorPause
			continue
		}
		if ctx.Err() == nil {
			c.report("set aside", "", err)
		}
		if errors.Is(err, nats.ErrNoResponders) { // no stream takes the record
			c.cfg.OnMissing()
		}
		sleep(ctx, pause)
		pause = min(2*pause, maxErrorPause)
	}
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

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
