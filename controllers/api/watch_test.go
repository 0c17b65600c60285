package api

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

type (
	widgetEvent = apiclient.Event[doc, doc]
	client      = apiclient.Client[doc, doc]
)

// view is what a watcher knows: the generation of each object.
type view map[string]int64

// take applies an event.
func (v view) take(e widgetEvent) {
	switch e.Type {
	case apiclient.EventReset:
		clear(v)
	case apiclient.EventPut:
		v[e.Name] = e.Object.Generation
	case apiclient.EventGone:
		delete(v, e.Name)
	case apiclient.EventSynced:
	}
}

// TestWatchersMissNothing: several APIs write to one store at once, watchers are interrupted again and again, and
// whoever has seen the last write knows all that is there.
func TestWatchersMissNothing(t *testing.T) {
	store := newStore(t)
	var clients []*client
	for range 3 {
		a := open(t, store, new(ear).notify)
		running(t, a)
		clients = append(clients, widgets(t, a))
	}
	views := make([]view, 4)
	var watching, writing errgroup.Group
	for i := range views {
		views[i] = view{}
		watching.Go(func() error { return watchUntilTheEnd(t.Context(), views[i], clients, i) })
	}
	for i := range 6 {
		writing.Go(func() error { return writeAtRandom(t.Context(), clients[i%len(clients)], 60) })
	}
	require.NoError(t, writing.Wait())
	_, err := clients[0].Create(t.Context(), "zz-end", doc{})
	require.NoError(t, err)
	require.NoError(t, watching.Wait())
	want := view{}
	for o, err := range clients[0].All(t.Context()) {
		require.NoError(t, err)
		want[o.Name] = o.Generation
	}
	for i := range views {
		require.Equal(t, want, views[i], "watcher %d", i)
	}
}

func writeAtRandom(ctx context.Context, c *client, writes int) error {
	for range writes {
		name := fmt.Sprintf("w-%d", rand.N(8))
		_, err := c.Put(ctx, name, doc{"size": rand.N(1000)})
		if rand.N(3) == 0 {
			_, err = c.Delete(ctx, name)
		}
		if err != nil && !errors.Is(err, apiclient.ErrNotFound) && !errors.Is(err, apiclient.ErrUnavailable) {
			return err
		}
	}
	return nil
}

// watchUntilTheEnd watches with one API after the other, a few events each.
func watchUntilTheEnd(ctx context.Context, v view, apis []*client, first int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cursor := ""
	for turn := first; ; turn++ {
		var opts []apiclient.WatchOption
		if cursor != "" {
			opts = append(opts, apiclient.From(cursor))
		}
		left := 1 + rand.N(5)
		for e, err := range apis[turn%len(apis)].Watch(ctx, opts...) {
			if err != nil {
				return err
			}
			v.take(e)
			cursor = e.Cursor
			if e.Name == "zz-end" {
				return nil
			}
			if left--; left == 0 {
				break
			}
		}
	}
}

// TestWatchWaitsForEarlierTransactions: the numbers of changes are given out before the changes can be seen, so one must
// not be read past another that is still being written.
func TestWatchWaitsForEarlierTransactions(t *testing.T) {
	a := open(t, pgtest.Database(t), new(ear).notify)
	running(t, a)
	c := widgets(t, a)
	w := follow(t, c)
	w.want("reset", "synced")
	early, err := a.store.write.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	tx := &transaction{Tx: early, feed: &a.store.feed, vault: a.store.vault}
	_, _, err = tx.create(t.Context(), objects.Key{Kind: "widgets", Name: "early"}, objects.Wanted{Spec: []byte(`{}`)})
	require.NoError(t, err)
	_, err = c.Create(t.Context(), "late", doc{})
	require.NoError(t, err)
	page, err := a.store.changesAfter(t.Context(), place{}, 10)
	require.NoError(t, err)
	require.Empty(t, page, "late was read past early, which nobody would ever hear of")
	require.NoError(t, early.Commit())
	w.want("put early", "put late")
}

// follower is a watch that is read event by event.
type follower struct {
	t      *testing.T
	next   func() (widgetEvent, error, bool)
	stop   func()
	cursor string
}

func follow(t *testing.T, c *client, opts ...apiclient.WatchOption) *follower {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	next, stop := iter.Pull2(c.Watch(ctx, opts...))
	f := &follower{t: t, next: next, stop: func() { stop(); cancel() }}
	t.Cleanup(f.stop)
	return f
}

