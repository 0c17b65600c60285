package api

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/evenkeel-io/evenkeel/controllers/access"
)

// metrics are what an API tells of itself, at /metrics.
type metrics struct {
	registry *prometheus.Registry
	took     *prometheus.HistogramVec
	failures prometheus.Counter
}

func newMetrics(r *relay, f *feed) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "evenkeel_request_duration_seconds", Help: "How long requests took, by operation; watches are not among them.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15), // up to 8 s; clients wait for 10
		}, []string{"operation"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "evenkeel_failures_total", Help: "Requests that failed because the store did, or was too busy.",
		}),
	}
	m.registry.MustRegister(m.took, m.failures,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "evenkeel_relay_lag_seconds", Help: "For how long not every change could be notified to controllers.",
		}, func() float64 { return r.lag().Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "evenkeel_watches", Help: "Watches that have come up to the present.",
		}, func() float64 { return float64(f.count()) }),
	)
	return m
}

// observe notes how long a request took.
func (m *metrics) observe(operation string, since time.Time) {
	if operation != watchOperation {
		m.took.WithLabelValues(operation).Observe(time.Since(since).Seconds())
	}
}

// registerMetrics serves them to whoever may read every kind.
func (a *API) registerMetrics(r *router) {
	const path = "/metrics"
	r.methods[path] = []string{http.MethodGet}
	r.door.declare(http.MethodGet, path, "metrics", access.Read)
	r.door.HandleFunc("GET "+path, promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP)
}
