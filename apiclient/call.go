package apiclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/internal/random"
)

// Defaults of [Config].
const (
	// DefaultTimeout bounds one call: far above a database write, low enough that a dead peer is noticed in a lease.
	DefaultTimeout = 10 * time.Second
	// DefaultTries bridges the restart of an API behind a load balancer.
	DefaultTries = 5
	// PageSize is how many objects one request of All asks for.
	PageSize = 200
	// maxBody bounds what is read of an answer: a page of large objects.
	maxBody = 64 << 20
	// firstWait is the wait before the first repetition; it doubles up to lastWait.
	firstWait, lastWait = 100 * time.Millisecond, 2 * time.Second
)

// Config says how to reach the API.
type Config struct {
	// URL is the base, such as http://127.0.0.1:8080. Required.
	URL string
	// HTTP sends the requests. Give one whose transport carries TLS, and a client certificate if there is one. It is copied;
	// redirects are not followed. Default: a client of its own.
	HTTP *http.Client
	// Token gives the bearer token of each request: [StaticToken], [TokenFile], or a function of your own. Default: none is
	// sent.
	Token TokenSource
	// Timeout bounds each call from request to the last byte, repetitions included. Default: DefaultTimeout.
	Timeout time.Duration
	// Tries is how often a call is made at the most while the API cannot be reached, is too busy, or says when to come back
	// (Retry-After). What may have taken effect is repeated only if that does no harm. Default: DefaultTries; 1 never repeats.
	Tries int
}

// caller sends requests to one API.
type caller struct {
	base    string
	http    *http.Client
	token   TokenSource
	timeout time.Duration
	tries   int
}

func newCaller(cfg Config) (caller, error) {
	u, err := url.Parse(cfg.URL)
	if err == nil && strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), "/v1") {
		return caller{}, fmt.Errorf("apiclient: Config.URL %q: want the base URL, without /v1", withoutUser(cfg.URL))
	}
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return caller{}, fmt.Errorf("apiclient: Config.URL %q: want http://host:port or https://host:port", withoutUser(cfg.URL))
	}
	c := caller{base: strings.TrimSuffix(cfg.URL, "/"), http: withoutRedirects(cfg.HTTP), token: cfg.Token, timeout: cfg.Timeout, tries: cfg.Tries}
	if c.timeout <= 0 {
		c.timeout = DefaultTimeout
	}
	if c.tries <= 0 {
		c.tries = DefaultTries
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

// call is one request, and what is made of its answer.
type call struct {
	method, path, ifMatch string
	body, out             any
	// doing says what is being done, and to what, for errors.
	doing string
	// key, unless it is empty, is the Idempotency-Key.
	key string
	// repeatable calls may take effect twice.
	repeatable bool
	// mayEnd says that the object may be gone by the call, which an answer without a body says.
	mayEnd bool
}

// do makes a call, again if need be, and decodes the answer.
func (c *caller) do(ctx context.Context, asked call) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var body []byte
	if asked.body != nil {
		if body, err = json.Marshal(asked.body); err != nil {
			return 0, fmt.Errorf("%s: encode: %w", asked.doing, err)
		}
	}
	for try := 1; ; try++ {
		a, err := c.once(ctx, asked, body)
		if err == nil || try == c.tries || !asked.mayRepeat(a, err) || !pause(ctx, a.wait(try)) {
			return a.status, err
		}
	}
}

// answer is what is known of an answer besides its body.
type answer struct {
	status     int           // 0 if there was none
	retryAfter time.Duration // 0 if it does not say
}

// mayRepeat reports whether a call that failed can be made again.
func (asked *call) mayRepeat(a answer, err error) bool {
	var dialing *net.OpError
	switch {
	case !errors.Is(err, ErrUnavailable):
		return false
	case a.retryAfter > 0 || a.status == http.StatusTooManyRequests: // the server has done nothing
		return true
	case a.status == 0 && errors.As(err, &dialing) && dialing.Op == "dial": // nobody has heard of it
		return true
	}
	return asked.repeatable
}

// wait is the time before the next try: as long as the server says, else longer each time, and never as long as others wait.
func (a answer) wait(try int) time.Duration {
	if a.retryAfter > 0 {
		return a.retryAfter + random.N(firstWait)
	}
	d := min(lastWait, firstWait<<min(try-1, 10))
	return d/2 + random.N(d/2)
}

// pause waits, unless ctx would be done before that.
func pause(ctx context.Context, d time.Duration) bool {
	if until, ok := ctx.Deadline(); ok && time.Until(until) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// once sends one request and decodes the answer. The error says what was being done and to what.
func (c *caller) once(ctx context.Context, asked call, body []byte) (a answer, err error) {
	req, err := c.request(ctx, asked, body)
	if err != nil {
		return a, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return a, fmt.Errorf("%s: %w: %w", asked.doing, ErrUnavailable, withoutURL(err))
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return a, fmt.Errorf("%s: read answer: %w: %w", asked.doing, ErrUnavailable, err)
	}
	a = answer{status: resp.StatusCode, retryAfter: retryAfter(resp)}
	switch {
	case resp.StatusCode >= 300:
		return a, refusal(asked.doing, resp, data)
	case resp.StatusCode == http.StatusNoContent:
		return a, nil
	}
	if err := json.Unmarshal(data, asked.out); err != nil {
		if !json.Valid(data) {
			return a, fmt.Errorf("%s: %w: status %d with a body that is not JSON (is a proxy in between?)", asked.doing, ErrUnexpectedResponse, a.status)
		}
		return a, fmt.Errorf("%s: decode answer: %w", asked.doing, err)
	}
	return a, nil
}

func (c *caller) request(ctx context.Context, asked call, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, asked.method, c.base+asked.path, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", asked.doing, err)
	}
	if asked.body != nil {
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		req.Header.Set("Content-Type", "application/json")
	}
	if asked.key != "" {
		req.Header.Set("Idempotency-Key", asked.key)
	}
	if asked.ifMatch != "" {
		req.Header.Set("If-Match", asked.ifMatch)
	}
	if err := c.token.authorize(ctx, req); err != nil {
		return nil, fmt.Errorf("%s: %w", asked.doing, err)
	}
	return req, nil
}

// retryAfter is how long the server asks to wait, in seconds or until a date (RFC 9110, section 10.2.3).
func retryAfter(resp *http.Response) time.Duration {
	header := resp.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(header); err == nil {
		return time.Duration(max(0, seconds)) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// refusal is the error of an answer that is no success.
func refusal(doing string, resp *http.Response, data []byte) error {
	p := problem(resp, data)
	switch {
	case !p.Is(ErrUnexpectedResponse):
	case bytes.Contains(data, []byte("HTTP request")) && bytes.Contains(data, []byte("HTTPS")): // as net/http and nginx say it
		return fmt.Errorf("%s: %w: %w (the server speaks HTTPS: begin Config.URL with https://)", doing, ErrUnexpectedResponse, p)
	default:
		return fmt.Errorf("%s: %w: %w (is Config.URL the base URL of the API, without /v1? is a proxy in between?)", doing, ErrUnexpectedResponse, p)
	}
	return fmt.Errorf("%s: %w", doing, p)
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
