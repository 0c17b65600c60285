package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

type (
	// sized is spec and status of the objects of benchmarks.
	sized struct {
		Size int64  `json:"size"`
		Text string `json:"text"`
	}
	sizedClient = apiclient.Client[sized, sized]
)

// text makes documents as large as real ones.
const aboutAsLarge = "0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz"

// loaded is an API on the loopback and the floor beside it: a database of its own with the same objects.
type loaded struct {
	api     *API
	url     string
	widgets *sizedClient
	floor   *store
	objects int
	tokenID string       // empty if nobody is asked for one
	last    atomic.Int64 // the last value, or name, that was written: each write changes something
}

// load opens an API and a floor with n objects each. Without a token nobody is asked for one.
func load(tb testing.TB, newStore func() string, n int, withToken bool) *loaded {
	tb.Helper()
	a, err := Open(tb.Context(), Config{
		Store: newStore(), Access: Access{Insecure: !withToken},
		Notify: func(context.Context, string, string, string) error { return nil },
	})
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	var running errgroup.Group
	running.Go(func() error { return a.Run(ctx) })
	srv := httptest.NewServer(a.Handler())
	tb.Cleanup(func() {
		a.EndWatches()
		srv.Close()
		cancel()
		require.NoError(tb, running.Wait())
		require.NoError(tb, a.Close())
	})
	l := &loaded{api: a, url: srv.URL, objects: n}
	l.floor, err = openStore(tb.Context(), newStore(), nil)
	require.NoError(tb, err)
	require.NoError(tb, l.floor.vault.ready(tb.Context()))
	tb.Cleanup(func() { require.NoError(tb, l.floor.close()) })
	cfg := apiclient.Config{URL: srv.URL, Timeout: time.Minute} // the machine may be busy
	if withToken {
		token, text, err := a.tokens.Create(tb.Context(), "load", access.Grant{Role: access.Admin}, nil)
		require.NoError(tb, err)
		cfg.Token, l.tokenID = apiclient.StaticToken(text), token.ID
	}
	l.widgets, err = apiclient.New[sized, sized](cfg, "widgets")
	require.NoError(tb, err)
	for _, s := range []*store{a.store, l.floor} {
		require.NoError(tb, fill(tb.Context(), s, n))
	}
	return l
}

// onBothStores runs a benchmark on a file, and on a server that waits for the disk. It is given what makes empty databases.
func onBothStores(b *testing.B, run func(b *testing.B, newStore func() string)) {
	b.Helper()
	b.Run("sqlite", func(b *testing.B) { run(b, newFiles(b)) })
	b.Run("postgres", func(b *testing.B) {
		server, err := pgtest.Start(true)
		require.NoError(b, err)
		b.Cleanup(server.Stop)
		last := 0
		run(b, func() string {
			last++
			name, err := server.Create(fmt.Sprintf("load%d", last))
			require.NoError(b, err)
			return name
		})
	})
}

func newFiles(tb testing.TB) func() string {
	tb.Helper()
	dir, last := tb.TempDir(), 0
	return func() string { last++; return fmt.Sprintf("sqlite:%s/%d.db", dir, last) }
}

// fillObjects makes objects o10000001 and so on, of which every second has a label and is Ready. Each was changed a
// microsecond after the one before it.
const (
	fillObjects = `INSERT INTO objects (` + columns + `, owed_since, state, notified_revision)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < CAST($1 AS BIGINT))
		SELECT 'widgets', 'o' || CAST(10000000 + i AS TEXT), 'u' || CAST(10000000 + i AS TEXT), CASE WHEN i % 2 = 0 THEN '{"half":"even"}' ELSE 'null' END,
		1, 1, 1700000000000000 + i, 1700000000000000 + i, NULL, 'null', FALSE, '', NULL,
		'{"size":0,"text":"` + aboutAsLarge + `"}', '{"size":0,"text":"` + aboutAsLarge + `"}',
		CASE WHEN i % 2 = 0 THEN '{"state":"Ready","observedGeneration":1}' ELSE '{"state":"Stalled","observedGeneration":1}' END,
		FALSE, 'created', 1, '', '', NULL, CASE WHEN i % 2 = 0 THEN 'Ready' ELSE 'Stalled' END, 1 FROM n`
	fillLabels = `INSERT INTO labels (kind, label, value, name) SELECT kind, 'half', 'even', name FROM objects WHERE state = 'Ready'`
)

