package workload

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// atOnce is how many reconciles of one replica may be at work on one cluster: a slow one must not take all workers.
	atOnce = 8
	// atOnceSlow is how many while the cluster is silent. With the second, one request that is slow, for a webhook's sake, say, is
	// told from a cluster that is.
	atOnceSlow = 2
	// downFor is for how long a cluster that does not answer is left alone at first, downAtMost after several tries.
	downFor, downAtMost = 5 * time.Second, 30 * time.Second
	// slow is for how long none of the requests under way may have been answered before the cluster counts as silent.
	slow = 2 * time.Second
	// helloTimeout bounds the request that asks whether a cluster is there.
	helloTimeout = 5 * time.Second
)

// health is whether a cluster answers. It is safe for concurrent use.
type health struct {
	answers answers
	slots   chan struct{}

	mu      sync.Mutex
	refused []string // who found no slot, in that order
	down    error    // nil: it is up, as far as is known
	until   time.Time
	tries   int
	looking bool // somebody asks whether it is back
}

// errBusy is of a cluster that is at work on as many instances as one replica may.
var errBusy = errors.New("the cluster is busy with other instances")

// errSlow is of a cluster that is silent, and may be down.
var errSlow = errors.New("the cluster is slow to answer")

// enter takes a slot for an instance. leave gives it back, and says who found none meanwhile and may come now. It does not wait:
// whoever waits keeps a worker from other clusters. Of a cluster that is down one reconcile at a time asks whether it is back,
// and the others go away at once.
func (h *health) enter(ctx context.Context, instance string, hello func(context.Context) error) (leave func() (next string), err error) {
	h.mu.Lock()
	down := h.down
	look := down != nil && !h.looking && !time.Now().Before(h.until)
	h.looking = h.looking || look
	h.mu.Unlock()
	switch {
	case look:
		err := hello(ctx)
		h.mu.Lock()
		h.looking = false
		h.mu.Unlock()
		if err != nil {
			return nil, err
		}
	case down != nil:
		return nil, down
	case len(h.slots) >= atOnceSlow && h.answers.silent() > slow:
		return nil, errSlow
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	at := slices.Index(h.refused, instance)
	select {
	case h.slots <- struct{}{}:
		if at >= 0 { // it has come by itself
			h.refused = slices.Delete(h.refused, at, at+1)
		}
		return h.leave, nil
	default:
		if at < 0 && len(h.refused) < maxRefused {
			h.refused = append(h.refused, instance)
		}
		return nil, errBusy
	}
}

// maxRefused bounds how many are remembered that found no slot. Others look again by themselves.
const maxRefused = 1000

func (h *health) leave() (next string) {
	<-h.slots
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.refused) > 0 {
		next, h.refused = h.refused[0], h.refused[1:]
	}
	return next
}

// isDown is why the cluster is left alone, nil if it is not.
func (h *health) isDown() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down == nil || h.looking || !time.Now().Before(h.until) {
		return nil
	}
	return h.down
}

// note looks at the error of a request: a cluster that does not answer is left alone for a while. It reports whether it is back.
func (h *health) note(err error) (back bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		back = h.down != nil
		h.down, h.tries = nil, 0
	case unreachable(err):
		if now := time.Now(); h.down == nil || !now.Before(h.until) { // those that were under way together count once
			h.until = now.Add(min(downAtMost, downFor<<min(h.tries, 8)))
			h.tries++
		}
		h.down = err
	}
	return back
}

// errNoAnswer is of a cluster that says nothing.
var errNoAnswer = errors.New("the cluster does not answer")

// unreachable reports whether an error is the cluster's, and not that of one request.
func unreachable(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return apierrors.IsUnauthorized(err) // the rest may be one API of many, served by somebody else
	}
	var network net.Error // also a *url.Error, of client-go's requests
	return !errors.Is(err, context.Canceled) && (errors.Is(err, errNoAnswer) || errors.As(err, &network))
}

// note looks at the error of a request, and returns it.
func (c *cluster) note(err error) error {
	if c.health.note(err) {
		c.watches.renew()
	}
	return err
}

// hello asks the cluster for its version.
func (c *cluster) hello(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	var info struct {
		GitVersion string `json:"gitVersion"`
	}
	data, err := c.known.RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(data, &info)
	}
	return info.GitVersion, c.note(err)
}

// greet asks whether the cluster is back.
func (c *cluster) greet(ctx context.Context) error {
	_, err := c.hello(ctx)
	return err
}

// answers knows of the requests to a cluster for how long none of them has been answered.
type answers struct {
	mu    sync.Mutex
	open  int
	since time.Time // the latest answer, or when the first of the open ones was sent
}

// over sends requests over next.
func (a *answers) over(next http.RoundTripper) http.RoundTripper { return answering{next, a} }

// silent is for how long requests have been waiting without an answer to any.
func (a *answers) silent() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == 0 {
		return 0
	}
	return time.Since(a.since)
}

// attemptKey is of an *error in the context of a request, for what came of sending it. client-go takes a watch whose request was
// cut off for one that has ended.
type attemptKey struct{}

type answering struct {
	http.RoundTripper
	answers *answers
}

// WrappedRoundTripper lets client-go find the transport, to close what is idle.
func (t answering) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t answering) RoundTrip(r *http.Request) (*http.Response, error) {
	a := t.answers
	a.mu.Lock()
	if a.open == 0 {
		a.since = time.Now()
	}
	a.open++
	a.mu.Unlock()
	answer, err := t.RoundTripper.RoundTrip(r)
	if failed, ok := r.Context().Value(attemptKey{}).(*error); ok {
		*failed = err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
	if err == nil {
		a.since = time.Now()
	}
	return answer, err
}
