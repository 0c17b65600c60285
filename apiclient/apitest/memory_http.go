package apitest

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Client returns an HTTP client whose requests, whatever their host, are answered by m, in the caller's goroutine.
func (m *Memory) Client() *http.Client { return &http.Client{Transport: direct{m}} }

type direct struct{ handler http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	own := r.Clone(r.Context()) // a server's request has a body, and its mux writes into it
	if own.Body == nil {
		own.Body = http.NoBody
	}
	rec := httptest.NewRecorder()
	d.handler.ServeHTTP(rec, own)
	resp := rec.Result()
	resp.Request = r
	return resp, nil
}

// ServeHTTP answers one request of the wire.
func (m *Memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p := r.URL.Path; p == "" || path.Clean(p) != p {
		write(w, 0, nil, unknownPath(r)) // the mux would answer with a redirect in HTML
		return
	}
	m.mux.ServeHTTP(w, r)
}

// answer is a handler whose status, body and error are written by [write].
type answer func(r *http.Request) (status int, body any, err error)

func (m *Memory) routes() *http.ServeMux {
	const kind, object = "/v1/objects/{kind}", "/v1/objects/{kind}/{name}"
	mux := http.NewServeMux()
	for pattern, methods := range map[string]map[string]answer{
		kind:               {"POST": m.serveCreate, "GET": m.serveList},
		object:             {"GET": m.serveGet, "PUT": m.servePut, "DELETE": m.serveDelete},
		object + "/status": {"PATCH": m.servePatch},
		object + "/retry":  {"POST": m.serveRetry},
		object + "/pause":  {"POST": m.servePaused(true)},
		object + "/resume": {"POST": m.servePaused(false)},
	} {
		for method, a := range methods {
			mux.HandleFunc(method+" "+pattern, func(w http.ResponseWriter, r *http.Request) {
				status, body, err := a(r)
				write(w, status, body, err)
			})
		}
		allow := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allow)
			write(w, 0, nil, &apiclient.Problem{
				Title: "Method Not Allowed", Status: http.StatusMethodNotAllowed,
				Detail: r.Method + " " + r.URL.Path + ": want " + allow,
			})
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { write(w, 0, nil, unknownPath(r)) })
	return mux
}

func (m *Memory) serveCreate(r *http.Request) (int, any, error) {
	var body struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
		Spec   json.RawMessage   `json:"spec"`
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	k := key{r.PathValue("kind"), body.Name}
	if err := checkKey(k, "body.name"); err != nil {
		return 0, nil, err
	}
	if err := checkDocument("body.spec", body.Spec); err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o, err := m.create(k, body.Labels, body.Spec)
	return http.StatusCreated, o, err
}

func (m *Memory) servePut(r *http.Request) (int, any, error) {
	var body struct {
		Labels map[string]string `json:"labels"`
		Spec   json.RawMessage   `json:"spec"`
	}
	k, err := pathKey(r)
	if err != nil {
		return 0, nil, err
	}
	ifMatch, err := ifMatch(r)
	if err != nil {
		return 0, nil, err
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	if err := checkDocument("body.spec", body.Spec); err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	row, err := m.find(k)
	if err != nil {
		if ifMatch != 0 {
			return 0, nil, conflict(k, "it is not there")
		}
		o, err := m.create(k, body.Labels, body.Spec)
		return http.StatusCreated, o, err
	}
	if ifMatch != 0 && ifMatch != row.object.Revision {
		return 0, nil, otherRevision(k, row.object.Revision, ifMatch)
	}
	o, err := m.replace(row, body.Labels, body.Spec)
	return http.StatusOK, o, err
}

func (m *Memory) serveGet(r *http.Request) (int, any, error) {
	return m.withRow(r, func(r *row) (int, any, error) { return http.StatusOK, r.object, nil })
}

func (m *Memory) serveDelete(r *http.Request) (int, any, error) {
	return m.withRow(r, func(r *row) (int, any, error) {
		o, gone := m.remove(r)
		if gone {
			return http.StatusNoContent, nil, nil
		}
		return http.StatusAccepted, o, nil
	})
}

func (m *Memory) servePatch(r *http.Request) (int, any, error) {
	var body struct {
		apiclient.StatusPatch
		Fence *uint64 `json:"fence"` // shadows the patch's: an absent fence is not fence 0
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	if body.UID == "" {
		return 0, nil, invalid("body.uid", "want the uid of the object that was read")
	}
	if body.Fence == nil || *body.Fence > math.MaxInt64 {
		return 0, nil, invalid("body.fence", "want the fencing token of the lock")
	}
	if len(body.Status) > 0 {
		if err := checkDocument("body.status", body.Status); err != nil {
			return 0, nil, err
		}
	}
	if slices.Contains(body.AddFinalizers, "") {
		return 0, nil, invalid("body.addFinalizers", "a name is empty")
	}
	patch := body.StatusPatch
	patch.Fence = *body.Fence
	return m.withRow(r, func(r *row) (int, any, error) {
		o, gone, err := m.patch(r, patch)
		if gone {
			return http.StatusNoContent, nil, nil
		}
		return http.StatusOK, o, err
	})
}

func (m *Memory) serveRetry(r *http.Request) (int, any, error) {
	return m.withRow(r, func(r *row) (int, any, error) { return http.StatusAccepted, m.retry(r), nil })
}

func (m *Memory) servePaused(pause bool) answer {
	return func(r *http.Request) (int, any, error) {
		return m.withRow(r, func(r *row) (int, any, error) { return http.StatusOK, m.setPaused(r, pause), nil })
	}
}

// withRow runs do, holding mu, on the row that the path names.
func (m *Memory) withRow(r *http.Request, do func(*row) (int, any, error)) (int, any, error) {
	k, err := pathKey(r)
	if err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	row, err := m.find(k)
	if err != nil {
		return 0, nil, err
	}
	return do(row)
}