func nameOf(i int) string { return fmt.Sprintf("o%d", 10_000_000+i) }
func uidOf(i int) string  { return fmt.Sprintf("u%d", 10_000_000+i) }

func fill(ctx context.Context, s *store, n int) error {
	if n == 0 {
		return nil
	}
	if _, err := s.write.ExecContext(ctx, fillObjects, n); err != nil {
		return err
	}
	if _, err := s.write.ExecContext(ctx, fillLabels); err != nil {
		return err
	}
	_, err := s.write.ExecContext(ctx, "ANALYZE") // a server does so by itself, a minute later
	return err
}

// measured is what a number of operations took.
type measured struct {
	wall, cpu time.Duration
	allocs    uint64
	each      []time.Duration
}

func (m *measured) add(more measured) {
	m.wall += more.wall
	m.cpu += more.cpu
	m.allocs += more.allocs
	m.each = append(m.each, more.each...)
}

func (m *measured) perSecond() float64 { return float64(len(m.each)) / m.wall.Seconds() }

func (m *measured) percentile(percent int) float64 {
	slices.SortFunc(m.each, func(a, b time.Duration) int { return cmp.Compare(a, b) })
	return float64(m.each[(len(m.each)-1)*percent/100]) / float64(time.Microsecond)
}

// drive has clients do n operations. The numbers of one client are those of no other, modulo the number of clients.
func drive(ctx context.Context, clients, n int, do func(ctx context.Context, i int) error) (measured, error) {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	allocs, cpu, began := mem.Mallocs, processorTime(), time.Now()
	each := make([][]time.Duration, clients)
	var working errgroup.Group
	for c := range clients {
		working.Go(func() error {
			for i := c; i < n; i += clients {
				at := time.Now()
				if err := do(ctx, i); err != nil {
					return err
				}
				each[c] = append(each[c], time.Since(at))
			}
			return nil
		})
	}
	err := working.Wait()
	m := measured{wall: time.Since(began), cpu: processorTime() - cpu, each: slices.Concat(each...)}
	runtime.ReadMemStats(&mem)
	m.allocs = mem.Mallocs - allocs
	return m, err
}

// BenchmarkLoad compares requests with the same statements in the same transactions, sent to the database by the same
// number of clients without HTTP and JSON. Both ends of the connection are in this process. The two take turns: other work
// on the machine slows both.
func BenchmarkLoad(b *testing.B) {
	const many, turns = 4096, 8 // objects: more than clients, so that no two write to the same one
	onBothStores(b, func(b *testing.B, newStore func() string) {
		l := load(b, newStore, many, false)
		for _, op := range l.operations() {
			for _, clients := range []int{1, 16, 64} {
				b.Run(fmt.Sprintf("%s/clients=%d", op.name, clients), func(b *testing.B) { l.compare(b, op, clients, turns) })
			}
		}
	})
}

// BenchmarkLoadWithToken is the same with a token, which the API and the floor look up for each request.
func BenchmarkLoadWithToken(b *testing.B) {
	const many, turns = 4096, 8
	onBothStores(b, func(b *testing.B, newStore func() string) {
		l := load(b, newStore, many, true)
		for _, op := range l.operations() {
			if op.name != "status" && op.name != "get" {
				continue
			}
			bare := op.floor
			op.floor = func(ctx context.Context, i int) error {
				if err := l.bareToken(ctx); err != nil {
					return err
				}
				return bare(ctx, i)
			}
			for _, clients := range []int{1, 16, 64} {
				b.Run(fmt.Sprintf("%s/clients=%d", op.name, clients), func(b *testing.B) { l.compare(b, op, clients, turns) })
			}
		}
	})
}

