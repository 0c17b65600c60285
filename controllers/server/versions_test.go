package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/server"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

type (
	lamp1 struct {
		Size int `json:"size"`
	}
	lamp2 struct {
		Count int    `json:"count"`
		Color string `json:"color,omitempty"`
	}
	lit struct {
		Seen int `json:"seen"`
	}
)

// TestControllersOutliveTheirVersion: one that names its version goes on when another one becomes the current one, beside new
// objects and old ones, and a hook that fails holds up neither it nor another kind of the same process.
func TestControllersOutliveTheirVersion(t *testing.T) {
	nc := connect(t)
	s, err := server.Start(t.Context(), server.Config{Store: "sqlite:" + filepath.Join(t.TempDir(), "api.db"), Listen: "127.0.0.1:0", NATS: nc, InsecureLoopback: true})
	require.NoError(t, err)
	defer s.Stop()
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	var down atomic.Bool
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			To    string
			Items []struct{ Spec map[string]any }
		}
		if json.NewDecoder(r.Body).Decode(&asked) != nil || down.Load() {
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		for _, item := range asked.Items {
			if n := item.Spec["size"]; asked.To == "v2" {
				item.Spec["count"] = n
				delete(item.Spec, "size")
				continue
			}
			item.Spec["size"] = item.Spec["count"]
			delete(item.Spec, "count")
			delete(item.Spec, "color")
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": asked.Items})
	}))
	defer hook.Close()
	cfg := apiclient.Config{URL: s.URL(), Tries: 1}
	kinds, err := apiclient.NewKinds(cfg)
	require.NoError(t, err)
	schema1, schema2 := json.RawMessage(`{"type":"object","properties":{"size":{"type":"integer"}}}`), json.RawMessage(`{"type":"object","properties":{"count":{"type":"integer"},"color":{}}}`)
	_, err = kinds.Define(ctx, apiclient.Kind{Kind: "lamps", Schema: schema1, Version: "v1"})
	require.NoError(t, err)

	ended := make(chan error, 1)
	lamps := reconciler.For("lamps", func(_ context.Context, o *apiclient.Object[lamp1, lit]) (reconciler.Result, error) {
		if o.Version != "v1" {
			return reconciler.Result{}, reconciler.Terminal(fmt.Errorf("it is in %q", o.Version))
		}
		o.Status.Seen = o.Spec.Size
		return reconciler.Result{}, nil
	})
	lamps.Version = "v1"
	others := reconciler.For("others", func(context.Context, *apiclient.Object[map[string]any, struct{}]) (reconciler.Result, error) {
		return reconciler.Result{}, nil
	})
	go func() {
		ended <- reconciler.Run(ctx, reconciler.Config{NATS: nc, API: s.URL(), Logger: logr.FromSlogHandler(slog.DiscardHandler), Resync: time.Second}, lamps, others)
	}()
	old, err := apiclient.New[lamp1, lit](cfg, "lamps")
	require.NoError(t, err)
	old = old.At("v1")
	seen := func(name string, size int) {
		t.Helper()
		_, err := old.WaitFor(ctx, name, func(o *apiclient.Object[lamp1, lit]) bool { return o.Ready() && o.Status.Seen == size })
		require.NoError(t, err)
	}
	_, err = old.Create(ctx, "first", lamp1{1})
	require.NoError(t, err)
	seen("first", 1)

	_, err = kinds.Define(ctx, apiclient.Kind{
		Kind: "lamps", Schema: schema2, Version: "v2", Versions: []apiclient.KindVersion{{Name: "v1", Schema: schema1}}, Conversion: &apiclient.Conversion{URL: hook.URL},
	})
	require.NoError(t, err)
	now, err := apiclient.New[lamp2, lit](cfg, "lamps")
	require.NoError(t, err)
	_, err = now.Create(ctx, "second", lamp2{Count: 2, Color: "red"})
	require.NoError(t, err)
	seen("second", 2)
	_, err = now.Put(ctx, "first", lamp2{Count: 3})
	require.NoError(t, err)
	seen("first", 3)
	_, err = old.Put(ctx, "second", lamp1{4})
	require.NoError(t, err)
	seen("second", 4)
	second, err := now.Get(ctx, "second")
	require.NoError(t, err)
	require.Equal(t, lamp2{Count: 4}, second.Spec, "this hook keeps nothing")

	down.Store(true)
	_, err = now.Put(ctx, "first", lamp2{Count: 5})
	require.NoError(t, err)
	other, err := apiclient.New[map[string]any, struct{}](cfg, "others")
	require.NoError(t, err)
	for i := range 5 {
		_, err = now.Create(ctx, fmt.Sprintf("more-%d", i), lamp2{Count: i})
		require.NoError(t, err)
		name := fmt.Sprintf("o-%d", i)
		_, err = other.Create(ctx, name, map[string]any{})
		require.NoError(t, err)
		_, err = other.WaitFor(ctx, name, (*apiclient.Object[map[string]any, struct{}]).Ready)
		require.NoError(t, err)
	}
	down.Store(false)
	for i := range 5 { // a change comes before the next try
		name := fmt.Sprintf("more-%d", i)
		_, err = now.Put(ctx, name, lamp2{Count: 10 + i})
		require.NoError(t, err)
		seen(name, 10+i)
	}
	stop()
	require.NoError(t, <-ended)
}
