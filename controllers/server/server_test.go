package server_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/controllers/api"
	"github.com/evenkeel-io/evenkeel/controllers/secrets"
	"github.com/evenkeel-io/evenkeel/controllers/server"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// disk is an audit log that may be full.
type disk struct{ full atomic.Bool }

func (d *disk) Write(p []byte) (int, error) {
	if d.full.Load() {
		return 0, errors.New("no space left")
	}
	return len(p), nil
}

func connect(t *testing.T) *nats.Conn {
	t.Helper()
	node, err := broker.Start(t.TempDir(), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { broker.Stop(node) })
	nc, err := broker.Connect(node)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(data)
}

// TestServerAsksWhoAsks, but for the probes and the description; and the probe knows of an audit log that cannot be written.
func TestServerAsksWhoAsks(t *testing.T) {
	store := "sqlite:" + filepath.Join(t.TempDir(), "api.db")
	var audit disk
	s, err := server.Start(t.Context(), server.Config{Store: store, Listen: "127.0.0.1:0", NATS: connect(t), Audit: &audit, Rate: 100, Burst: 2})
	require.NoError(t, err)
	defer s.Stop()
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/openapi.json": 200, "/v1/objects/widgets": 401, "/v1/tokens": 401} {
		status, _ := get(t, s.URL()+path)
		require.Equal(t, want, status, path)
	}
	tokens, err := api.OpenTokens(t.Context(), store)
	require.NoError(t, err)
	defer tokens.Close()
	_, text, err := tokens.Create(t.Context(), "ops", access.Grant{Role: access.Editor}, nil)
	require.NoError(t, err)
	widgets, err := apiclient.New[map[string]any, map[string]any](apiclient.Config{URL: s.URL(), Token: apiclient.StaticToken(text)}, "widgets")
	require.NoError(t, err)
	_, err = widgets.Create(t.Context(), "blue", nil)
	require.ErrorIs(t, err, apiclient.ErrInvalid)
	audit.full.Store(true)
	_, err = widgets.Create(t.Context(), "blue", map[string]any{})
	require.NoError(t, err)
	status, body := get(t, s.URL()+"/readyz")
	require.Equal(t, 503, status)
	require.Contains(t, body, "the audit log cannot be written")
	require.NotContains(t, body, "no space left")
}

// TestReconcilersReadSecrets with the role of a controller; who looks at the object sees none.
func TestReconcilersReadSecrets(t *testing.T) {
	store, nc := "sqlite:"+filepath.Join(t.TempDir(), "api.db"), connect(t)
	keys, err := secrets.LoadOrMake(filepath.Join(t.TempDir(), "keys"), "one")
	require.NoError(t, err)
	s, err := server.Start(t.Context(), server.Config{Store: store, Listen: "127.0.0.1:0", NATS: nc, Secrets: keys})
	require.NoError(t, err)
	defer s.Stop()
	tokens, err := api.OpenTokens(t.Context(), store)
	require.NoError(t, err)
	defer tokens.Close()
	config := func(role access.Role) apiclient.Config {
		_, text, err := tokens.Create(t.Context(), string(role), access.Grant{Role: role}, nil)
		require.NoError(t, err)
		return apiclient.Config{URL: s.URL(), Token: apiclient.StaticToken(text)}
	}
	type spec struct {
		Password string `json:"password" jsonschema_extras:"x-sensitive=true"`
	}
	kinds, err := apiclient.NewKinds(config(access.Admin))
	require.NoError(t, err)
	_, err = kinds.Put(t.Context(), "widgets", api.SchemaOf[spec]())
	require.NoError(t, err)

	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	read, ended := make(chan string, 1), make(chan error, 1)
	c := config(access.Controller)
	go func() {
		ended <- reconciler.Run(ctx, reconciler.Config{NATS: nc, API: c.URL, Token: c.Token, Logger: logr.FromSlogHandler(slog.DiscardHandler)},
			reconciler.For("widgets", func(_ context.Context, o *apiclient.Object[spec, struct{}]) (reconciler.Result, error) {
				select {
				case read <- o.Spec.Password:
				default:
				}
				return reconciler.Result{}, nil
			}))
	}()
	widgets, err := apiclient.New[spec, struct{}](config(access.Editor), "widgets")
	require.NoError(t, err)
	_, err = widgets.Create(ctx, "blue", spec{Password: "hunter2"})
	require.NoError(t, err)
	select {
	case got := <-read:
		require.Equal(t, "hunter2", got)
	case err := <-ended:
		require.NoError(t, err)
	case <-ctx.Done():
		t.Fatal("it was not reconciled")
	}
	o, err := widgets.WaitFor(ctx, "blue", (*apiclient.Object[spec, struct{}]).Ready)
	require.NoError(t, err)
	require.Equal(t, "REDACTED", o.Spec.Password)
	stop()
	require.NoError(t, <-ended)
}

func TestInsecureServerAsksNobody(t *testing.T) {
	nc := connect(t)
	s, err := server.Start(t.Context(), server.Config{Store: "sqlite::memory:", Listen: "localhost:0", InsecureLoopback: true, NATS: nc})
	require.NoError(t, err)
	defer s.Stop()
	status, _ := get(t, s.URL()+"/v1/objects/widgets")
	require.Equal(t, 200, status)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/v1/objects/widgets", nil)
	require.NoError(t, err)
	req.Host = "evil.example"
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, 421, resp.StatusCode)
	_, err = server.Start(t.Context(), server.Config{Store: "sqlite::memory:", Listen: ":0", InsecureLoopback: true, NATS: nc})
	require.ErrorContains(t, err, "Config.InsecureLoopback")
	_, err = server.Start(t.Context(), server.Config{Store: "sqlite::memory:", Listen: ":0", NATS: nc})
	require.ErrorContains(t, err, "want Config.TLS")
}
