package reconcilertest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// access is a request that the API has served, in its order and by the clock of the World.
type access struct {
	at      time.Time
	replica string // empty for the test's own clients
	method  string
	// object is the kind and name, "widgets/blue"; empty for a batch, which may write several.
	object     string
	uid        string
	generation int64 // as the answer shows it
	// Of a status patch:
	status bool
	fence  uint64
	body   string
}

// write reports whether it changed the object on behalf of a user.
func (a access) write() bool { return a.replica == "" && a.method != http.MethodGet }

// access serves a request of a replica, or of the test itself, and records it if the API did what it asked for.
func (w *World) access(replica string, req *http.Request) (*http.Response, error) {
	a := access{replica: replica, method: req.Method, status: strings.HasSuffix(req.URL.Path, "/status")}
	if a.status {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		var patch apiclient.StatusPatch
		if err := json.Unmarshal(body, &patch); err != nil {
			return nil, err
		}
		a.fence, a.uid, a.body = patch.Fence, patch.UID, string(body)
		a.object = strings.TrimSuffix(strings.TrimPrefix(req.URL.Path, "/v1/objects/"), "/status")
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	w.serving.Lock() // so that the order is known
	defer w.serving.Unlock()
	resp, err := w.memory.Client().Transport.RoundTrip(req)
	if err != nil || resp.StatusCode >= http.StatusMultipleChoices || req.Method == http.MethodGet && !oneObject(req.URL.Path) {
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	var o struct {
		Kind       string
		Name       string
		UID        string
		Generation int64
	}
	if json.Unmarshal(body, &o) == nil && o.Name != "" {
		a.object, a.uid, a.generation = o.Kind+"/"+o.Name, o.UID, o.Generation
	}
	a.at = time.Now()
	w.accesses = append(w.accesses, a)
	return resp, nil
}

// oneObject reports whether a GET of a path reads one object: /v1/objects/{kind}/{name}.
func oneObject(path string) bool {
	return strings.HasPrefix(path, "/v1/objects/") && strings.Count(path, "/") == 4
}
