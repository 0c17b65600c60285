package realtime

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/e2e/wire"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// P5: a stop ends although calls of the NATS client do not return, because the link stalls while the application sends.
func TestRunReturnsWhileTheLinkIsStalled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link, nc := wire.New(t, r.node, 0)
	defer nc.Close()
	begun := make(chan struct{})
	cfg := reconciler.Config{
		NATS: nc, API: r.web.URL, Name: "a", Lease: 2 * time.Second, Grace: time.Second, Replicas: 1,
		Logger: quiet,
		Observer: func(e reconciler.Event) {
			if e.Step == reconciler.StepStarted {
				close(begun)
			}
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- reconciler.Run(ctx, cfg, reconciler.For("jobs", work("a"))) }()
	r.put("x", job{Millis: 3_600_000})
	await(t, "it starts", begun)
	blocks, resume := link.Stall()
	defer resume()
	go func() { _ = nc.Publish("noise", make([]byte, 1<<20)) }() // which ends with the stall
	await(t, "the client blocks", blocks)
	cancel()
	stopped := make(chan struct{})
	var err error
	go func() { err = <-ran; close(stopped) }()
	select {
	case <-stopped:
		require.Error(t, err, "what could not be done is said")
	case <-time.After(45 * time.Second): // a write blocks for a minute
		require.FailNow(t, "the stop hangs with the client")
	}
}