func (f *follower) want(events ...string) {
	f.t.Helper()
	for _, want := range events {
		e, err, _ := f.next()
		require.NoError(f.t, err)
		got := string(e.Type)
		if e.Name != "" {
			got += " " + e.Name
		}
		require.Equal(f.t, want, got)
		f.cursor = e.Cursor
	}
}

// TestOldCursorsAreShownEverything: what happened meanwhile is not known any more.
func TestOldCursorsAreShownEverything(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	running(t, a)
	c := widgets(t, a)
	w := follow(t, c)
	w.want("reset", "synced")
	for _, name := range []string{"a", "b", "c"} {
		_, err := c.Create(t.Context(), name, doc{})
		require.NoError(t, err)
		w.want("put " + name)
	}
	w.stop()
	_, err := c.Delete(t.Context(), "b")
	require.NoError(t, err)
	more, err := a.store.trim(t.Context(), objects.Now().Add(time.Hour))
	require.NoError(t, err)
	require.False(t, more)
	var left int
	require.NoError(t, a.store.read.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM changes`).Scan(&left))
	require.Equal(t, 1, left, "the last change stays, for SQLite counts on from it")

	follow(t, c, apiclient.From(w.cursor)).want("reset", "put a", "put c", "synced")
	follow(t, c, apiclient.From("another"+w.cursor[strings.Index(w.cursor, "."):])).want("reset")
}

// TestLaggingFeedSendsWatchersBack: when the feed itself could not read for so long that changes have gone.
func TestLaggingFeedSendsWatchersBack(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	a.feed.running = true // without its goroutine
	w, err := a.feed.subscribe(t.Context(), scope{kind: "widgets"})
	require.NoError(t, err)
	for i := range 3 {
		_, err := a.store.create(t.Context(), objects.Key{Kind: "widgets", Name: fmt.Sprintf("w-%d", i)}, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
		require.NoError(t, err)
	}
	_, err = a.store.trim(t.Context(), objects.Now().Add(time.Hour))
	require.NoError(t, err)
	_, err = a.feed.step(t.Context())
	require.NoError(t, err)
	select {
	case _, open := <-w.events:
		require.False(t, open)
	default:
		t.Fatal("it was not cut off")
	}
}

// TestRestoredDatabaseBeginsAnEpoch: its rows have numbers that its server has not reached.
func TestRestoredDatabaseBeginsAnEpoch(t *testing.T) {
	store := pgtest.Database(t)
	a := open(t, store, new(ear).notify)
	before, err := a.store.feedState(t.Context())
	require.NoError(t, err)
	_, err = a.store.write.ExecContext(t.Context(), `INSERT INTO changes (change, kind, name, written_at) VALUES ($1, 'widgets', 'blue', 0)`, before.settled+1_000_000)
	require.NoError(t, err)
	again, err := open(t, store, new(ear).notify).store.feedState(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, before.epoch, again.epoch)
	third, err := open(t, store, new(ear).notify).store.feedState(t.Context())
	require.NoError(t, err)
	require.Equal(t, again.epoch, third.epoch, "the next start goes on with it")
}

// TestSlowWatcherIsCutOffAlone: it is never buffered without bound, and others go on.
func TestSlowWatcherIsCutOffAlone(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	a.feed.running = true // without its goroutine
	slow, err := a.feed.subscribe(t.Context(), scope{kind: "widgets"})
	require.NoError(t, err)
	quick, err := a.feed.subscribe(t.Context(), scope{kind: "widgets"})
	require.NoError(t, err)
	k := objects.Key{Kind: "widgets", Name: "blue"}
	_, err = a.store.create(t.Context(), k, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
	require.NoError(t, err)
	for range watcherBehind + 1 {
		_, _, err = a.store.change(t.Context(), k, objects.RequestRetry)
		require.NoError(t, err)
		_, err = a.feed.step(t.Context())
		require.NoError(t, err)
		_, open := <-quick.events
		require.True(t, open)
	}
	received := 0
	for range slow.events { // it ends: the channel was closed
		received++
	}
	require.Equal(t, watcherBehind, received)
	require.Len(t, a.feed.watchers, 1)
}

// stuck is a connection whose reader does not read.
type stuck struct {
	httptest.ResponseRecorder
	deadline time.Time
}

func (s *stuck) Write([]byte) (int, error) {
	if s.deadline.IsZero() {
		return 0, errors.New("this would wait for ever")
	}
	return 0, os.ErrDeadlineExceeded
}
func (s *stuck) SetWriteDeadline(at time.Time) error { s.deadline = at; return nil }
func (s *stuck) FlushError() error                   { return nil }

func TestStuckReaderEndsTheWatch(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	running(t, a)
	require.Eventually(t, func() bool { return a.feed.open() == nil }, time.Minute, time.Millisecond)
	answer, err := a.watch(t.Context(), &watchInput{Kind: "widgets"})
	require.NoError(t, err)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	conn := new(stuck)
	answer.Body(humago.NewContext(nil, req, conn)) // it returns
	require.WithinDuration(t, time.Now().Add(sendWithin), conn.deadline, sendWithin)
}

// TestInterruptedShowGoesOn behind the last object that was shown.
func TestInterruptedShowGoesOn(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	running(t, a)
	c := widgets(t, a)
	for _, name := range []string{"a", "b", "c", "d"} {
		_, err := c.Create(t.Context(), name, doc{})
		require.NoError(t, err)
	}
	w := follow(t, c)
	w.want("reset", "put a", "put b")
	w.stop()
	_, err := c.Delete(t.Context(), "a")
	require.NoError(t, err)
	follow(t, c, apiclient.From(w.cursor)).want("put c", "put d", "synced", "gone a")
}

// TestEndedWatchesAreResumedElsewhere: a server that shuts down does not wait for its watchers.
func TestEndedWatchesAreResumedElsewhere(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	stop := running(t, a)
	require.Eventually(t, func() bool { return a.feed.open() == nil }, time.Minute, time.Millisecond)
	srv := httptest.NewServer(a.Handler())
	c, err := apiclient.New[doc, doc](apiclient.Config{URL: srv.URL, HTTP: srv.Client()}, "widgets")
	require.NoError(t, err)
	w := follow(t, c)
	w.want("reset", "synced")
	a.EndWatches()
	srv.Close() // it waits for requests that are being served
	stop()
	resp := httptest.NewRecorder()
	a.Handler().ServeHTTP(resp, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/watch/widgets", nil))
	require.Equal(t, http.StatusServiceUnavailable, resp.Code)
	require.Equal(t, "1", resp.Header().Get("Retry-After"))
}

// TestQuietKindsKeepTheirPlace: the heartbeats of a watch of which nothing is told bear cursors, too, that do not grow old.
func TestQuietKindsKeepTheirPlace(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	a.feed.running = true // without its goroutine
	w := &watch{api: a, scope: scope{kind: "widgets"}}
	require.NoError(t, w.start(t.Context()))
	_, err := a.feed.subscribe(t.Context(), w.scope)
	require.NoError(t, err)
	for i := range 3 {
		_, err := a.store.create(t.Context(), objects.Key{Kind: "gadgets", Name: fmt.Sprintf("g-%d", i)}, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
		require.NoError(t, err)
	}
	_, err = a.feed.step(t.Context())
	require.NoError(t, err)
	require.Positive(t, a.feed.at.compare(w.at.place))
	state, err := a.store.feedState(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, a.feed.at.change, state.settled)
}

func TestLatestChangesAreTold(t *testing.T) {
	page := []change{{place{1, "a", "x"}}, {place{2, "a", "y"}}, {place{3, "a", "x"}}, {place{3, "b", "x"}}}
	require.Equal(t, []change{page[1], page[2], page[3]}, latest(page))
}

// TestLateWatcherIsNotToldThatAllIsGone: who begins to watch another kind while a page of changes is read is told of it by a
// page that was read for it, too.
func TestLateWatcherIsNotToldThatAllIsGone(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	a.feed.running = true // but for what this test does
	first, err := a.feed.subscribe(t.Context(), scope{kind: "gadgets"})
	require.NoError(t, err)
	create(t, a, 1)
	from := a.feed.at
	page, err := a.store.changesAfter(t.Context(), from, feedPage)
	require.NoError(t, err)
	require.NotEmpty(t, page)
	keys, kinds := a.feed.wanted(page)
	require.Empty(t, keys, "nobody watches widgets")
	late, err := a.feed.subscribe(t.Context(), scope{kind: "widgets"})
	require.NoError(t, err)
	n, err := a.feed.pass(t.Context(), from, page, kinds, nil)
	require.NoError(t, err)
	require.Equal(t, len(page), n, "it is read again")
	require.Empty(t, late.events)
	require.Equal(t, from, a.feed.at)
	n, err = a.feed.step(t.Context())
	require.NoError(t, err)
	require.Equal(t, len(page), n)
	e := <-late.events
	require.Equal(t, objects.EventPut, e.kind)
	require.Empty(t, first.events)
}
