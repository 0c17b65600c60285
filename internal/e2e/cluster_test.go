package e2e

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

// TestClusterTakeLetsEveryLaterChangeIn checks what Take promises on a replicated stream: a notification that is published
// after it is never refused as a duplicate of the one taken. A confirmed acknowledgement does not promise that there
// (see BenchmarkClusterAck for how often it fails to).
func TestClusterTakeLetsEveryLaterChangeIn(t *testing.T) {
	_, nc := newCluster(t)
	ctx := t.Context()
	cfg := notify.Config{Replicas: 3}
	eventually(t, func() error { return notify.Streams(ctx, nc, cfg, "widgets") })
	publisher, err := notify.NewPublisher(nc, cfg)
	require.NoError(t, err)
	names := subject.Names{Prefix: notify.DefaultPrefix}

	const rounds = 300
	refusedAfter := func(take func(d *notify.Delivery) error) (refused int) {
		deliveries := make(chan *notify.Delivery, 1)
		consumer, err := notify.NewConsumer(ctx, nc, notify.ConsumerConfig{Config: cfg, Kind: "widgets", MaxFree: 1, Free: func() int { return 1 - len(deliveries) }})
		require.NoError(t, err)
		pulling, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- consumer.Run(pulling, func(d *notify.Delivery) { deliveries <- d }) }()
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
	require.Zero(t, refusedAfter(func(d *notify.Delivery) error { return d.Take(ctx) }))

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
