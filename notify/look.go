package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/random"
)

// lookEvery is how often a consumer looks whether the stream is still what it was. The pulls of an idle kind are ten times
// as many requests.
const lookEvery = 5 * time.Second

// seen is what a consumer knows of the work stream. It belongs to the goroutine of lookAlways.
type seen struct {
	created  time.Time
	first    uint64 // sequence of the first message, the sentinel's
	replicas int
	limits   string
}

type streamInfo struct {
	Created time.Time              `json:"created"`
	Config  jetstream.StreamConfig `json:"config"`
	State   struct {
		First uint64 `json:"first_seq"`
	} `json:"state"`
}

func (i *streamInfo) seen(limits string) seen {
	return seen{created: i.Created, first: i.State.First, replicas: i.Config.Replicas, limits: limits}
}

// lookAlways reports what changed at the work stream and may have lost notifications.
func (c *Consumer) lookAlways(ctx context.Context, before seen) {
	sleep(ctx, random.N(lookEvery)) // kinds that start together look one after the other
	for ; ctx.Err() == nil; sleep(ctx, lookEvery) {
		if !c.nc.IsConnected() {
			continue
		}
		var info streamInfo
		err := jsapi.Request(ctx, c.nc, "$JS.API.STREAM.INFO."+c.stream, nil, &info)
		switch {
		case err == nil:
			before = c.compare(ctx, before, &info)
		case ctx.Err() != nil:
		case errors.Is(err, jsapi.ErrNoStream):
			c.cfg.OnMissing()
		default:
			c.report("look at the stream", "", err)
		}
	}
}

// compare calls OnChanged for each difference and returns what is known now.
func (c *Consumer) compare(ctx context.Context, before seen, info *streamInfo) seen {
	now := info.seen(limits(info.Config))
	c.replicated.Store(now.replicas > 1)
	if !now.created.Equal(before.created) {
		c.cfg.OnChanged(fmt.Sprintf("stream %s was deleted and made again", c.stream))
	}
	if now.replicas != before.replicas {
		c.cfg.OnChanged(fmt.Sprintf("stream %s is on %d servers now, it was on %d", c.stream, now.replicas, before.replicas))
	}
	if now.limits != "" && now.limits != before.limits {
		c.cfg.OnChanged(fmt.Sprintf("stream %s has limits, which drop notifications: %s", c.stream, now.limits))
	}
	if now.first != before.first && now.created.Equal(before.created) {
		_, err := jsapi.Last(ctx, c.nc, c.stream, c.names.Sentinel())
		switch {
		case errors.Is(err, jsapi.ErrNoMessage):
			c.cfg.OnChanged(fmt.Sprintf("stream %s was purged", c.stream))
		case err != nil:
			now.first = before.first // it is not known: the next look asks again
		}
	}
	return now
}
