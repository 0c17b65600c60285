package crash

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
)

// point is where the API can be made to die: between what a client asks for and what a controller hears.
type point string

const (
	beforeCommit  point = "before the commit"
	beforeAnswer  point = "after the commit, before the answer"
	beforePublish point = "after the answer, before the publish"
	beforeMark    point = "after the publish, before the mark"
	afterMark     point = "after the mark"
)

// points knows in the API's process at which point it is to die.
type points struct {
	mu   sync.Mutex
	at   point // guarded by mu, as is the rest
	left int
	near bool // the next time is the last
}

// arm lets the process die when it gets to a point for the nth time from now on.
func (p *points) arm(at point, nth int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.left = at, nth
}

// nears says that the process is about to get to a point. If it is to die there, nothing is published any more: what it does
// on the way to its death would hide what it has not done before.
func (p *points) nears(at point) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.near = p.near || p.at == at && p.left <= 1
}

// mute reports whether nothing is published any more.
func (p *points) mute() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.near || p.at == beforeAnswer || p.at == beforePublish
}

// armed reports whether the process is to die at one of these points.
func (p *points) armed(at ...point) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(at, p.at)
}

// reach kills the process if this is where and when it is to die. It is a real kill -9: nothing is flushed or closed.
func (p *points) reach(at point) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at != at {
		return
	}
	if p.left--; p.left > 0 {
		return
	}
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // the signal is on its way; no instruction of this goroutine may come after it
}

// front stands before the API and sees its answers before clients do.
type front struct {
	points    *points
	transport *http.Transport
	proxy     httputil.ReverseProxy
}

func newFront(p *points, apiURL string) *front {
	target, err := url.Parse(apiURL)
	if err != nil {
		panic(err) // it is the server's own
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	return &front{points: p, transport: transport, proxy: httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport,
	}}
}

func (f *front) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	// A request that came in earlier may have been published already: publishes are held from here on.
	counts := req.Method != http.MethodGet && !strings.HasSuffix(req.URL.Path, "/status") && f.points.armed(beforeAnswer, beforePublish)
	proxy := f.proxy
	proxy.ModifyResponse = func(resp *http.Response) error {
		counts = counts && resp.StatusCode < 300
		if counts {
			f.points.reach(beforeAnswer)
		}
		return nil
	}
	proxy.ServeHTTP(w, req)
	if counts && http.NewResponseController(w).Flush() == nil {
		f.points.reach(beforePublish)
	}
}

// natsBorder dials the broker and sees what is sent to it and what it answers.
type natsBorder struct{ points *points }

// Dial is that of nats.CustomDialer.
func (b natsBorder) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &natsConn{Conn: conn, points: b.points}, nil
}

type natsConn struct {
	net.Conn
	points *points
}

// Write holds notifications back for ever if the process is to die before one is published.
func (c *natsConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("HPUB evenkeel.n.")) && c.points.mute() {
		select {}
	}
	return c.Conn.Write(b)
}

// Read sees the broker's answer to a publish before the API does.
func (c *natsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], []byte(`"stream":"evenkeel_work"`)) {
		c.points.reach(beforeMark)
	}
	return n, err
}
