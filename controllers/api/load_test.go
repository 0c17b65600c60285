package api

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
)

// newStores makes empty databases of the kind that newStore gives.
func newStores(t *testing.T) func() string {
	t.Helper()
	if strings.HasPrefix(t.Name(), "TestPostgres/") {
		return func() string { return pgtest.Database(t) }
	}
	return newFiles(t)
}

// TestLoad runs what the benchmarks measure, a little of each: many clients write at once while many watch. All writes are
// there afterwards, every watcher gets the last event, and the lists are whole.
func TestLoad(t *testing.T) {
	const many, watchers, clients, turns = 600, 20, 8, 64
	l := load(t, newStores(t), many, false)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	crowd := l.gather(ctx, watchers, "last")
	var writing errgroup.Group
	for _, op := range l.operations() {
		writing.Go(func() error {
			_, err := drive(ctx, clients, turns, op.api)
			return err
		})
	}
	require.NoError(t, writing.Wait())
	for _, op := range l.operations() { // one after another: it does not begin anew after a lost race
		_, err := drive(ctx, clients, turns, op.floor)
		require.NoError(t, err, op.name)
	}
	_, err := l.widgets.Create(ctx, "last", sized{})
	require.NoError(t, err)
	require.NoError(t, crowd.watching.Wait())
	require.NotZero(t, crowd.events.Load())

	o, err := l.widgets.Get(ctx, nameOf(1))
	require.NoError(t, err)
	require.Greater(t, o.Generation, int64(1), "put and patched")
	require.NotZero(t, o.Status.Size)
	listedOnce(t, l, many+turns+1)
}

// TestDeepPagesAreWhole: lists of every kind have each object once, from their begin and from their middle.
func TestDeepPagesAreWhole(t *testing.T) {
	const many = 3000
	l := load(t, newStores(t), many, false)
	listedOnce(t, l, many)
	for _, kind := range lists() {
		at, left := many*9/10, many/10
		if kind.sort.Descending {
			at = left + 1
		}
		if kind.name == "label" || kind.name == "state" { // every second object
			left /= 2
		}
		n := 0
		for _, err := range l.widgets.All(t.Context(), append(kind.opts, kind.behind(at))...) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, left, n, kind.name)
	}
}

// listedOnce checks that a list has so many objects, each once, in the order of names, and that others agree with it.
func listedOnce(t *testing.T, l *loaded, want int) {
	t.Helper()
	all := map[string]*apiclient.Object[sized, sized]{}
	labeled, stalled, last := 0, 0, ""
	for o, err := range l.widgets.All(t.Context()) {
		require.NoError(t, err)
		require.Greater(t, o.Name, last)
		last, all[o.Name] = o.Name, o
		if o.Labels["half"] == "even" {
			labeled++
		}
		if o.Reconciliation.State == apiclient.StateStalled {
			stalled++
		}
	}
	require.Len(t, all, want)
	for _, kind := range lists() {
		seen := map[string]bool{}
		for o, err := range l.widgets.All(t.Context(), kind.opts...) {
			require.NoError(t, err)
			require.False(t, seen[o.Name], "%s: %s is there twice", kind.name, o.Name)
			seen[o.Name] = true
		}
		switch kind.name {
		case "label":
			require.Len(t, seen, labeled)
		case "state":
			require.Len(t, seen, stalled)
		default:
			require.Len(t, seen, want, kind.name)
		}
	}
}
