package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/controllers/internal/viewer"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// routes serves the wire, its description at /openapi.json and /openapi.yaml, and a page that shows it at /docs.
func (a *API) routes() http.Handler {
	cfg := huma.DefaultConfig("Evenkeel", "1")
	cfg.DocsPath = ""     // its page loads scripts from elsewhere
	cfg.SchemasPath = ""  // the schemas are in the description
	cfg.CreateHooks = nil // they add a $schema to every object
	cfg.Transformers = []huma.Transformer{fromHuma}
	cfg.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"bearer": {Type: "http", Scheme: "bearer"}}
	r := &router{door: a.door, api: humago.New(a.door, cfg), methods: map[string][]string{}}
	a.register(r)
	a.registerBatch(r)
	a.registerKinds(r)
	a.registerWatch(r)
	a.registerTokens(r)
	a.registerSelf(r)
	a.registerMetrics(r)
	describe(r.api.OpenAPI())
	for _, p := range viewer.Paths { // it says nothing of what is stored, and asks with what its user gives it
		a.door.open("GET "+p, viewer.Page)
		r.methods[p] = []string{"GET"}
	}
	r.refuseOthers()
	return a.guard(a.door)
}

// router registers operations and remembers which methods each path has.
type router struct {
	door    *door
	api     huma.API
	methods map[string][]string
}

// operation describes an operation to huma, and says to the door what it does.
func (r *router) operation(verb access.Verb, id, method, path string, status int, summary string) huma.Operation {
	r.methods[path] = append(r.methods[path], method)
	r.door.declare(method, path, id, verb)
	return huma.Operation{
		OperationID: id, Method: method, Path: path, DefaultStatus: status, Summary: summary, Tags: []string{strings.Split(path, "/")[2]}, Security: []map[string][]string{{"bearer": {}}},
		MaxBodyBytes: objects.MaxBody + 1, // huma refuses a body of exactly that many
	}
}

// refuseOthers answers other methods and other paths with problems; the mux would say so in plain text.
func (r *router) refuseOthers() {
	for pattern, methods := range r.methods {
		allow := strings.Join(slices.Sorted(slices.Values(methods)), ", ")
		r.door.open(pattern, func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Allow", allow)
			refuse(w, objects.WrongMethod(req.Method, req.URL.Path, allow))
		})
	}
	r.door.open("/", func(w http.ResponseWriter, req *http.Request) {
		refuse(w, objects.UnknownPath(req.URL.Path))
	})
}

func refuse(w http.ResponseWriter, p *apiclient.Problem) {
	w.Header().Set("Content-Type", problem{Problem: p}.ContentType(""))
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // an error means that the client has gone
}

// guard answers paths that the mux would redirect, in HTML, and logs a panic. What panicked is cut off without an answer:
// the client takes that for "unavailable", and nobody for success.
func (a *API) guard(mux http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				a.log.Error(fmt.Errorf("panic: %v", v), "request failed", "method", req.Method, "path", req.URL.Path, "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler)
		}()
		if p := req.URL.Path; p == "" || path.Clean(p) != p {
			refuse(w, objects.UnknownPath(req.URL.Path))
			return
		}
		mux.ServeHTTP(w, req)
	})
}
