package e2e

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

type wspec struct{ Size int }
type wstatus struct{ Size, Runs int }

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := broker.Start(dir, "")
		require.NoError(t, err)
		defer broker.Stop(s)
		nc, err := broker.Connect(s)
		require.NoError(t, err)
		defer nc.Close()
		require.NoError(t, notify.Streams(t.Context(), nc, notify.Config{Storage: jetstream.MemoryStorage}))
		pub, err := notify.NewPublisher(nc, notify.Config{})
		require.NoError(t, err)
		mem := apitest.NewMemory(pub.Publish)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { mem.Run(ctx) })
		fail := 3
		wg.Go(func() {
			err := reconciler.Run(ctx, reconciler.Config{NATS: nc, API: "http://api", HTTP: mem.Client(), Storage: jetstream.MemoryStorage,
				Observer: func(e reconciler.Event) {
					t.Logf("%s %-12s %s/%s a=%d f=%d %s %s after=%s %v", e.Time.Format("15:04:05.000"), e.Step, e.Kind, e.Name, e.Attempt, e.Fence, e.Reason, e.State, e.After, e.Err)
				}},
				reconciler.For("widgets", func(ctx context.Context, w *apiclient.Object[wspec, wstatus]) (reconciler.Result, error) {
					w.Status.Size = w.Spec.Size
					w.Status.Runs++
					if w.Name == "bad" && fail > 0 {
						fail--
						return reconciler.Result{}, context.Canceled
					}
					return reconciler.Result{}, nil
				}))
			require.NoError(t, err)
		})
		c, err := apiclient.New[wspec, wstatus](apiclient.Config{URL: "http://api", HTTP: mem.Client()}, "widgets")
		require.NoError(t, err)
		_, err = c.Create(ctx, "good", wspec{3})
		require.NoError(t, err)
		_, err = c.Create(ctx, "bad", wspec{4})
		require.NoError(t, err)
		<-time.After(time.Hour)
		o, err := c.Get(ctx, "good")
		require.NoError(t, err)
		t.Logf("%+v", o)
		cancel()
		wg.Wait()
	})
}
