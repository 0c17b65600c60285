package reconcilertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/broker/bubble"
	"github.com/evenkeel-io/evenkeel/internal/random"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// apiURL is where the API of a World is; nothing listens there, requests are answered in memory.
const apiURL = "http://api.test"

// World is a broker, an API and the replicas of a test, in virtual time. Its methods are for the test's goroutine.
type World struct {
	t       testing.TB
	dir     string
	storage jetstream.StorageType
	memory  *apitest.Memory
	nc      *nats.Conn // the publisher's
	kinds   map[string]bool

	mu       sync.Mutex
	broker   *server.Server
	timeline Timeline
	fates    func(Message) fate // nil: all arrive at once
	sent     map[Message]int    // how many, by what they have in common; Nth is 0
	clocks   map[string]Clock   // of replicas, by name
	began    time.Time

	faults       orders[Fault]       // guarded by mu
	brokerFaults orders[BrokerFault] // guarded by mu

	serving  sync.Mutex
	accesses []access // guarded by serving

	locker   *lock.Locker          // the World's own; nil until DisableResync
	noResync map[string]*lock.Lock // by kind

	replicas []*Replica
	living   context.Context // ends with the World; for requests that outlive their replica
	ends     []func()        // in order of start
}

// Run runs f in a bubble of virtual time (testing/synctest) with a World, and takes the World down afterwards. If the
// test fails, the timeline is logged, in the middle cut short unless the test is verbose. Of Worlds that are started in
// parallel, one runs at a time. f must not call t.Run, t.Parallel or t.Deadline (testing/synctest forbids them).
func Run(t *testing.T, f func(t *testing.T, w *World)) {
	t.Helper()
	run(t, jetstream.MemoryStorage, f)
}

// run is Run with a broker that stores what it has in memory or in files, which outlive it.
func run(t *testing.T, storage jetstream.StorageType, f func(t *testing.T, w *World)) {
	t.Helper()
	dir := t.TempDir()
	bubble.Run(t, func(t *testing.T) {
		defer random.Seed(1)()
		w := &World{
			t: t, dir: dir, storage: storage, kinds: map[string]bool{}, sent: map[Message]int{}, clocks: map[string]Clock{}, began: time.Now(),
			noResync: map[string]*lock.Lock{},
		}
		var cancel context.CancelFunc
		w.living, cancel = context.WithCancel(context.Background())
		defer cancel()
		defer w.end()
		if err := w.begin(); err != nil {
			t.Fatalf("start the world: %v", err)
		}
		f(t, w)
	})
}

func (w *World) begin() error {
	s, err := broker.Start(w.dir, "")
	if err != nil {
		return err
	}
	w.broker = s
	w.ends = append(w.ends, func() {
		if w.broker != nil {
			broker.Stop(w.broker)
		}
	})
	nc, err := w.connect(w)
	if err != nil {
		return err
	}
	w.nc = nc
	w.ends = append(w.ends, nc.Close)
	cfg := notify.Config{Storage: w.storage}
	if err := notify.Streams(context.Background(), nc, cfg); err != nil {
		return err
	}
	publisher, err := notify.NewPublisher(nc, cfg)
	if err != nil {
		return err
	}
	w.memory = apitest.NewMemory(publisher.Publish)
	ctx, cancel := context.WithCancel(context.Background())
	var relaying sync.WaitGroup
	relaying.Go(func() { _ = w.memory.Run(ctx) }) // ends with ctx
	w.ends = append(w.ends, func() { cancel(); relaying.Wait() })
	return nil
}

// end takes everything down, also in the middle of a test that failed.
func (w *World) end() {
	if w.t.Failed() {
		w.t.Logf("timeline:\n%s", w.Timeline().excerpt())
	}
	for _, r := range w.replicas {
		r.Kill()
	}
	for _, r := range w.replicas {
		<-r.done
		r.nc.Close()
	}
	for i := len(w.ends) - 1; i >= 0; i-- {
		w.ends[i]()
	}
}

// connect makes a connection to the broker through a dialer, which may stand for a link that can be cut.
func (w *World) connect(dialer nats.InProcessConnProvider) (*nats.Conn, error) {
	return nats.Connect("", nats.InProcessServer(dialer), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(100*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // links are cut on purpose here
}

// InProcessConn lets a test connect to the World's broker, over a link that is always up and survives a change of brokers:
// nats.Connect("", nats.InProcessServer(w)).
func (w *World) InProcessConn() (net.Conn, error) {
	w.mu.Lock()
	s := w.broker
	w.mu.Unlock()
	if s == nil {
		return nil, errors.New("the broker is down")
	}
	return s.InProcessConn()
}

// StopBroker takes the broker down, with all it stored, until StartBroker.
func (w *World) StopBroker() {
	w.t.Helper()
	w.mu.Lock()
	s := w.broker
	w.broker = nil
	w.mu.Unlock()
	w.note("", "the broker is gone")
	if s != nil {
		broker.Stop(s)
	}
}

// StartBroker starts an empty broker in the place of the one that was stopped: it has lost everything. That is the worst
// that can happen to a broker; [DisturbEverywhere] restarts one with its files.
func (w *World) StartBroker() {
	w.t.Helper()
	w.startBroker(w.dir+"/"+fmt.Sprint(time.Now().UnixNano()), "an empty broker is up")
}

// restartBroker stops the broker and starts it again with what it stored, in files.
func (w *World) restartBroker() {
	w.t.Helper()
	w.StopBroker()
	w.startBroker(w.dir, "the broker is back")
}

// startBroker starts a broker with what is in a folder.
func (w *World) startBroker(dir, what string) {
	w.t.Helper()
	s, err := broker.Start(dir, "")
	if err != nil {
		w.t.Fatalf("start the broker: %v", err)
	}
	w.mu.Lock()
	w.broker = s
	w.mu.Unlock()
	w.note("", what)
}

// Client returns a client of one kind that sees the API over a link that is always up.
func Client[S, T any](w *World, kind string) *apiclient.Client[S, T] {
	w.t.Helper()
	c, err := apiclient.New[S, T](apiclient.Config{URL: apiURL, HTTP: &http.Client{Transport: noting{w}}, Tries: 1}, kind)
	if err != nil {
		w.t.Fatal(err)
	}
	w.kinds[kind] = true
	return c
}

// noting puts the writes of the test's clients on the timeline.
type noting struct{ w *World }

func (n noting) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		n.w.note("", req.Method+" "+req.URL.Path)
	}
	return n.w.access("", req)
}

// API is the handler of the World's API, for what its Client does not reach.
func (w *World) API() http.Handler { return w.memory }

// Timeline returns what has happened so far.
func (w *World) Timeline() Timeline {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(Timeline(nil), w.timeline...)
}

func (w *World) record(e reconciler.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timeline = append(w.timeline, e)
}

// note puts something that the test did on the timeline.
func (w *World) note(replica, what string) {
	w.record(reconciler.Event{Time: time.Now(), Step: StepTest, Replica: replica, Reason: what})
}
