package api

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMetricsSayWhatIsGoingOn: the lag of the relay among it, while the broker is down.
func TestMetricsSayWhatIsGoingOn(t *testing.T) {
	e := &ear{fail: down}
	a := open(t, newStore(t), e.notify)
	a.relay.poll = 20 * time.Millisecond
	running(t, a)
	srv := httptest.NewServer(a.Handler())
	t.Cleanup(srv.Close)
	_, err := widgets(t, a).Create(t.Context(), "blue", doc{})
	require.NoError(t, err)
	lagging := func() bool { return a.relay.lag() > 100*time.Millisecond }
	require.Eventually(t, lagging, time.Minute, time.Millisecond)
	text := string(fetch(t, srv, "/metrics"))
	require.Regexp(t, `evenkeel_relay_lag_seconds 0\.[1-9]|evenkeel_relay_lag_seconds [1-9]`, text)
	require.Contains(t, text, `evenkeel_request_duration_seconds_count{operation="create"} 1`)
	require.Contains(t, text, "evenkeel_watches 0")
	e.setFail(nil)
	require.Eventually(t, func() bool { return a.relay.lag() < 50*time.Millisecond }, time.Minute, time.Millisecond)

	require.NoError(t, a.store.write.Close())
	_, err = widgets(t, a).Create(t.Context(), "red", doc{})
	require.Error(t, err)
	resp := httptest.NewRecorder()
	a.Handler().ServeHTTP(resp, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	require.Contains(t, resp.Body.String(), "evenkeel_failures_total 1")
}
