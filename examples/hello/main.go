// Command hello shows Evenkeel at work and needs nothing but Go: it starts a NATS server, the API on its embedded store
// and replicas of the controller in controller.go, changes some objects, kills both replicas, one in the middle of its work, and
// prints each step as it happens. Then it stays up for you to play with, until Ctrl-C. Run again, it finds its data.
//
//	go run ./examples/hello             # from the root of the repository
//	go run ./examples/hello -once       # end after the show
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/controllers/server"
	"github.com/evenkeel-io/evenkeel/internal/broker"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

// run is hello, or one of its replicas; being told to stop is no error.
func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	role := hello
	if isReplica() {
		role = replica
	}
	if err := role(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func hello(ctx context.Context) error {
	data := flag.String("data", filepath.Join(os.TempDir(), "evenkeel-hello"), "folder for the NATS and API data; run again, hello finds it there")
	once := flag.Bool("once", false, "end after the show")
	flag.Parse()
	h, err := start(ctx, *data)
	if err != nil {
		return err
	}
	defer h.stop()
	if err := h.show(ctx); err != nil {
		return err
	}
	h.whereNext()
	if !*once {
		<-ctx.Done()
		say("stopping: replicas finish what they are at")
	}
	return nil
}

// installation is everything that a controller needs, in one process, and the replicas in processes of their own.
type installation struct {
	data            string
	natsURL, apiURL string
	crew            crew
	ends            []func() // in order of start
}

func (h *installation) stop() {
	h.crew.stopAll()
	for i := len(h.ends) - 1; i >= 0; i-- {
		h.ends[i]()
	}
}

func start(ctx context.Context, data string) (_ *installation, err error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	h := &installation{data: data}
	defer func() {
		if err != nil {
			h.stop()
		}
	}()
	release, err := broker.Claim(data)
	if err != nil {
		return nil, fmt.Errorf("-data: %w", err)
	}
	h.ends = append(h.ends, func() { report("release the data folder", release()) })
	node, err := broker.Start(filepath.Join(data, "nats"), free(ctx, "127.0.0.1:4222"))
	if err != nil {
		return nil, err
	}
	h.ends = append(h.ends, func() { broker.Stop(node) })
	h.natsURL = node.ClientURL()
	say("nats-server is up, JetStream on disk: %s", h.natsURL)
	nc, err := nats.Connect(h.natsURL, nats.MaxReconnects(-1))
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	h.ends = append(h.ends, nc.Close)
	web, err := server.Start(ctx, server.Config{
		Store: "sqlite:" + filepath.Join(data, "api.db"), Listen: free(ctx, server.DefaultListen), InsecureLoopback: true, NATS: nc,
	})
	if err != nil {
		return nil, err
	}
	h.ends = append(h.ends, func() { report("stop the API", web.Stop()) })
	h.apiURL = web.URL()
	say("the API is up, objects in SQLite: %s", h.apiURL)
	say("data is in %s", data)
	return h, nil
}

func report(doing string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "hello: %s: %v\n", doing, err)
	}
}

// free returns the address if nobody listens there, and one with any free port if somebody does.
func free(ctx context.Context, address string) string {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return "127.0.0.1:0"
	}
	_ = l.Close() // it was only asked for
	return address
}
