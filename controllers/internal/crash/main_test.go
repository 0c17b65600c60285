// Package crash has no code, only tests: they kill the API, the broker and the database over and over while clients write,
// and then look for a write that was answered and is gone, or that no controller heard of.
//
// Every part is a process of its own. The API is the real one, from controllers/server; where it dies at an exact point
// (points_test.go) it is watched at its borders: the requests that come in, the bytes to and from the broker, the
// transactions of the database. It does not know of it.
package crash

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/server"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

const (
	roleEnv   = "EVENKEEL_CRASH_ROLE"
	natsEnv   = "EVENKEEL_CRASH_NATS"   // host:port
	apiEnv    = "EVENKEEL_CRASH_API"    // host:port
	folderEnv = "EVENKEEL_CRASH_FOLDER" // of the broker
	storeEnv  = "EVENKEEL_CRASH_STORE"

	// upLine is what a process prints when it is up.
	upLine = "up"
	// reconnect is how soon connections to a broker are tried again; the default of two seconds would take up most of the run.
	reconnect = 50 * time.Millisecond
)

// TestMain is four programs: the tests and, when its environment says so, one of the processes that they start and kill.
func TestMain(m *testing.M) {
	main := map[string]func(in io.Reader) error{"api": apiMain, "broker": brokerMain, "controller": controllerMain}[os.Getenv(roleEnv)]
	if main == nil {
		os.Exit(m.Run())
	}
	if err := main(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// brokerMain runs until its input ends, as all of them do: no process outlives the tests.
func brokerMain(in io.Reader) error {
	node, err := broker.Start(os.Getenv(folderEnv), os.Getenv(natsEnv))
	if err != nil {
		return err
	}
	defer broker.Stop(node)
	fmt.Println(upLine)
	_, err = io.Copy(io.Discard, in)
	return err
}

// apiMain serves the API. A line "N POINT" of its input lets it die when it gets to that point for the Nth time.
func apiMain(in io.Reader) (err error) {
	p := new(points)
	store, stop, err := watchStore(p, os.Getenv(storeEnv))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	nc, err := nats.Connect("nats://"+os.Getenv(natsEnv), nats.MaxReconnects(-1), nats.ReconnectWait(reconnect), nats.SetCustomDialer(natsBorder{p}))
	if err != nil {
		return err
	}
	defer nc.Close()
	log := funcr.New(func(_, args string) { fmt.Fprintln(os.Stderr, args) }, funcr.Options{LogTimestamp: true})
	s, err := server.Start(context.Background(), server.Config{InsecureLoopback: true, Store: store, Listen: "127.0.0.1:0", NATS: nc, Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	l, err := net.Listen("tcp", os.Getenv(apiEnv))
	if err != nil {
		return err
	}
	f := newFront(p, s.URL())
	web := &http.Server{Handler: f}
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	fmt.Println(upLine)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		nth, at, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.Atoi(nth)
		if err != nil {
			return err
		}
		p.arm(point(at), n)
	}
	err = web.Close()
	<-served
	f.transport.CloseIdleConnections() // a stop waits some seconds for those that were never used
	return err
}

// want is what the objects of these tests want, and, as their status, what they are.
type want struct {
	Value int            `json:"value"`
	Tally map[string]int `json:"tally,omitempty"`
}

const (
	plain = "plain" // objects of this kind go at once when they are deleted
	kept  = "kept"  // those of this kind are cleaned up first
)

// event is what the controller tells of a step.
type event struct {
	Step             reconciler.Step
	Kind, Name, Text string
	At               time.Time
	Deleting         bool
}

// controllerMain copies specs into statuses. It prints its events.
func controllerMain(in io.Reader) error {
	nc, err := nats.Connect("nats://"+os.Getenv(natsEnv), nats.MaxReconnects(-1), nats.ReconnectWait(reconnect), nats.RetryOnFailedConnect(true))
	if err != nil {
		return err
	}
	defer nc.Close()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	// A search for what was forgotten comes often: it must never find anything.
	cfg := reconciler.Config{NATS: nc, API: "http://" + os.Getenv(apiEnv), Name: "controller", Logger: logr.FromSlogHandler(slog.DiscardHandler), Resync: 5 * time.Second, Observer: func(e reconciler.Event) {
		text := e.Reason
		if e.Err != nil {
			text += ": " + e.Err.Error()
		}
		if e.After > 0 {
			text += " after " + e.After.String()
		}
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(event{e.Step, e.Kind, e.Name, text, e.Time, e.Deleting}) // the tests have gone if nobody reads it
	}}
	ctx, stop := context.WithCancel(context.Background())
	read := make(chan error, 1)
	go func() {
		defer stop()
		_, err := io.Copy(io.Discard, in)
		read <- err
	}()
	fmt.Println(upLine)
	err = reconciler.Run(ctx, cfg, reconciler.For(plain, reconcile), reconciler.ForWithCleanup(kept, reconcile, cleanUp))
	return errors.Join(err, <-read)
}

func reconcile(_ context.Context, o *apiclient.Object[want, want]) (reconciler.Result, error) {
	o.Status = o.Spec
	return reconciler.Result{}, nil
}

func cleanUp(context.Context, *apiclient.Object[want, want]) (reconciler.Result, error) {
	return reconciler.Result{}, nil
}
