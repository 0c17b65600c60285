package realtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/notify"
)

var names = subject.Names{Prefix: notify.DefaultPrefix}

// newCluster starts three nodes and returns them with a connection that knows all of them.
func newCluster(t *testing.T) ([]*server.Server, *nats.Conn) {
	t.Helper()
	nodes, err := broker.StartCluster(t.TempDir(), 3)
	require.NoError(t, err)
	t.Cleanup(func() { broker.StopAll(nodes) })
	var urls []string
	for _, n := range nodes {
		urls = append(urls, n.ClientURL())
	}
	nc, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nodes, nc
}

// eventually repeats try until it succeeds: for what takes the cluster an election.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	require.NoError(t, err)
}

// refusedAfter counts the notifications that are refused although they are published after another one of their object was
// taken. begun is called when a consumer runs.
func refusedAfter(t *testing.T, nc *nats.Conn, cfg notify.Config, take func(d *notify.Delivery) error, begun func()) (refused int) {
	t.Helper()
	const rounds = 300
	ctx := t.Context()
	publisher, err := notify.NewPublisher(nc, cfg)
	require.NoError(t, err)
	deliveries := make(chan *notify.Delivery, 1)
	consumer, err := notify.NewConsumer(ctx, nc, notify.ConsumerConfig{Config: cfg, Kind: "widgets", MaxFree: 1, Free: func() int { return 1 - len(deliveries) }})
	require.NoError(t, err)
	pulling, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- consumer.Run(pulling, func(d *notify.Delivery) { deliveries <- d }) }()
	begun()
	for i := range rounds {
		name := fmt.Sprintf("o%d", i)
		require.NoError(t, publisher.Publish(ctx, "widgets", name, "first"))
		d := <-deliveries
		require.Equal(t, name, d.Name)
		require.NoError(t, take(d))
		m := nats.NewMsg(names.Fresh("widgets", name))
		m.Header = jsapi.Expect(0)
		_, err := jsapi.Publish(ctx, nc, m)
		var wrong *jsapi.WrongSequence
		if errors.As(err, &wrong) {
			refused++
			consumer.Wake()
			continue
		}
		require.NoError(t, err)
		consumer.Wake()
		require.NoError(t, (<-deliveries).Take(ctx))
	}
	stop()
	require.NoError(t, <-done)
	return refused
}

// TestClusterStreamThatBecomesReplicatedLosesNoChange checks the same of a consumer that began when one server held the
// stream.
func TestClusterStreamThatBecomesReplicatedLosesNoChange(t *testing.T) {
	t.Parallel()
	_, nc := newCluster(t)
	ctx := t.Context()
	cfg := notify.Config{Replicas: 1}
	eventually(t, func() error { return notify.Streams(ctx, nc, cfg, "widgets") })
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.Zero(t, refusedAfter(t, nc, cfg, func(d *notify.Delivery) error { return d.Take(ctx) }, func() {
		cfg.Replicas = 3
		eventually(t, func() error { return notify.Streams(ctx, nc, cfg, "widgets") })
		eventually(t, func() error {
			s, err := js.Stream(ctx, "evenkeel_work")
			if err != nil {
				return err
			}
			for _, r := range append(s.CachedInfo().Cluster.Replicas, &jetstream.PeerInfo{Current: len(s.CachedInfo().Cluster.Replicas) == 2}) {
				if !r.Current {
					return fmt.Errorf("%s has not caught up", r.Name)
				}
			}
			return nil
		})
	}))
}

// TestClusterTakeLetsEveryLaterChangeIn checks what Take promises on a replicated stream: a notification that is published
// after it is never refused as a duplicate of the one taken. A confirmed acknowledgement does not promise that there.
func TestClusterTakeLetsEveryLaterChangeIn(t *testing.T) {
	t.Parallel()
	_, nc := newCluster(t)
	ctx := t.Context()
	cfg := notify.Config{Replicas: 3}
	eventually(t, func() error { return notify.Streams(ctx, nc, cfg, "widgets") })
	require.Zero(t, refusedAfter(t, nc, cfg, func(d *notify.Delivery) error { return d.Take(ctx) }, func() {}))

	js, err := jetstream.New(nc)
	require.NoError(t, err)
	s, err := js.Stream(ctx, names.WorkStream())
	require.NoError(t, err)
	for _, c := range []string{"widgets", "widgets_later"} {
		eventually(t, func() error {
			consumer, err := s.Consumer(ctx, c)
			if err != nil {
				return err
			}
			if n := consumer.CachedInfo().NumAckPending; n != 0 {
				return fmt.Errorf("%s: %d taken notifications still count as pending", c, n)
			}
			return nil
		})
	}
}
