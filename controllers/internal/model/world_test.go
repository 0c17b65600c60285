// Package model has no code, only tests: they let random clients write to several APIs on one store at once, and check that
// what came back could have happened to one set of objects, one operation after the other.
package model

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/api"
	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	os.Exit(code)
}

// stores are where the histories are made: each with as many APIs as share it.
var stores = map[string]struct {
	apis  int
	store func(t *testing.T) string
}{
	"sqlite":   {2, func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "evenkeel.db") }},
	"postgres": {3, func(t *testing.T) string { return pgtest.Database(t) }},
}

// overSeeds runs a test once per seed on each store. EVENKEEL_SEED asks for one seed, EVENKEEL_SEEDS for so many from 1. A
// seed replays what the clients choose, not how they take turns.
func overSeeds(t *testing.T, defaultSeeds uint64, test func(t *testing.T, w *world, seed uint64)) {
	for name, s := range stores {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, s.store(t), s.apis)
			from, to := seeds(t, defaultSeeds)
			for seed := from; seed <= to; seed++ {
				if !t.Run(fmt.Sprint(seed), func(t *testing.T) { test(t, w, seed) }) {
					t.Fatalf("replay with EVENKEEL_SEED=%d; other turns may hide it, -count=20 helps", seed)
				}
			}
		})
	}
}

func seeds(t *testing.T, byDefault uint64) (from, to uint64) {
	t.Helper()
	read := func(name string) uint64 {
		n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
		require.NoError(t, err, name)
		return n
	}
	switch {
	case os.Getenv("EVENKEEL_SEED") != "":
		n := read("EVENKEEL_SEED")
		return n, n
	case os.Getenv("EVENKEEL_SEEDS") != "":
		return 1, read("EVENKEEL_SEEDS")
	}
	return 1, byDefault
}

// world is several APIs on one store. Each seed has a kind of its own in it.
type world struct {
	apis []*api.API
	urls []string
	http http.RoundTripper
	// clock orders the beginnings and the ends of calls, for which real time is too coarse.
	clock atomic.Int64

	mu   sync.Mutex
	ears map[string]ear // by kind; guarded by mu
}

// ear hears the notifications of a kind.
type ear func(ctx context.Context, name, reason string) error

func newWorld(t *testing.T, store string, apis int) *world {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	w := &world{http: transport, ears: map[string]ear{}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range apis {
		a, err := api.Open(t.Context(), api.Config{Store: store, Notify: w.notify, Access: api.Access{Insecure: true}})
		require.NoError(t, err)
		srv := httptest.NewServer(a.Handler())
		w.apis, w.urls = append(w.apis, a), append(w.urls, srv.URL)
		t.Cleanup(func() {
			srv.Close()
			require.NoError(t, a.Close())
		})
		if i > 0 { // the first is one that dies before it relays: the others find what it wrote
			running.Go(func() { _ = a.Run(ctx) })
		}
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		transport.CloseIdleConnections()
	})
	return w
}

func (w *world) notify(ctx context.Context, kind, name, reason string) error {
	w.mu.Lock()
	hear := w.ears[kind]
	w.mu.Unlock()
	if hear == nil {
		return nil
	}
	return hear(ctx, name, reason)
}

func (w *world) listen(kind string, hear ear) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ears[kind] = hear
}

func client[S, T any](t *testing.T, w *world, i int, kind string, through http.RoundTripper) *apiclient.Client[S, T] {
	t.Helper()
	c, err := apiclient.New[S, T](apiclient.Config{URL: w.urls[i%len(w.urls)], HTTP: &http.Client{Transport: through}, Tries: 1}, kind)
	require.NoError(t, err)
	return c
}
