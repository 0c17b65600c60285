package apiclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// Defaults of [Config].
const (
	// DefaultTimeout bounds one call: far above a database write, low enough that a dead peer is noticed in a lease.
	DefaultTimeout = 10 * time.Second
	// PageSize is how many objects one request of All asks for.
	PageSize = 200
	// maxBody bounds what is read of an answer: a page of large objects.
	maxBody = 64 << 20
)

// Config says how to reach the API.
type Config struct {
	// URL is the base, such as http://127.0.0.1:8080. Required.
	URL string
	// HTTP sends the requests. Give one whose transport carries TLS and credentials. It is copied; redirects are not
	// followed. Default: a client of its own.
	HTTP *http.Client
	// Timeout bounds each call from request to the last byte. Default: DefaultTimeout.
	Timeout time.Duration
}

// Client reads and writes the objects of one kind. It is safe for concurrent use.
type Client[S, T any] struct {
	base    string
	kind    string
	http    *http.Client
	timeout time.Duration
}

// New returns a client of one kind. It fails if the URL or the kind cannot be right; it does not connect.
func New[S, T any](cfg Config, kind string) (*Client[S, T], error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("apiclient: Config.URL %q: want http://host:port or https://host:port", withoutUser(cfg.URL))
	}
	if err := subject.CheckKind(kind); err != nil {
		return nil, fmt.Errorf("apiclient: %w", err)
	}
	c := &Client[S, T]{base: strings.TrimSuffix(cfg.URL, "/"), kind: kind, http: withoutRedirects(cfg.HTTP), timeout: cfg.Timeout}
	if c.timeout <= 0 {
		c.timeout = DefaultTimeout
	}
	return c, nil
}

// withoutRedirects makes a redirect an error. Following one would turn a write into a read of the same object (RFC 9110,
// section 15.4: 301 to 303), which looks like success and has written nothing.
func withoutRedirects(given *http.Client) *http.Client {
	var own http.Client
	if given != nil {
		own = *given
	} else {
		own.Transport = transport()
	}
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}

// withoutUser strips what stands before the host, also of what is no URL: it may be a password.
func withoutUser(rawURL string) string {
	if at := strings.LastIndex(rawURL, "@"); at >= 0 {
		return "…" + rawURL[at:]
	}
	return rawURL
}

// transport keeps as many idle connections as a controller has workers: the default of two would dial for every call.
func transport() *http.Transport {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
	if d, ok := http.DefaultTransport.(*http.Transport); ok { // instrumentation replaces it by a type of its own
		t = d.Clone()
	}
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 1024, 1024
	return t
}

type objectBody[S any] struct {
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Spec   S                 `json:"spec"`
}

// Create makes a new object, or fails with [ErrExists].
func (c *Client[S, T]) Create(ctx context.Context, name string, spec S, opts ...Option) (*Object[S, T], error) {
	w := options(opts)
	return c.object(ctx, http.MethodPost, name, "", w, objectBody[S]{Name: name, Labels: w.labels, Spec: spec}, "create "+c.kind+"/"+name)
}

// Put makes the object or replaces its spec and labels. Putting what is already there changes nothing.
func (c *Client[S, T]) Put(ctx context.Context, name string, spec S, opts ...Option) (*Object[S, T], error) {
	w := options(opts)
	return c.object(ctx, http.MethodPut, name, "/"+name, w, objectBody[S]{Labels: w.labels, Spec: spec}, "put "+c.kind+"/"+name)
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
	return c.object(ctx, http.MethodPatch, name, "/"+name, w, body, "patch "+c.kind+"/"+name)
}

// Get reads one object, or fails with [ErrNotFound].
func (c *Client[S, T]) Get(ctx context.Context, name string) (*Object[S, T], error) {
	return c.object(ctx, http.MethodGet, name, "/"+name, write{}, nil, "get "+c.kind+"/"+name)
}

