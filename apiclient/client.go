package apiclient

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/evenkeel-io/evenkeel/internal/random"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// Client reads and writes the objects of one kind. It is safe for concurrent use.
type Client[S, T any] struct {
	caller
	kind    string
	version string // of the kind; empty for the current one
}

// New returns a client of one kind. It fails if the URL or the kind cannot be right; it does not connect.
func New[S, T any](cfg Config, kind string) (*Client[S, T], error) {
	caller, err := newCaller(cfg)
	if err != nil {
		return nil, err
	}
	if err := subject.CheckKind(kind); err != nil {
		return nil, fmt.Errorf("apiclient: %w", err)
	}
	return &Client[S, T]{caller: caller, kind: kind}, nil
}

// At returns a client that reads and writes specs in a version of the kind, also when another one is the current one: S has to
// be of that version. [AsStored] reads each object in the version that it is stored in, which is for Raw, and writes nothing. The
// API refuses a version that the kind does not have with [ErrInvalid], and fails with [ErrConversion] while the hook that
// converts does.
func (c *Client[S, T]) At(version string) *Client[S, T] {
	other := *c
	other.version = version
	return &other
}

type objectBody[S any] struct {
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Spec   S                 `json:"spec"`
}

// Create makes a new object, or fails with [ErrExists]. What it makes, it makes once, however often the request has to be
// sent: each call has an Idempotency-Key of its own.
func (c *Client[S, T]) Create(ctx context.Context, name string, spec S, opts ...Option) (*Object[S, T], error) {
	w := options(opts)
	body := objectBody[S]{Name: name, Labels: w.labels, Spec: spec}
	return c.object(ctx, name, "create", call{method: http.MethodPost, key: random.Text(), body: body, repeatable: true})
}

// Put makes the object or replaces its spec and labels. Putting what is already there changes nothing.
func (c *Client[S, T]) Put(ctx context.Context, name string, spec S, opts ...Option) (*Object[S, T], error) {
	w := options(opts)
	body := objectBody[S]{Labels: w.labels, Spec: spec}
	return c.object(ctx, name, "put", call{method: http.MethodPut, path: "/" + name, ifMatch: w.ifMatch(), body: body, repeatable: w.revision == 0})
}

// Patch changes parts of an object's spec: what the patch gives is set, what it gives as null is removed, everything else
// stays (a merge patch, RFC 7396). With [WithLabels] it sets these labels, too, and leaves others alone. It fails with
// [ErrNotFound] if there is no such object.
func (c *Client[S, T]) Patch(ctx context.Context, name string, spec any, opts ...Option) (*Object[S, T], error) {
	w := options(opts)
	body := struct {
		Labels map[string]string `json:"labels,omitempty"`
		Spec   any               `json:"spec,omitempty"`
	}{w.labels, spec}
	return c.object(ctx, name, "patch", call{method: http.MethodPatch, path: "/" + name, ifMatch: w.ifMatch(), body: body, repeatable: w.revision == 0})
}

// Get reads one object, or fails with [ErrNotFound].
func (c *Client[S, T]) Get(ctx context.Context, name string) (*Object[S, T], error) {
	return c.object(ctx, name, "get", call{method: http.MethodGet, path: "/" + name, repeatable: true})
}

// Delete asks for the object's deletion. It returns nil when the object is gone, and the object while its finalizers
// still have to be removed by their owners. It is not repeated when nobody knows whether it took effect: by then there may
// be another object of that name.
func (c *Client[S, T]) Delete(ctx context.Context, name string) (*Object[S, T], error) {
	return c.object(ctx, name, "delete", call{method: http.MethodDelete, path: "/" + name, mayEnd: true})
}

// PatchStatus makes a controller's write. It fails with [ErrFenced], [ErrConflict] or [ErrNotFound] when the writer is
// out of date, and returns nil without an error when the patch removed the object for good.
func (c *Client[S, T]) PatchStatus(ctx context.Context, name string, p StatusPatch) (*Object[S, T], error) {
	repeatable := p.Revision == 0 && len(p.RemoveFinalizers) == 0 // else a repetition could be refused for what the first did
	return c.object(ctx, name, "patch status of", call{method: http.MethodPatch, path: "/" + name + "/status", body: p, repeatable: repeatable, mayEnd: true})
}

// Retry asks for a reconcile now, also of a stalled object. The answer's RetryRequest is the receipt: the request has been
// served once the object's Reconciliation.HandledRetry equals it, or once a later request has been.
func (c *Client[S, T]) Retry(ctx context.Context, name string) (*Object[S, T], error) {
	return c.object(ctx, name, "retry", call{method: http.MethodPost, path: "/" + name + "/retry", repeatable: true})
}

// Pause stops reconciles of the object until Resume.
func (c *Client[S, T]) Pause(ctx context.Context, name string) (*Object[S, T], error) {
	return c.object(ctx, name, "pause", call{method: http.MethodPost, path: "/" + name + "/pause", repeatable: true})
}

// Resume ends a pause; the object is looked at again.
func (c *Client[S, T]) Resume(ctx context.Context, name string) (*Object[S, T], error) {
	return c.object(ctx, name, "resume", call{method: http.MethodPost, path: "/" + name + "/resume", repeatable: true})
}

// doing says what a call does. It checks the name, which becomes part of a path: an empty one would address the list, and
// "a/status" something else.
func (c *Client[S, T]) doing(verb, name string) (string, error) {
	doing := verb + " " + c.kind + "/" + name
	if err := subject.CheckObject(c.kind, name); err != nil {
		return "", fmt.Errorf("%s: %w: %w", doing, ErrInvalid, err)
	}
	return doing, nil
}

// object makes a call about one object.
func (c *Client[S, T]) object(ctx context.Context, name, verb string, asked call) (*Object[S, T], error) {
	var err error
	if asked.doing, err = c.doing(verb, name); err != nil {
		return nil, err
	}
	o := new(Object[S, T])
	asked.path = c.path() + asked.path
	if c.version != "" {
		asked.path += "?" + url.Values{"version": {c.version}}.Encode()
	}
	asked.out = o
	status, err := c.do(ctx, asked)
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNoContent && asked.mayEnd:
		return nil, nil //nolint:nilnil // the object is gone
	case status == http.StatusNoContent, o.isOther(name):
		return nil, fmt.Errorf("%s: %w: status %d without that object (is a proxy in between?)", asked.doing, ErrUnexpectedResponse, status)
	}
	return o, nil
}

// isOther reports whether what was decoded is not the object of that name: any JSON object decodes.
func (o *Object[S, T]) isOther(name string) bool { return o.UID == "" || o.Name != name }

func (c *Client[S, T]) path() string { return "/v1/objects/" + c.kind }
