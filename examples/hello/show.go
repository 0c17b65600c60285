package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// within bounds each wait of the show; the longest, a take-over, needs up to 15 s.
const within = 40 * time.Second

type widgets struct {
	*apiclient.Client[widget, widget]
}

// show changes objects and kills replicas, and waits each time until the world is as declared.
func (h *installation) show(ctx context.Context) error {
	c, err := apiclient.New[widget, widget](apiclient.Config{URL: h.apiURL}, "widgets")
	if err != nil {
		return err
	}
	w := widgets{c}
	if err := w.found(ctx); err != nil {
		return err
	}
	heading("Two replicas of the controller start, each a process of its own")
	for _, name := range []string{"replica-a", "replica-b"} {
		if err := h.crew.start(h, name); err != nil {
			return err
		}
	}
	for _, part := range []func(context.Context) error{w.create, w.edit, w.remove} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return h.crash(ctx, w)
}

// found tells what an earlier run left.
func (w widgets) found(ctx context.Context) error {
	for o, err := range w.All(ctx) {
		if err != nil {
			say("found from last time: %v", err)
			continue
		}
		say("found from last time: widgets/%s, size %d, %s", o.Name, o.Spec.Size, o.Reconciliation.State)
	}
	return nil
}

func (w widgets) create(ctx context.Context) error {
	heading("Three widgets are declared")
	for i, name := range []string{"red", "green", "blue"} {
		if _, err := w.Put(ctx, name, widget{Size: i + 1}); err != nil {
			return err
		}
	}
	for _, name := range []string{"red", "green", "blue"} {
		if err := w.ready(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (w widgets) edit(ctx context.Context) error {
	heading("One is changed, three times in a row: the last change counts")
	for size := 4; size <= 6; size++ {
		if _, err := w.Put(ctx, "blue", widget{Size: size}); err != nil {
			return err
		}
	}
	return w.ready(ctx, "blue")
}

func (w widgets) remove(ctx context.Context) error {
	heading("One is deleted")
	if _, err := w.Delete(ctx, "red"); err != nil {
		return err
	}
	err := w.until(ctx, "red", func(_ *apiclient.Object[widget, widget], err error) bool {
		return errors.Is(err, apiclient.ErrNotFound)
	})
	if err == nil {
		say("widgets/red is gone; a controller that has to clean up first says so with ForWithCleanup")
	}
	return err
}

// crash kills both replicas, the second while it works, waits until a new one has taken over, and starts one of them again.
func (h *installation) crash(ctx context.Context, w widgets) error {
	heading("Both replicas are killed (kill -9), one in the middle of its work")
	if err := h.crew.kill("replica-b"); err != nil {
		return err
	}
	say("replica-b is dead; replica-a does all the work now")
	if _, err := w.Put(ctx, "green", widget{Size: 20 + time.Now().Second()%2}); err != nil { // 2 s of work
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
	}
	if err := h.crew.kill("replica-a"); err != nil {
		return err
	}
	killed := time.Now()
	say("replica-a is dead; the lock on widgets/green outlives it until its lease of 10 s ends")
	if err := h.crew.start(h, "replica-c"); err != nil {
		return err
	}
	if err := w.ready(ctx, "green"); err != nil {
		return err
	}
	say("widgets/green was taken up and finished %.1f s after the kill", time.Since(killed).Seconds())
	heading("One of them comes back")
	if err := h.crew.start(h, "replica-a"); err != nil {
		return err
	}
	say("replica-a and replica-c share the work from here on")
	return nil
}

func (w widgets) ready(ctx context.Context, name string) error {
	return w.until(ctx, name, func(o *apiclient.Object[widget, widget], err error) bool {
		return err == nil && o.Reconciliation.State == apiclient.StateReady && o.Reconciliation.ObservedGeneration == o.Generation
	})
}

func (w widgets) until(ctx context.Context, name string, done func(*apiclient.Object[widget, widget], error) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("widgets/%s is not as declared within %s", name, within))
	defer cancel()
	for began, told := time.Now(), time.Now(); ; {
		if done(w.Get(ctx, name)) {
			return nil
		}
		if time.Since(told) > 3*time.Second {
			told = time.Now()
			say("… widgets/%s is waited for, %.0f s so far", name, time.Since(began).Seconds())
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func heading(text string) { fmt.Printf("\n— %s\n", text) }

func (h *installation) whereNext() {
	fmt.Printf(`
— Where to look next
Declare a widget, and see what became of it:
    curl -X PUT %[1]s/v1/objects/widgets/mine -d '{"spec":{"Size":7}}' -H 'Content-Type: application/json'
    curl %[1]s/v1/objects/widgets/mine
What waits and what is locked, with the nats command (go install github.com/nats-io/natscli/nats@latest):
    nats -s %[2]s stream subjects evenkeel_work
    nats -s %[2]s kv ls evenkeel_locks
A controller of your own, or examples/records, can use the same servers:
    NATS_URL=%[2]s API_URL=%[1]s go run ./examples/records
This controller is examples/hello/controller.go. Ctrl-C ends; the next run finds its data in %[3]s (-data chooses
another folder, -once ends after the show).
`, h.apiURL, h.natsURL, h.data)
}
