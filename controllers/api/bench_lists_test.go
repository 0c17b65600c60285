package api

import (
	"fmt"
	"net/url"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// listed is a way to list the objects that fill makes.
type listed struct {
	name string
	opts []apiclient.ListOption
	sort objects.Sort
}

func lists() []listed {
	return []listed{
		{"plain", nil, objects.Sort{By: "name"}},
		{"label", []apiclient.ListOption{apiclient.Labeled(map[string]string{"half": "even"})}, objects.Sort{By: "name"}},
		{"state", []apiclient.ListOption{apiclient.InState(apiclient.StateStalled)}, objects.Sort{By: "name"}},
		{"newest", []apiclient.ListOption{apiclient.SortedBy("-changed")}, objects.Sort{By: "changed", Descending: true}},
	}
}

// behind is the cursor of the page behind object i.
func (l listed) behind(i int) apiclient.ListOption {
	at := objects.Position{Name: nameOf(i)}
	if l.sort.ByTime() {
		at.At = 1_700_000_000_000_000 + int64(i)
	}
	return func(q url.Values) { q.Set("cursor", l.sort.Cursor(at)) }
}

// BenchmarkListDepth compares the first page of a list with pages behind nine tenths of the objects, of which there are
// EVENKEEL_OBJECTS.
func BenchmarkListDepth(b *testing.B) {
	n := 20_000
	if text := os.Getenv("EVENKEEL_OBJECTS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(b, err)
	}
	for _, store := range []struct {
		name string
		make func() string
	}{{"sqlite", newFiles(b)}, {"postgres", func() string { return pgtest.Database(b) }}} {
		b.Run(store.name, func(b *testing.B) {
			l := load(b, store.make, n, false)
			for _, kind := range lists() {
				b.Run(fmt.Sprintf("%s/objects=%d", kind.name, n), func(b *testing.B) { l.compareDepths(b, kind) })
			}
		})
	}
}

func (l *loaded) compareDepths(b *testing.B, kind listed) {
	b.Helper()
	page := func(opts ...apiclient.ListOption) time.Duration {
		began := time.Now()
		require.NoError(b, l.onePage(b.Context(), apiclient.PageSize, append(opts, kind.opts...)...))
		return time.Since(began)
	}
	var first, deep measured
	for i := range max(b.N, 200) {
		at := l.objects*9/10 + i%(l.objects/40) // another page each time
		if kind.sort.Descending {
			at = l.objects - at
		}
		first.each = append(first.each, page())
		deep.each = append(deep.each, page(kind.behind(at)))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(first.percentile(50), "first-us")
	b.ReportMetric(deep.percentile(50), "deep-us")
	b.ReportMetric(deep.percentile(50)/first.percentile(50), "vs-first")
	b.ReportMetric(deep.percentile(99)/first.percentile(99), "p99-vs-first")
}