func (l *loaded) compare(b *testing.B, op operation, clients, turns int) {
	b.Helper()
	n := max(b.N/turns, 250)
	var served, bare measured
	for range turns {
		m, err := drive(b.Context(), clients, n, op.api)
		require.NoError(b, err)
		began := time.Now()
		require.NoError(b, l.api.Flush(b.Context())) // what is left to notify is part of the work
		m.wall += time.Since(began)
		served.add(m)
		m, err = drive(b.Context(), clients, n, op.floor)
		require.NoError(b, err)
		bare.add(m)
	}
	ops := float64(len(served.each))
	b.ReportMetric(0, "ns/op") // that of both together
	b.ReportMetric(served.perSecond(), "requests/s")
	b.ReportMetric(served.perSecond()/bare.perSecond(), "vs-floor")
	b.ReportMetric(served.percentile(50), "p50-us")
	b.ReportMetric(served.percentile(99), "p99-us")
	b.ReportMetric(bare.percentile(50), "floor-p50-us")
	b.ReportMetric(bare.percentile(99), "floor-p99-us")
	b.ReportMetric(float64(served.allocs)/ops, "allocs/request")
	b.ReportMetric(float64(bare.allocs)/ops, "floor-allocs/request")
	b.ReportMetric(float64(served.cpu.Microseconds())/ops, "cpu-us/request")
	b.ReportMetric(float64(bare.cpu.Microseconds())/ops, "floor-cpu-us/request")
}

// operation is a request, and what it is beside.
type operation struct {
	name       string
	api, floor func(ctx context.Context, i int) error
}

func (l *loaded) operations() []operation {
	name := func(i int) string { return nameOf(1 + i%l.objects) }
	fresh := func() sized { return sized{Size: l.last.Add(1), Text: aboutAsLarge} }
	only := func(_ *apiclient.Object[sized, sized], err error) error { return err }
	return []operation{
		{"create", func(ctx context.Context, _ int) error {
			s := fresh()
			return only(l.widgets.Create(ctx, "c"+strconv.FormatInt(s.Size, 10), s))
		}, l.bareCreate},
		{"put", func(ctx context.Context, i int) error {
			return only(l.widgets.Put(ctx, name(i), fresh()))
		}, func(ctx context.Context, i int) error { return l.bareChange(ctx, name(i), true) }},
		{"patch", func(ctx context.Context, i int) error {
			return only(l.widgets.Patch(ctx, name(i), map[string]int64{"size": l.last.Add(1)}))
		}, func(ctx context.Context, i int) error { return l.bareChange(ctx, name(i), true) }},
		{"status", func(ctx context.Context, i int) error {
			return l.patchStatus(ctx, 1+i%l.objects)
		}, func(ctx context.Context, i int) error { return l.bareChange(ctx, name(i), false) }},
		{"get", func(ctx context.Context, i int) error {
			return only(l.widgets.Get(ctx, name(i)))
		}, func(ctx context.Context, i int) error {
			return bareRead(ctx, l.floor.read, 1, selectOne, "widgets", name(i))
		}},
		{"list", func(ctx context.Context, i int) error {
			return l.onePage(ctx, apiclient.PageSize, func(q url.Values) { q.Set("cursor", pageAt(i, l.objects)) })
		}, func(ctx context.Context, i int) error {
			return bareRead(ctx, l.floor.read, apiclient.PageSize+1, selectAll, "widgets", nameOf(i*37%(l.objects/2)), apiclient.PageSize+1)
		}},
	}
}

// pageAt is a cursor somewhere in the first half.
func pageAt(i, of int) string {
	return objects.Sort{By: "name"}.Cursor(objects.Position{Name: nameOf(i * 37 % (of / 2))})
}

// onePage reads one page, which has that many objects.
func (l *loaded) onePage(ctx context.Context, want int, opts ...apiclient.ListOption) error {
	n := 0
	for _, err := range l.widgets.All(ctx, opts...) {
		if err != nil {
			return err
		}
		if n++; n == want {
			return nil
		}
	}
	return fmt.Errorf("the list ended after %d", n)
}

func (l *loaded) patchStatus(ctx context.Context, i int) error {
	status := fmt.Appendf(nil, `{"size":%d,"text":%q}`, l.last.Add(1), aboutAsLarge)
	_, err := l.widgets.PatchStatus(ctx, nameOf(i), apiclient.StatusPatch{
		UID: uidOf(i), Fence: 1, Status: status,
		Reconciliation: &apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 1},
	})
	return err
}
