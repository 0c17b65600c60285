package realtime

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/notify"
)

// rig is what replica processes need, in real time: a broker on disk with a TCP port, and the API.
type rig struct {
	t        *testing.T
	natsURL  string
	replicas int
	resync   time.Duration
	web      *httptest.Server
	jobs     *apiclient.Client[job, done]

	dir  string
	node *server.Server
}

// newRig starts a single broker on files.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, replicas: 1, resync: 5 * time.Second, dir: t.TempDir()}
	node, err := broker.Start(r.dir, "127.0.0.1:0")
	require.NoError(t, err)
	r.node, r.natsURL = node, node.ClientURL()
	t.Cleanup(func() { broker.Stop(r.node) })
	r.startAPI()
	return r
}

func (r *rig) connect() *nats.Conn {
	nc, err := nats.Connect(r.natsURL, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	require.NoError(r.t, err)
	r.t.Cleanup(nc.Close)
	return nc
}

func (r *rig) startAPI() {
	nc := r.connect()
	cfg := notify.Config{Replicas: r.replicas}
	eventually(r.t, func() error { return notify.Streams(r.t.Context(), nc, cfg) })
	publisher, err := notify.NewPublisher(nc, cfg)
	require.NoError(r.t, err)
	memory := apitest.NewMemory(publisher.Publish)
	ctx, cancel := context.WithCancel(context.Background())
	var relaying sync.WaitGroup
	relaying.Go(func() { _ = memory.Run(ctx) }) // ends with ctx, without an error
	r.web = httptest.NewServer(memory)
	r.t.Cleanup(func() {
		r.web.Close()
		cancel()
		relaying.Wait()
	})
	r.jobs, err = apiclient.New[job, done](apiclient.Config{URL: r.web.URL}, "jobs")
	require.NoError(r.t, err)
}

// restart stops the broker for a while and starts it again on the same files and port.
func (r *rig) restart(down time.Duration) {
	port := r.node.Addr().(*net.TCPAddr).Port
	broker.Stop(r.node)
	<-time.After(down)
	node, err := broker.Start(r.dir, fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(r.t, err)
	r.node = node
}

func (r *rig) put(name string, j job) {
	r.t.Helper()
	_, err := r.jobs.Put(r.t.Context(), name, j)
	require.NoError(r.t, err)
}

// converged waits until an object is Ready at its present generation, and returns it.
func (r *rig) converged(name string) (o *apiclient.Object[job, done]) {
	r.t.Helper()
	eventually(r.t, func() (err error) {
		o, err = r.jobs.Get(r.t.Context(), name)
		if err == nil && (o.Reconciliation.State != apiclient.StateReady || o.Status.Value != o.Spec.Value) {
			err = fmt.Errorf("%s is %s at generation %d of %d, status %+v", name, o.Reconciliation.State, o.Reconciliation.ObservedGeneration, o.Generation, o.Status)
		}
		return err
	})
	return o
}
