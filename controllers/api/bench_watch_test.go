package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// lean is a watcher that keeps nothing but its place, so that what a watch costs is the cost of the API's end.
type lean struct {
	address string
	events  *atomic.Int64
	cuts    *atomic.Int64
	cursor  string
}

// dial asks for a watch, from where the last one ended.
func (w *lean) dial(ctx context.Context) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", w.address)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(conn, "GET /v1/watch/widgets?cursor=%s HTTP/1.1\r\nHost: api\r\n\r\n", url.QueryEscape(w.cursor))
	return conn, err
}

// until watches until an object of that name is put. synced is called when everything there was has been shown.
func (w *lean) until(ctx context.Context, name string, synced func()) error {
	for ctx.Err() == nil {
		conn, err := w.dial(ctx)
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		found, err := w.read(conn, name, synced)
		stop()
		conn.Close()
		if found || err != nil {
			return err
		}
		w.cuts.Add(1)
	}
	return context.Cause(ctx)
}

// read reads one answer to its end, or until that object is put.
func (w *lean) read(conn net.Conn, name string, synced func()) (found bool, err error) {
	res, err := http.ReadResponse(bufio.NewReaderSize(conn, 1024), nil)
	if err != nil {
		return false, nil //nolint:nilerr // cut off before there was an answer: try again
	}
	// The body is not closed: that would read on to its end. The caller closes the connection.
	if res.StatusCode != http.StatusOK {
		return false, errors.New(res.Status)
	}
	wanted := fmt.Appendf(nil, `data: {"kind":"widgets","name":%q`, name)
	lines := bufio.NewReaderSize(res.Body, 512)
	for {
		line, more, err := lines.ReadLine()
		begin := string(line[:min(len(line), 128)])
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
		if err != nil {
			return false, nil //nolint:nilerr // cut off: try again
		}
		switch {
		case strings.HasPrefix(begin, "id: "):
			w.cursor = begin[len("id: "):]
		case begin == "event: "+objects.EventPut:
			w.events.Add(1)
		case begin == "event: "+objects.EventSynced:
			synced()
		case bytes.HasPrefix([]byte(begin), wanted):
			return true, nil
		}
	}
}

// crowd is many watchers.
type crowd struct {
	events, cuts atomic.Int64
	watching     errgroup.Group
}

// gather begins to watch with n watchers, and returns when they know all there is.
func (l *loaded) gather(ctx context.Context, n int, until string) *crowd {
	c := new(crowd)
	known := make(chan struct{}, n)
	for range n {
		w := &lean{address: strings.TrimPrefix(l.url, "http://"), events: &c.events, cuts: &c.cuts}
		c.watching.Go(func() error {
			return w.until(ctx, until, func() {
				select {
				case known <- struct{}{}:
				default: // it was shown everything again
				}
			})
		})
	}
	for range n {
		<-known
	}
	c.events.Store(0)
	return c
}

// memory is what the process has in use.
func memory() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}

// BenchmarkWatchers measures how fast 1,000 watchers of one kind are told of writes, and what each costs, both ends of its
// connection together.
func BenchmarkWatchers(b *testing.B) {
	const watchers, writes = 1000, 500
	onBothStores(b, func(b *testing.B, newStore func() string) {
		for _, writers := range []int{1, 16} {
			b.Run(fmt.Sprintf("watchers=%d/writers=%d", watchers, writers), func(b *testing.B) {
				for range b.N {
					l := load(b, newStore, 0, false)
					before := memory()
					c := l.gather(b.Context(), watchers, "last")
					each := (memory() - before) / watchers
					m, err := drive(b.Context(), writers, writes, l.operations()[0].api)
					require.NoError(b, err)
					began := time.Now()
					_, err = l.widgets.Create(b.Context(), "last", sized{})
					require.NoError(b, err)
					require.NoError(b, c.watching.Wait())
					m.wall += time.Since(began)
					b.ReportMetric(float64(c.events.Load())/m.wall.Seconds(), "events/s")
					b.ReportMetric(float64(c.events.Load())/(watchers*(writes+1)), "events/write")
					b.ReportMetric(float64(writes)/m.wall.Seconds(), "writes/s")
					b.ReportMetric(float64(c.cuts.Load()), "cut-off")
					b.ReportMetric(each, "B/watcher")
				}
			})
		}
	})
}

// BenchmarkStalledWatchers measures what watchers that do not read cost while much more is written than they are kept.
func BenchmarkStalledWatchers(b *testing.B) {
	const stalled, writes, size = 100, 2000, 16 << 10
	for range b.N {
		l := load(b, newFiles(b), 0, false)
		w := &lean{address: strings.TrimPrefix(l.url, "http://")}
		for range stalled {
			conn, err := w.dial(b.Context())
			require.NoError(b, err)
			defer conn.Close()
		}
		for l.watching() < stalled {
			runtime.Gosched()
		}
		before := memory()
		var most float64
		for i := range writes {
			_, err := l.widgets.Create(b.Context(), fmt.Sprintf("o%d", i), sized{Text: strings.Repeat("x", size)})
			require.NoError(b, err)
			if i%100 == 99 {
				most = max(most, memory()-before)
			}
		}
		b.ReportMetric(float64(writes*size)/(1<<20), "MB-written")
		b.ReportMetric(most/(1<<20), "MB-more-at-most")
		b.ReportMetric(float64(stalled-l.watching()), "cut-off")
	}
}

// watching is how many watchers are being told.
func (l *loaded) watching() int {
	l.api.feed.mu.Lock()
	defer l.api.feed.mu.Unlock()
	return len(l.api.feed.watchers)
}
