package workload

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// hand is a controller whose functions the test calls itself, with an API in memory.
type hand struct {
	t *testing.T
	*Controller
	told   []string    // kind/name: reason
	cut    atomic.Bool // the API does not answer
	writes int         // to the API
}

func byHand(t *testing.T) *hand {
	t.Helper()
	h := &hand{t: t}
	memory := apitest.NewMemory(func(context.Context, string, string, string) error { return nil })
	cfg := apiclient.Config{URL: "http://api.test", Tries: 1, HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet {
			h.writes++
		}
		if h.cut.Load() {
			return nil, errCut
		}
		return memory.Client().Transport.RoundTrip(r)
	})}}
	var err error
	h.Controller, err = New(Config{API: cfg, Editor: &cfg})
	require.NoError(t, err)
	h.notify = func(_ context.Context, kind, name, reason string) error {
		h.told = append(h.told, kind+"/"+name+": "+reason)
		return nil
	}
	close(h.bound)
	t.Cleanup(func() { h.disconnect(func(string) bool { return true }) })
	return h
}

// heard is what others were told since the last time, and would be in a moment.
func (h *hand) heard() (told []string) {
	told, h.told = h.told, nil
	for o, reason := range h.telling.pending {
		told = append(told, o.kind+"/"+o.name+": "+reason)
	}
	clear(h.telling.pending)
	slices.Sort(told)
	return told
}

// somewhere is a way to a cluster at which nothing is.
var somewhere = RuntimeSpec{Endpoint: "https://192.0.2.1", Token: "x"}

// leads has a runtime lead to a cluster.
func (h *hand) leads(name string, c *cluster) *Runtime {
	h.t.Helper()
	r, err := h.runtimes.Put(h.t.Context(), name, somewhere)
	require.NoError(h.t, err)
	_, c.version, err = connection(&r.Spec, "")
	require.NoError(h.t, err)
	h.clusters[name] = c
	return r
}

// keeps has the API keep a status and a record of an object.
func keeps[S, T any](h *hand, c *apiclient.Client[S, T], o *apiclient.Object[S, T]) *apiclient.Object[S, T] {
	h.t.Helper()
	status, err := json.Marshal(o.Status)
	require.NoError(h.t, err)
	now, err := c.PatchStatus(h.t.Context(), o.Name, apiclient.StatusPatch{UID: o.UID, Fence: 1, Status: status, Reconciliation: &o.Reconciliation})
	require.NoError(h.t, err)
	return now
}

// instance declares one of a definition, ready with a status.
func (h *hand) instance(name, definition string, status InstanceStatus) *Instance {
	h.t.Helper()
	in, err := h.instances.Put(h.t.Context(), name, InstanceSpec{Definition: definition, Runtime: "main"})
	require.NoError(h.t, err)
	in.Status = status
	in.Reconciliation = apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: in.Generation}
	return keeps(h, h.instances, in)
}

// far is a cluster that says its version and its uid, or nothing.
type far struct {
	version, uid string
	cut          error
}

func (f *far) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.cut != nil {
		return nil, f.cut
	}
	answer := `{"gitVersion":"` + f.version + `"}`
	if r.URL.Path != "/version" {
		answer = `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kube-system","uid":"` + f.uid + `"}}`
	}
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(strings.NewReader(answer)), Request: r}, nil
}

func (f *far) connect(t *testing.T) *cluster {
	t.Helper()
	c, err := connect(&rest.Config{Host: somewhere.Endpoint, Transport: f, QPS: -1}, "", func(string, string) {})
	require.NoError(t, err)
	return c
}

// next is how long an object is left alone.
func next[S, T any](o reconcilertest.Outcome[S, T]) time.Duration {
	if o.Object.Reconciliation.NextAttempt == nil {
		return 0
	}
	return time.Until(*o.Object.Reconciliation.NextAttempt)
}

// requireAbout allows for what is added to pauses, so that not all come at once.
func requireAbout(t *testing.T, want, got time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, got, want-time.Second) // the record is in whole seconds
	require.LessOrEqual(t, got, want+want/4+time.Second)
}

var errOnce = errors.New("something happened")
