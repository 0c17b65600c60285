package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// secret stands in every place where a user may put one.
const secret = "hunter2"

// vault is a way to the API that asks for the secret, and may fail in ways that tell it.
type vault struct {
	next http.RoundTripper
	mu   sync.Mutex
	fail func(*http.Request) (*http.Response, error) // nil: not at all
}

func (v *vault) RoundTrip(r *http.Request) (*http.Response, error) {
	v.mu.Lock()
	fail := v.fail
	v.mu.Unlock()
	if got := r.Header.Get("Authorization"); got != "Bearer "+secret {
		return nil, errors.New("the request came without its token")
	}
	if fail != nil {
		return fail(r)
	}
	return v.next.RoundTrip(r)
}

func (v *vault) set(fail func(*http.Request) (*http.Response, error)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fail = fail
}

// dialBroker is a nats.CustomDialer, so that the connection has a URL and with it a password.
type dialBroker struct{ *reconcilertest.World }

func (d dialBroker) Dial(string, string) (net.Conn, error) { return d.InProcessConn() }

// R36: credentials of the API and of NATS do not get into logs, events and objects, whatever fails.
func TestSecretsStaySecret(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		refused := errors.New("connection refused")
		v := &vault{}
		var logs lines
		s.StopBroker()
		nc, err := nats.Connect("nats://"+secret+":"+secret+"@broker.test:4222", nats.SetCustomDialer(dialBroker{s.World}), nats.SkipHostLookup(),
			nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.ReconnectWait(100*time.Millisecond))
		require.NoError(t, err)
		defer nc.Close()
		api := "http://" + secret + ":" + secret + "@api.test"
		own, err := apiclient.New[job, done](apiclient.Config{URL: api, HTTP: &http.Client{Transport: v}, Token: apiclient.StaticToken(secret)}, "jobs")
		require.NoError(t, err)
		a := s.StartWith("a", func(cfg *reconciler.Config) {
			v.next = cfg.HTTP.Transport
			cfg.NATS, cfg.API, cfg.HTTP, cfg.Resync = nc, api, &http.Client{Transport: v}, 5*time.Second
			cfg.Token = apiclient.StaticToken(secret)
			logs.sink(cfg)
		}, reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if _, err := own.Get(ctx, o.Name); err != nil {
				return reconciler.Result{}, err
			}
			return work(ctx, o)
		}))
		s.Advance(5 * time.Second)
		s.StartBroker()
		s.Advance(5 * time.Second)
		for i, fail := range []func(r *http.Request) (*http.Response, error){
			func(r *http.Request) (*http.Response, error) { return nil, refused },
			func(r *http.Request) (*http.Response, error) {
				return nil, &url.Error{Op: r.Method, URL: r.URL.String(), Err: refused}
			},
			func(*http.Request) (*http.Response, error) {
				return nil, fmt.Errorf("fetch a token: %w", &url.Error{Op: "Post", URL: "https://idp.test?client_secret=" + secret, Err: refused})
			},
			func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusFound, Header: http.Header{"Location": {r.URL.String()}}, Body: http.NoBody, Request: r}, nil
			},
			func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusUnauthorized, Header: r.Header, Body: http.NoBody, Request: r}, nil
			},
		} {
			s.put("x", job{Millis: 1500, Value: i})
			s.Advance(time.Second) // it fails at its end
			v.set(fail)
			s.put("y", job{Millis: 100, Value: i}) // it fails at its beginning
			s.Advance(20 * time.Second)
			v.set(func(r *http.Request) (*http.Response, error) {
				if r.URL.Path == "/v1/objects/jobs/y" && reconciler.Current(r.Context()).Name == "y" {
					return fail(r) // in the function only
				}
				return v.next.RoundTrip(r)
			})
			s.Advance(40 * time.Second)
			require.Contains(t, s.get("y").Reconciliation.LastError, "get jobs/y: ")
			v.set(nil)
			s.RunUntilSettled()
		}
		s.StopBroker()
		s.Advance(20 * time.Second)
		nc.Close()
		require.NoError(t, a.Stop())

		for _, doing := range []string{"connect to NATS", "read", "patch", "resync", "open lock session"} {
			require.Contains(t, logs.text(), `"doing":"`+doing+`"`)
		}
		require.NotContains(t, logs.text(), secret)
		require.NotContains(t, s.Timeline().String(), secret)
		for o, err := range s.jobs.All(t.Context()) {
			require.NoError(t, err)
			record, err := json.Marshal(o)
			require.NoError(t, err)
			require.NotContains(t, string(record), secret)
		}
	})
}
