package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

// mendPause is how long at least lies between two attempts to make again what is missing on the server.
const mendPause = time.Second

// prepare makes streams, consumers and the lock bucket. A server that is out of reach is waited for; what the server
// refuses is an error.
func (r *Runner) prepare(ctx context.Context) error {
	defer r.preparing.Store(nil)
	for failures := 1; ; failures++ {
		if err := r.connected(ctx, 0); err != nil || ctx.Err() != nil {
			return err
		}
		err := r.ensure(ctx)
		if err == nil {
			err = r.open(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if !transient(err) && !r.cfg.NATS.IsClosed() { // which connected explains
			return fmt.Errorf("reconciler: prepare NATS: %w", err)
		}
		err = withRights(err)
		r.preparing.Store(&err)
		r.trouble("prepare NATS", err)
		sleep(ctx, outage.Delay(failures))
	}
}

func (r *Runner) ensure(ctx context.Context) error {
	if err := notify.Streams(ctx, r.cfg.NATS, r.cfg.notify(), r.names()...); err != nil {
		return err
	}
	js, err := jetstream.New(r.cfg.NATS)
	if err != nil {
		return err
	}
	bucket := subject.Names{Prefix: r.cfg.Prefix}.LockBucket()
	return lock.Ensure(ctx, js, bucket, r.cfg.Replicas, r.cfg.Storage)
}

func (r *Runner) open(ctx context.Context) error {
	for _, k := range r.kinds {
		if err := k.open(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lacks notes that a stream, a consumer or the lock bucket is gone.
func (r *Runner) lacks() {
	select {
	case r.missing <- struct{}{}:
	default:
	}
}

// mendAlways makes again what was deleted or lost with the broker's disk, then looks for what was lost with it: a
// controller must neither go deaf nor need an operator.
func (r *Runner) mendAlways(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.missing:
		}
		for failures := 1; ctx.Err() == nil; failures++ {
			err := r.ensure(ctx)
			if err == nil {
				break
			}
			if ctx.Err() == nil {
				r.trouble("make streams again", withRights(err))
			}
			sleep(ctx, outage.Delay(failures))
		}
		for _, k := range r.kinds {
			k.resyncSoon()
		}
		sleep(ctx, mendPause)
	}
}

// withRights adds the way out to an error of missing rights.
func withRights(err error) error {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return err
	}
	return fmt.Errorf("%w: give the NATS user the rights that reconciler.Permissions lists, and after a right to subscribe start the controller again", err)
}

// transient tells a server that is out of reach or not ready from one that refuses.
func transient(err error) bool {
	var refused *jetstream.APIError
	if errors.As(err, &refused) {
		return refused.Code == 503
	}
	for _, e := range []error{
		nats.ErrTimeout, nats.ErrNoResponders, nats.ErrConnectionReconnecting, nats.ErrDisconnected, nats.ErrNoServers,
		context.DeadlineExceeded, jetstream.ErrNoStreamResponse, jsapi.ErrNoStream,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
