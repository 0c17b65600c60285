// Command records is a controller as one would deploy it: it connects to NATS and to the API that its environment names,
// serves a readiness probe, and stops cleanly on SIGTERM. Against a running hello:
//
//	go run ./examples/records
//	curl -X PUT http://127.0.0.1:8080/v1/objects/records/www -H 'Content-Type: application/json' \
//	  -d '{"spec":{"host":"www","address":"192.0.2.1"}}'
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "records:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), "nats://127.0.0.1:4222"), nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), nats.RetryOnFailedConnect(true))
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	var token apiclient.TokenSource // hello asks for none
	if file := os.Getenv("API_TOKEN_FILE"); file != "" {
		token = apiclient.TokenFile(file)
	}
	runner, err := reconciler.New(reconciler.Config{
		NATS: nc, API: cmp.Or(os.Getenv("API_URL"), "http://127.0.0.1:8080"), Token: token,
		Logger: logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)),
	}, Controller(newMemoryZone()))
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cmp.Or(os.Getenv("PROBE_ADDRESS"), "127.0.0.1:8081"))
	if err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	probe := &http.Server{Handler: ready(runner), ReadHeaderTimeout: time.Second}
	failed := make(chan error, 1)
	go func() { failed <- probe.Serve(listener) }() // ends with Shutdown
	err = runner.Run(ctx)
	err = errors.Join(err, probe.Shutdown(context.WithoutCancel(ctx)))
	if e := <-failed; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("serve the probe: %w", e))
	}
	return err
}

func ready(runner *reconciler.Runner) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := runner.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
}
