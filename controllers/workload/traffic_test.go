package workload_test

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// traffic counts requests and the bytes of their bodies. It is safe for concurrent use.
type traffic struct {
	next http.RoundTripper

	mu sync.Mutex
	counts
}

type counts struct {
	requests map[string]int // by method and kind
	sent     int64
	received int64
}

func newTraffic(next http.RoundTripper) *traffic {
	return &traffic{next: next, counts: counts{requests: map[string]int{}}}
}

// RoundTrip counts a request.
func (t *traffic) RoundTrip(r *http.Request) (*http.Response, error) {
	what := r.Method + " " + r.URL.Path
	if kind, ok := strings.CutPrefix(r.URL.Path, "/v1/objects/"); ok { // of the Evenkeel API
		kind, rest, _ := strings.Cut(kind, "/")
		what = r.Method + " " + kind
		if rest == "" && r.Method == http.MethodGet {
			what = "LIST " + kind
		}
		if strings.HasSuffix(rest, "/status") {
			what += " status"
		}
	}
	t.mu.Lock()
	t.requests[what]++
	t.sent += max(0, r.ContentLength)
	t.mu.Unlock()
	resp, err := t.next.RoundTrip(r)
	if err == nil {
		resp.Body = &countedBody{resp.Body, t}
	}
	return resp, err
}

type countedBody struct {
	io.ReadCloser
	of *traffic
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.of.mu.Lock()
	b.of.received += int64(n)
	b.of.mu.Unlock()
	return n, err
}

// take returns what was counted since it was called last.
func (t *traffic) take() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.counts
	t.counts = counts{requests: map[string]int{}}
	return taken
}

// all is how many requests there were.
func (c counts) all() (n int) {
	for of := range maps.Values(c.requests) {
		n += of
	}
	return n
}

