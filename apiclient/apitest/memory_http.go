package apitest

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// Client returns an HTTP client whose requests, whatever their host, are answered by m, in the caller's goroutine.
func (m *Memory) Client() *http.Client { return &http.Client{Transport: direct{m}} }

type direct struct{ memory *Memory }

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
	rec := &recorder{ResponseRecorder: httptest.NewRecorder()}
	d.memory.ServeHTTP(rec, own)
	return rec.result(r), nil
}

// ServeHTTP answers one request of the wire.
func (m *Memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p := r.URL.Path; path.Clean(p) != p {
		refuse(w, objects.UnknownPath(p)) // the mux would answer with a redirect in HTML
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
		object:             {"GET": m.serveGet, "PUT": m.servePut, "PATCH": m.serveMerge, "DELETE": m.on(http.StatusAccepted, objects.RequestDeletion)},
		"/v1/batch":        {"POST": m.serveBatch},
		"/v1/self":         {"GET": m.serveSelf},
		"/v1/watch/{kind}": {"GET": m.serveWatch},
		object + "/events": {"GET": m.serveEvents},
		object + "/status": {"PATCH": m.servePatch},
		object + "/retry":  {"POST": m.on(http.StatusAccepted, objects.RequestRetry)},
		object + "/pause":  {"POST": m.on(http.StatusOK, objects.SetPaused(true))},
		object + "/resume": {"POST": m.on(http.StatusOK, objects.SetPaused(false))},
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
			refuse(w, objects.WrongMethod(r.Method, r.URL.Path, allow))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { refuse(w, objects.UnknownPath(r.URL.Path)) })
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
	k := objects.Key{Kind: r.PathValue("kind"), Name: body.Name}
	if err := objects.CheckKey(k, "body.name"); err != nil {
		return 0, nil, err
	}
	wanted := objects.Wanted{Labels: body.Labels, Spec: body.Spec}
	if err := wanted.Check(); err != nil {
		return 0, nil, err
	}
	key := r.Header.Get("Idempotency-Key")
	if err := objects.CheckRequestKey(key); err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o, err := m.createUnder(key, k, wanted)
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
	ifMatch, err := objects.ParseIfMatch(r.Header.Get("If-Match"))
	if err != nil {
		return 0, nil, err
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	wanted := objects.Wanted{IfMatch: ifMatch, Labels: body.Labels, Spec: body.Spec}
	if err := wanted.Check(); err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	row, err := m.find(k)
	if err != nil {
		if ifMatch != 0 {
			return 0, nil, objects.NotThere(k)
		}
		o, err := m.create(k, wanted)
		return http.StatusCreated, o, err
	}
	o, _, err := m.apply(row, objects.Replace(wanted))
	return http.StatusOK, o, err
}

func (m *Memory) serveMerge(r *http.Request) (int, any, error) {
	var body struct {
		Labels json.RawMessage `json:"labels"`
		Spec   json.RawMessage `json:"spec"`
	}
	ifMatch, err := objects.ParseIfMatch(r.Header.Get("If-Match"))
	if err != nil {
		return 0, nil, err
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	patch := objects.Patch{IfMatch: ifMatch, Labels: body.Labels, Spec: body.Spec}
	if err := objects.CheckMerge(patch); err != nil {
		return 0, nil, err
	}
	return m.on(http.StatusOK, objects.Merge(patch))(r)
}

func (m *Memory) serveGet(r *http.Request) (int, any, error) {
	return m.withRow(r, func(r *row) (int, any, error) { return http.StatusOK, r.object, nil })
}

func (m *Memory) servePatch(r *http.Request) (int, any, error) {
	var body struct {
		apiclient.StatusPatch
		Fence *uint64 `json:"fence"` // shadows the patch's: an absent fence is not fence 0
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	patch := body.StatusPatch
	if body.Fence == nil {
		return 0, nil, objects.Invalid("body.fence", "want the fencing token of the lock")
	}
	patch.Fence = *body.Fence
	if err := objects.CheckPatch(&patch); err != nil {
		return 0, nil, err
	}
	return m.on(http.StatusOK, objects.PatchStatus(patch))(r)
}

// on makes the handler that applies a rule to the object of the path.
func (m *Memory) on(status int, rule objects.Rule) answer {
	return func(r *http.Request) (int, any, error) {
		return m.withRow(r, func(r *row) (int, any, error) {
			o, gone, err := m.apply(r, rule)
			if gone {
				return http.StatusNoContent, nil, nil
			}
			return status, o, err
		})
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

func pathKey(r *http.Request) (objects.Key, error) {
	k := objects.Key{Kind: r.PathValue("kind"), Name: r.PathValue("name")}
	return k, objects.CheckKey(k, "path.name")
}

// write sends a handler's answer.
func write(w http.ResponseWriter, status int, body any, err error) {
	if err != nil {
		refuse(w, err)
		return
	}
	if stream, ok := body.(*watch); ok {
		if rec, ok := w.(*recorder); ok {
			rec.watch = stream
			return
		}
		stream.stream(w)
		return
	}
	if status == http.StatusNoContent {
		w.WriteHeader(status)
		return
	}
	writeJSON(w, status, "application/json", body)
}

// refuse sends an error, which is always a problem.
func refuse(w http.ResponseWriter, err error) {
	p := new(apiclient.Problem)
	errors.As(err, &p)
	writeJSON(w, p.Status, "application/problem+json", p)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, body any) {
	data, _ := json.Marshal(body) // what is stored is valid JSON
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	w.Write(data)
}
