package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// TestLeastPermissionsAreEnough runs a controller as a user with exactly the documented rights, through success, retry,
// contention, a message that is set aside, and resync; and checks that the server denied it nothing.
func TestLeastPermissionsAreEnough(t *testing.T) {
	publish, subscribe := reconciler.Permissions("evenkeel", "_INBOX_c", false, "jobs")
	withServer(t, may(publish, subscribe), func(t *testing.T, s *server.Server, admin *nats.Conn, js jetstream.JetStream) {
		require.NoError(t, notify.Streams(t.Context(), admin, notify.Config{Storage: jetstream.MemoryStorage}, "jobs"))
		require.NoError(t, lock.Ensure(t.Context(), js, "evenkeel_locks", 1, jetstream.MemoryStorage))

		var mu sync.Mutex
		var denied []error
		nc := asUser(t, s, nats.CustomInboxPrefix("_INBOX_c"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			mu.Lock()
			defer mu.Unlock()
			denied = append(denied, err)
		}))
		defer nc.Close()

		publisher, err := notify.NewPublisher(admin, notify.Config{})
		require.NoError(t, err)
		memory := apitest.NewMemory(publisher.Publish)
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = memory.Run(ctx) })
		failures := 2
		running.Go(func() {
			err := reconciler.Run(ctx, reconciler.Config{NATS: nc, API: "http://api", HTTP: memory.Client(), Logger: quiet, Storage: jetstream.MemoryStorage},
				reconciler.For("jobs", func(_ context.Context, o *apiclient.Object[job, done]) (reconciler.Result, error) {
					if failures--; failures >= 0 {
						return reconciler.Result{}, errors.New("not yet")
					}
					o.Status.Value = o.Spec.Value
					return reconciler.Result{}, nil
				}))
			if err != nil {
				t.Error(err)
			}
		})
		defer running.Wait()
		defer cancel()
		jobs, err := apiclient.New[job, done](apiclient.Config{URL: "http://api", HTTP: memory.Client()}, "jobs")
		require.NoError(t, err)
		_, err = jobs.Create(ctx, "x", job{Value: 7})
		require.NoError(t, err)
		require.NoError(t, admin.Publish("evenkeel.n.jobs.99.bad_name", nil))
		_, err = admin.Request("$KV.evenkeel_locks.lock.jobs.1.orphan", []byte(`{"session":"dead"}`), time.Second)
		require.NoError(t, err)
		advance(15 * time.Minute)

		o, err := jobs.Get(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, apiclient.StateReady, o.Reconciliation.State)
		aside, err := notify.ListAside(ctx, admin, notify.Config{}, "jobs")
		require.NoError(t, err)
		require.Len(t, aside, 1)
		mu.Lock()
		defer mu.Unlock()
		require.Empty(t, denied)
	})
}

// TestMissingPermissionIsNamed checks that a denied request ends in an error that says so, instead of a bare timeout.
func TestMissingPermissionIsNamed(t *testing.T) {
	withServer(t, may([]string{"nothing"}, nil), func(t *testing.T, s *server.Server, _ *nats.Conn, _ jetstream.JetStream) {
		nc := asUser(t, s)
		defer nc.Close()
		p, err := notify.NewPublisher(nc, notify.Config{})
		require.NoError(t, err)
		require.ErrorContains(t, p.Publish(t.Context(), "jobs", "x", "test"), "Permissions Violation")
	})
}

// A right that is missing at the start is named by the log and by Ready, which a bare timeout is not; once it is given, the
// controller starts.
func TestRightMissingAtTheStartIsNamed(t *testing.T) {
	publish, subscribe := reconciler.Permissions("evenkeel", "", false, "jobs")
	for _, missing := range []string{"$JS.API.STREAM.INFO.evenkeel_work", "$JS.API.STREAM.INFO.evenkeel_history", "$JS.API.STREAM.INFO.KV_evenkeel_locks", "$JS.API.CONSUMER.INFO.evenkeel_work.jobs_later", "$JS.API.STREAM.MSG.GET.evenkeel_work"} {
		t.Run(missing, func(t *testing.T) {
			fewer := slices.DeleteFunc(slices.Clone(publish), func(right string) bool { return right == missing })
			withServer(t, may(fewer, subscribe), func(t *testing.T, s *server.Server, admin *nats.Conn, js jetstream.JetStream) {
				require.NoError(t, notify.Streams(t.Context(), admin, notify.Config{Storage: jetstream.MemoryStorage}, "jobs"))
				require.NoError(t, lock.Ensure(t.Context(), js, "evenkeel_locks", 1, jetstream.MemoryStorage))
				nc := asUser(t, s)
				defer nc.Close()
				memory := apitest.NewMemory(nil)
				cfg := reconciler.Config{NATS: nc, API: "http://api", HTTP: memory.Client(), Storage: jetstream.MemoryStorage}
				var log lines
				log.sink(&cfg)
				runner, err := reconciler.New(cfg, reconciler.For("jobs", work))
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(context.Background())
				var running sync.WaitGroup
				running.Go(func() { require.NoError(t, runner.Run(ctx)) })
				defer running.Wait()
				defer cancel()
				advance(10 * time.Second)
				require.ErrorContains(t, runner.Ready(), `Permissions Violation for Publish to "`+missing+`"`)
				require.ErrorContains(t, runner.Ready(), "give the NATS user the rights that reconciler.Permissions lists")
				require.Contains(t, log.text(), missing)
				require.NoError(t, s.ReloadOptions(withUsers(filepath.Dir(s.StoreDir()), may(publish, subscribe))))
				advance(time.Minute)
				require.NoError(t, runner.Ready())
			})
		})
	}
}
