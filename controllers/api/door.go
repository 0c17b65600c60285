package api

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// door is the one place where requests are let in or refused. It stands between the mux and every handler: a route can only
// be added through it, and one that has not declared its verb is refused to everybody.
type door struct {
	mux    *http.ServeMux
	routes map[string]route // by pattern; written before the first request only

	access     Access
	tokens     *Tokens
	audit      auditLog
	principals *limits[string]
	failures   *limits[netip.Prefix]
	familiar   familiar[[32]byte] // SHA-256 of what was sent
	now        func() time.Time
	failed     func(ctx context.Context, doing string, err error) error
	observe    func(operation string, since time.Time)
}

// route is what the door knows of an operation.
type route struct {
	operation string
	verb      access.Verb
}

// newDoor makes the door of an API.
func newDoor(a *API, cfg Access) *door {
	return &door{
		mux: http.NewServeMux(), routes: map[string]route{}, access: cfg, tokens: a.tokens, audit: auditLog{to: cfg.Audit, log: a.log},
		principals: newLimits[string](cfg.Rate, cfg.Burst), failures: newLimits[netip.Prefix](failuresPerSecond, failuresAtOnce),
		familiar: familiar[[32]byte]{keys: recent[[32]byte, struct{}]{limit: maxCallers}}, now: time.Now, failed: a.failed, observe: a.metrics.observe,
	}
}

// declare says what an operation is, before or after its handler is added.
func (d *door) declare(method, path, operation string, verb access.Verb) {
	d.routes[method+" "+path] = route{operation: operation, verb: verb}
}

// HandleFunc adds a handler behind the door. huma adds its operations with it, and the description of the API, which is no
// secret: it is in the source.
func (d *door) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	if strings.HasPrefix(pattern, "GET /openapi") {
		d.open(pattern, handler)
		return
	}
	if _, known := d.routes[pattern]; !known {
		d.routes[pattern] = route{}
	}
	d.mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) { d.serve(w, req, d.routes[pattern], handler) })
}

// open adds a handler that anybody may ask: it must say nothing of what is stored.
func (d *door) open(pattern string, handler http.HandlerFunc) { d.mux.HandleFunc(pattern, handler) }

// ServeHTTP serves what has been added.
func (d *door) ServeHTTP(w http.ResponseWriter, req *http.Request) { d.mux.ServeHTTP(w, req) }

// undeclared lists the patterns that have no verb.
func (d *door) undeclared() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(d.routes)), func(pattern string) bool { return d.routes[pattern].verb != "" })
}

func (d *door) serve(w http.ResponseWriter, req *http.Request, r route, next http.HandlerFunc) {
	defer d.observe(r.operation, time.Now())
	kind := req.PathValue("kind")
	who, err := d.admit(req, r, kind)
	v := &visit{who: who, again: func() error { return d.again(req, r, kind) }, entry: entry{
		Time: d.now().UTC(), Principal: who.name, ID: who.id, Role: who.grant.Role,
		Remote: req.RemoteAddr, Method: req.Method, Operation: r.operation,
	}}
	if subject.CheckKind(kind) == nil { // only what can be a kind: anything else is as long as a request may be
		v.entry.Kind = kind
	}
	ctx := context.WithValue(req.Context(), visitKey{}, v)
	setName(ctx, cmp.Or(req.PathValue("name"), req.PathValue("id")))
	if err == nil && r.verb == access.Read {
		next(w, req.WithContext(ctx))
		return
	}
	recorder := &audited{ResponseWriter: w, log: &d.audit, visit: v}
	defer recorder.end(0) // a panic
	if err != nil {
		d.refuse(ctx, recorder, err)
		return
	}
	next(recorder, req.WithContext(ctx))
	recorder.end(http.StatusOK)
}

// admit returns who asks, as far as that is known, and an error unless the request is allowed. It knows nothing of what is
// stored, so a refusal says nothing of it either.
func (d *door) admit(req *http.Request, r route, kind string) (principal, error) {
	who, err := d.authenticate(req)
	if err != nil {
		return who, err
	}
	if wait := d.principals.take(who.id, d.now()); wait > 0 {
		return who, tooMany{wait, "too many requests came from this principal"}
	}
	return who, who.may(r.verb, kind)
}

// again is admit for a request that has been admitted. It counts for no limit of its own.
func (d *door) again(req *http.Request, r route, kind string) error {
	who, err := d.authenticate(req)
	if err != nil {
		return err
	}
	return who.may(r.verb, kind)
}

func (d *door) refuse(ctx context.Context, w http.ResponseWriter, err error) {
	var many tooMany
	var p problem
	switch {
	case errors.As(err, &many):
		p = problem{Problem: objects.NewProblem(http.StatusTooManyRequests, apiclient.TypeRateLimited, many.why), retryAfter: many.seconds()}
	case !errors.As(d.failed(ctx, "look up who asks", err), &p):
		p = problem{Problem: objects.NewProblem(http.StatusInternalServerError, "", "")} // failed makes nothing but problems
	}
	maps.Copy(w.Header(), p.GetHeaders())
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="evenkeel"`)
	}
	setProblem(ctx, p.Type)
	refuse(w, p.Problem)
}
