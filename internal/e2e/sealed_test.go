package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// sealing is the way to an API that has lost the key of one object.
type sealing struct {
	next http.RoundTripper
	name string
}

func (s sealing) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(req)
	if err != nil || req.Method != http.MethodGet || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	data, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	var page struct {
		Items []map[string]any `json:"items"`
		Next  string           `json:"next,omitempty"`
	}
	switch {
	case strings.HasSuffix(req.URL.Path, "/"+s.name):
		resp.StatusCode = http.StatusInternalServerError
		resp.Header.Set("Content-Type", "application/problem+json")
		data = []byte(`{"type":"/problems/sealed","status":500,"detail":"jobs/` + s.name + `: a key is missing"}`)
	case json.Unmarshal(data, &page) == nil && page.Items != nil:
		for _, item := range page.Items {
			if item["name"] == s.name {
				item["spec"], item["sealed"] = nil, "a key is missing"
			}
		}
		data, _ = json.Marshal(page)
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	return resp, err
}

// P4, P6: an object whose key the API has lost keeps no other from being found by resync, and closes no gate.
func TestSealedObjectDelaysNoOther(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.put("a", job{Value: 1})
		s.put("b", job{Value: 1})
		s.Advance(time.Minute)
		s.StopBroker()
		s.StartBroker() // and it has forgotten what is to be done
		s.StartWith("r", func(cfg *reconciler.Config) { cfg.HTTP.Transport = sealing{cfg.HTTP.Transport, "a"} }, reconciler.For("jobs", work))
		s.Advance(2 * time.Minute)
		require.Equal(t, 1, s.get("b").Status.Value)
		require.Empty(t, s.runs("a"))
		troubles := 0
		for _, e := range s.Timeline().Only(reconciler.StepTrouble) {
			require.ErrorIs(t, e.Err, apiclient.ErrSealed)
			troubles++
		}
		require.Positive(t, troubles, "it is said")
		s.put("c", job{Value: 1})
		s.Advance(time.Second)
		require.Equal(t, 1, s.get("c").Status.Value)
	})
}
