package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// follow sends what the feed tells.
func (w *watch) follow(ctx context.Context, sub *watcher) error {
	beat := time.NewTicker(objects.Heartbeat)
	defer beat.Stop()
	_, w.caughtUp, _ = w.api.feed.told(sub)
	for {
		if len(sub.events) == 0 {
			if err := w.flush(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-sub.events:
			if !ok {
				return errCutOff
			}
			if w.isOld(&e) {
				continue
			}
			if err := w.convert(ctx, &e); err != nil {
				return err
			}
			w.at.place = e.at
			if err := w.send(e.kind, e.data); err != nil {
				return err
			}
		case <-beat.C:
			if !stillWelcome(ctx) {
				return errCutOff
			}
			if err := w.beat(sub); err != nil {
				return err
			}
		}
	}
}

// isOld reports whether an event tells no more than what was sent already: the feed may have read an object before the watch did.
// A deletion is told also then, for nobody knows which came first; what is true follows it.
func (w *watch) isOld(e *event) bool {
	w.forgetSent(e.step)
	return e.at.compare(w.at.place) <= 0 || e.revision != 0 && e.revision < w.sent[e.at.name]
}

// forgetSent is called with a step of which the watch has been told all that came before.
func (w *watch) forgetSent(step int64) {
	if step > w.caughtUp {
		w.sent = nil
	}
}

// beat sends a sign of life, whose cursor does not grow old.
func (w *watch) beat(sub *watcher) error {
	if at, step, still := w.api.feed.told(sub); still && len(sub.events) == 0 {
		w.forgetSent(step)
		if at.compare(w.at.place) > 0 {
			w.at.place = at
		}
	}
	return w.send(objects.EventHeartbeat, []byte("{}"))
}

// convert makes an event ready that the feed has left to its watchers.
func (w *watch) convert(ctx context.Context, e *event) error {
	if e.later == nil {
		return nil
	}
	spec, err := e.later.spec(ctx, e.job)
	if err != nil {
		return err
	}
	o := *e.object
	o.Spec, o.Version = spec, e.later.jobs[e.job].to
	*e, err = putEvent(ctx, w.api.store.vault, e.at, o, readsSecrets(ctx, w.scope.kind))
	return err
}

// send writes one event, whose id is what has been sent with it.
func (w *watch) send(kind string, data []byte) error {
	if err := w.out.SetWriteDeadline(time.Now().Add(sendWithin)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("%w: %w", errCutOff, err)
	}
	if _, err := w.body.Write(objects.Event(kind, w.at.String(), data)); err != nil {
		return fmt.Errorf("%w: %w", errCutOff, err) // it has gone, or does not read
	}
	return nil
}

func (w *watch) flush() error {
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("%w: %w", errCutOff, err)
	}
	return nil
}