// countedCluster is a runtime for the test binary's cluster, over a proxy that counts the requests.
func countedCluster(tb testing.TB) (workload.RuntimeSpec, *traffic) {
	tb.Helper()
	cfg := kubetest.Start(tb).Config()
	to, err := url.Parse(cfg.Host)
	require.NoError(tb, err)
	admin, err := rest.TransportFor(cfg)
	require.NoError(tb, err)
	counted := newTraffic(admin)
	srv := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Del("Authorization")
		},
		Transport: counted, FlushInterval: -1, // watches are streams
	})
	srv.EnableHTTP2 = true
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	srv.StartTLS()
	tb.Cleanup(func() {
		srv.CloseClientConnections() // the watches
		srv.Close()
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	return workload.RuntimeSpec{Endpoint: srv.URL, CA: string(ca), Token: "the proxy has another", QPS: 10_000, Burst: 10_000}, counted
}

// watched is an installation of one replica whose reconciles and requests are counted.
type watched struct {
	*installation
	cluster, api *traffic
	turns        chan turn // those of instances
}

// turn is one at an instance.
type turn struct {
	began time.Time
	took  time.Duration // of the function
}

func installWatched(tb testing.TB) *watched {
	tb.Helper()
	spec, cluster := countedCluster(tb)
	plain, ok := http.DefaultTransport.(*http.Transport)
	require.True(tb, ok)
	w := &watched{
		installation: install(tb, 0), cluster: cluster, api: newTraffic(plain.Clone()),
		turns: make(chan turn, 1000),
	}
	w.requests = &http.Client{Transport: w.api}
	var now turn // there is one instance, so there is one turn at a time
	w.observe = func(e reconciler.Event) {
		switch {
		case e.Kind != workload.Instances:
		case e.Step == reconciler.StepLocked:
			now = turn{began: e.Time}
		case e.Step == reconciler.StepFinished:
			now.took = e.Duration
		case e.Step == reconciler.StepReleased:
			w.turns <- now
		}
	}
	w.start("a")
	_, err := w.runtimes.Put(tb.Context(), "main", spec)
	require.NoError(tb, err)
	return w
}

// look has the instance reconciled, and returns how long the function took.
func (w *watched) look(name string) time.Duration {
	w.Helper()
	began := time.Now()
	require.NoError(w, w.notify(w.Context(), workload.Instances, name, "look"))
	for {
		select {
		case t := <-w.turns:
			if t.began.After(began) {
				return t.took
			}
		case <-time.After(patience):
			w.Fatalf("instance %s is not reconciled", name)
		}
	}
}

// settle waits until the instance is ready, all that asks for its reconcile has done so, and a look at it asks the cluster
// nothing: the watches have caught up.
func (w *watched) settle(name string) {
	w.Helper()
	w.ready(name)
	_, err := w.runtimes.WaitFor(w.Context(), "main", (*workload.Runtime).Ready)
	require.NoError(w, err)
	asked, err := w.definitions.Retry(w.Context(), name) // it may have looked just before it was stored that the instance is ready
	require.NoError(w, err)
	_, err = w.definitions.WaitFor(w.Context(), name, func(d *workload.Definition) bool {
		return d.Ready() && d.Reconciliation.HandledRetry == asked.RetryRequest
	})
	require.NoError(w, err)
	for until := time.Now().Add(patience); ; {
		w.cluster.take()
		w.look(name)
		if w.cluster.take().all() == 0 {
			break
		}
		require.True(w, time.Now().Before(until), "instance %s does not come to rest", name)
	}
	w.api.take()
}

// A reconcile of an instance that is as it should be asks the cluster nothing, and the API what it has to: the instance, its
// runtime and its definition, and to store when it is looked at again.
func TestNothingToDoIsCheap(t *testing.T) {
	w := installWatched(t)
	namespace := kubetest.Start(t).Namespace(t) // its own would change once more when it is labelled
	w.define("plain", strings.ReplaceAll(plain, "${name}", "plain"), func(s *workload.InstanceSpec) { s.Namespace = namespace })
	w.ready("plain")
	first := w.cluster.take()
	t.Logf("to make it: %d requests to the cluster %v", first.all(), first.requests)
	w.settle("plain")
	const turns = 10
	for range turns {
		w.look("plain")
	}
	require.Empty(t, w.cluster.take().requests)
	asked := w.api.take()
	maps.DeleteFunc(asked.requests, func(what string, _ int) bool {
		// The runtime's own reconciles may be among those of runtimes. What lists is the search for missed objects.
		return strings.Contains(what, workload.Runtimes) || strings.HasPrefix(what, "LIST ") || what == "PATCH "+workload.Definitions+" status"
	})
	// The definition is told of the instance a moment after that is ready, and looks once, too.
	require.LessOrEqual(t, asked.requests["GET "+workload.Definitions], turns+1)
	asked.requests["GET "+workload.Definitions] = turns
	require.Equal(t, map[string]int{
		"GET " + workload.Instances: turns, "GET " + workload.Definitions: turns, "PATCH " + workload.Instances + " status": turns,
	}, asked.requests)
}

// BenchmarkNothingToDo is a reconcile of an instance that is as it should be: how long the function takes, and what is asked
// of the cluster and of the API, which gives the whole definition each time.
func BenchmarkNothingToDo(b *testing.B) {
	for _, c := range []struct {
		name       string
		docs, size int
	}{{"3-kB", 3, 1000}, {"3900-kB-in-5", 5, 780_000}, {"3900-kB-in-600", 600, 6500}} {
		b.Run(c.name, func(b *testing.B) {
			w := installWatched(b)
			w.define("many", mapsOf(c.docs, c.size))
			w.settle("many")
			w.cluster.take()
			var took, reads workload.Times
			for b.Loop() {
				took = append(took, w.look("many"))
			}
			asked, of := w.api.take(), float64(len(took))
			for range min(len(took), 20) {
				began := time.Now()
				_, err := w.definitions.Get(b.Context(), "many")
				require.NoError(b, err)
				reads = append(reads, time.Since(began))
			}
			us := func(d time.Duration) float64 { return float64(d.Microseconds()) }
			b.ReportMetric(us(took.Percentile(50)), "p50-us")
			b.ReportMetric(us(took.Percentile(99)), "p99-us")
			b.ReportMetric(us(reads.Percentile(50)), "get-definition-us")
			b.ReportMetric(float64(w.cluster.take().all())/of, "cluster-requests")
			b.ReportMetric(float64(asked.all())/of, "api-requests")
			b.ReportMetric(float64(asked.received)/of, "api-B-received")
			b.ReportMetric(float64(asked.sent)/of, "api-B-sent")
		})
	}
}

// mapsOf are that many ConfigMaps of that size, in bytes.
func mapsOf(n, size int) string {
	var docs strings.Builder
	for d := range n {
		fmt.Fprintf(&docs, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m-%d}\ndata:\n  text: |\n", d)
		for line, end := 0, docs.Len()+size-100; docs.Len() < end; line++ {
			fmt.Fprintf(&docs, "    line %d of document %d says what many lines of manifests say\n", line, d)
		}
	}
	return docs.String()
}