// Delete asks for the object's deletion. It returns nil when the object is gone, and the object while its finalizers
// still have to be removed by their owners.
func (c *Client[S, T]) Delete(ctx context.Context, name string) (*Object[S, T], error) {
	return c.object(ctx, http.MethodDelete, name, "/"+name, write{}, nil, "delete "+c.kind+"/"+name)
}

// PatchStatus makes a controller's write. It fails with [ErrFenced], [ErrConflict] or [ErrNotFound] when the writer is
// out of date, and returns nil without an error when the patch removed the object for good.
func (c *Client[S, T]) PatchStatus(ctx context.Context, name string, p StatusPatch) (*Object[S, T], error) {
	return c.object(ctx, http.MethodPatch, name, "/"+name+"/status", write{}, p, "patch status of "+c.kind+"/"+name)
}

// Retry asks for a reconcile now, also of a stalled object.
func (c *Client[S, T]) Retry(ctx context.Context, name string) (*Object[S, T], error) {
	return c.object(ctx, http.MethodPost, name, "/"+name+"/retry", write{}, nil, "retry "+c.kind+"/"+name)
}

// Pause stops reconciles of the object until Resume.
func (c *Client[S, T]) Pause(ctx context.Context, name string) (*Object[S, T], error) {
	return c.object(ctx, http.MethodPost, name, "/"+name+"/pause", write{}, nil, "pause "+c.kind+"/"+name)
}

// Resume ends a pause; the object is looked at again.
func (c *Client[S, T]) Resume(ctx context.Context, name string) (*Object[S, T], error) {
	return c.object(ctx, http.MethodPost, name, "/"+name+"/resume", write{}, nil, "resume "+c.kind+"/"+name)
}

// object makes a call about one object. The name is checked here because it becomes part of a path: an empty one would
// address the list, and "a/status" something else.
func (c *Client[S, T]) object(ctx context.Context, method, name, path string, w write, body any, doing string) (*Object[S, T], error) {
	if err := subject.CheckObject(c.kind, name); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", doing, ErrInvalid, err)
	}
	o := new(Object[S, T])
	status, err := c.do(ctx, method, path, w, body, o, doing)
	if err != nil || status == http.StatusNoContent {
		return nil, err
	}
	return o, nil
}

// do sends one request and decodes the answer into out. The error says what was being done and to what.
func (c *Client[S, T]) do(ctx context.Context, method, path string, w write, body, out any, doing string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, fmt.Errorf("%s: encode: %w", doing, err)
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/v1/objects/"+c.kind+path, payload)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if w.ifMatch != "" {
		req.Header.Set("If-Match", w.ifMatch)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, withoutURL(err))
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return 0, fmt.Errorf("%s: read answer: %w: %w", doing, ErrUnavailable, err)
	}
	if resp.StatusCode >= 300 {
		p := problem(resp, data)
		if p.Status == http.StatusNotFound && !p.Is(ErrNotFound) {
			return resp.StatusCode, fmt.Errorf("%s: %w (is Config.URL the base URL of the API, without /v1?)", doing, p)
		}
		return resp.StatusCode, fmt.Errorf("%s: %w", doing, p)
	}
	if resp.StatusCode == http.StatusNoContent {
		return resp.StatusCode, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return resp.StatusCode, fmt.Errorf("%s: decode answer: %w", doing, err)
	}
	return resp.StatusCode, nil
}

// withoutURL strips the URLs that net/http puts into its errors: they may carry credentials. There is more than one where
// the transport makes requests of its own, for a token say.
func withoutURL(err error) error {
	for {
		var u *url.Error
		if !errors.As(err, &u) {
			return err
		}
		err = u.Err
	}
}

func problem(resp *http.Response, data []byte) *Problem {
	p := &Problem{}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json") || json.Unmarshal(data, p) != nil {
		*p = Problem{Title: http.StatusText(resp.StatusCode)}
	}
	p.Status = resp.StatusCode
	return p
}
