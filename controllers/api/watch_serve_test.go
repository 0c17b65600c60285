package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// conn is a connection whose reader goes after so many writes and flushes. It notes how many there were.
type conn struct {
	*httptest.ResponseRecorder
	left, done int
	deadline   time.Time
	refuses    error  // of deadlines
	before     func() // each of them
}

var errGone = errors.New("the reader has gone")

func (c *conn) took() error {
	if c.before != nil {
		c.before()
	}
	c.done++
	if c.done > c.left {
		return errGone
	}
	return nil
}

func (c *conn) Write(p []byte) (int, error) {
	if err := c.took(); err != nil {
		return 0, err
	}
	return c.ResponseRecorder.Write(p)
}

func (c *conn) FlushError() error { return c.took() }

func (c *conn) SetWriteDeadline(at time.Time) error {
	c.deadline = at
	return c.refuses
}

// asked is a context of a viewer's request, whose token goes on being good.
func asked(ctx context.Context) context.Context {
	viewer := principal{grant: access.Grant{Role: access.Viewer}}
	return context.WithValue(ctx, visitKey{}, &visit{who: viewer, again: func() error { return nil }})
}

// serveTo serves a watch that goes on from an earlier one, or begins, until it ends or has nothing to say: what there is, what has
// changed, what changes, and a heartbeat. It returns nil if it did not end by itself.
func (s *stepped) serveTo(c *conn, goOn bool) error {
	s.t.Helper()
	w := newWatch(s.API, scope{kind: "widgets"})
	if goOn {
		w.at.place = place{change: 1, kind: "widgets", name: "a"}
		require.NoError(s.t, s.store.read.QueryRowContext(s.t.Context(), `SELECT epoch FROM feed`).Scan(&w.at.epoch))
	}
	ctx, cancel := context.WithCancel(asked(s.t.Context()))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := w.start(ctx)
		if err == nil {
			err = cmp.Or(w.events(ctx, c), errors.New("it ended without a reason"))
		}
		ended <- err
	}()
	for _, next := range []func(){
		func() {}, func() { s.write("c"); s.step() }, func() { time.Sleep(objects.Heartbeat) },
	} {
		synctest.Wait()
		if len(ended) > 0 {
			return <-ended
		}
		next()
	}
	synctest.Wait()
	if len(ended) > 0 {
		return <-ended
	}
	cancel()
	require.ErrorIs(s.t, <-ended, context.Canceled)
	return nil
}

// TestReaderThatGoesEndsItsWatch at once, wherever it was: nothing more is sent, nothing is left, and another watch may go on there.
func TestReaderThatGoesEndsItsWatch(t *testing.T) {
	for _, goOn := range []bool{false, true} {
		byHand(t, func(t *testing.T, s *stepped) {
			s.write("a")
			s.write("b")
			for n := 0; ; n++ {
				c := &conn{ResponseRecorder: httptest.NewRecorder(), left: n}
				err := s.serveTo(c, goOn)
				require.Zero(t, s.feed.count())
				if err == nil {
					require.Greater(t, n, 5)
					break
				}
				require.ErrorIs(t, err, errCutOff, "after %d", n)
				require.ErrorIs(t, err, errGone)
				require.Equal(t, n+1, c.done, "nothing is sent after that")
			}
		})
	}
}

// TestSlowReadersHaveADeadline for each event. Where none can be set, there is none.
func TestSlowReadersHaveADeadline(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		c := &conn{ResponseRecorder: httptest.NewRecorder(), left: 1000}
		require.NoError(t, s.serveTo(c, false))
		require.Equal(t, time.Now().Add(sendWithin), c.deadline, "of the heartbeat")
		c.refuses = http.ErrNotSupported
		require.NoError(t, s.serveTo(c, false))
		c.refuses = errGone
		before := c.done
		require.ErrorIs(t, s.serveTo(c, false), errCutOff)
		require.Equal(t, before, c.done, "it could not be sent in time")
	})
}

// TestStoreThatFailsEndsTheWatch, whenever it does: a watch that goes on without what it could not read would be silently incomplete.
func TestStoreThatFailsEndsTheWatch(t *testing.T) {
	for _, goOn := range []bool{false, true} {
		byHand(t, func(t *testing.T, s *stepped) {
			s.write("a")
			s.write("b")
			refresh := s.store.vault.refresh
			for n := 0; ; n++ {
				c := &conn{ResponseRecorder: httptest.NewRecorder(), left: 1000}
				calls, sent := 0, 0
				s.store.vault.refresh = func(ctx context.Context) error {
					if s.stepping {
						return refresh(ctx)
					}
					if calls++; calls == n+1 {
						sent = c.done
						return errStore
					}
					return refresh(ctx)
				}
				err := s.serveTo(c, goOn)
				s.store.vault.refresh = refresh
				if err == nil {
					require.Equal(t, n, calls, "it asked so often")
					require.Positive(t, n)
					break
				}
				require.ErrorIs(t, err, errStore, "at %d", n)
				require.Equal(t, sent, c.done, "nothing is sent after that")
			}
			statements := s.store.feed
			for _, broken := range []*string{&s.store.feed.selectChanges, &s.store.feed.selectFeed} {
				*broken = "nonsense"
				c := &conn{ResponseRecorder: httptest.NewRecorder(), left: 1000}
				require.ErrorContains(t, s.serveTo(c, goOn), "nonsense")
				if broken == &s.store.feed.selectFeed {
					require.Zero(t, c.done, "it is refused")
				}
				s.store.feed = statements
			}
		})
	}
}

// TestWatchThatBeginsWhileTheFeedEnds is not served.
func TestWatchThatBeginsWhileTheFeedEnds(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		c := &conn{ResponseRecorder: httptest.NewRecorder(), left: 1000, before: s.feed.end}
		require.ErrorIs(t, s.serveTo(c, false), errNoFeed)
		require.ErrorIs(t, newWatch(s.API, scope{kind: "widgets"}).start(t.Context()), errNoFeed)
		_, err := s.API.watch(t.Context(), &watchInput{Kind: "widgets"})
		require.ErrorIs(t, err, apiclient.ErrUnavailable)
	})
}

// TestTrimmedWhileCatchingUpEndsTheWatch, which then comes back and is shown everything.
func TestTrimmedWhileCatchingUpEndsTheWatch(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		for range 3 {
			s.write("a")
		}
		s.begin(scope{kind: "widgets"})
		s.watch.at.place = place{change: 1, kind: behindAll}
		_, err := s.store.trim(t.Context(), objects.Now().Add(time.Hour))
		require.NoError(t, err)
		require.ErrorIs(t, s.watch.catchUp(t.Context(), nil), errCutOff)
	})
}

// TestWhereAWatchGoesOn: where it was, unless what has happened since is not known, or its cursor is of another store.
func TestWhereAWatchGoesOn(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		for range 5 {
			s.write("a")
		}
		_, err := s.store.write.ExecContext(t.Context(), setTrimmed, 2)
		require.NoError(t, err)
		state, err := s.store.feedState(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 5, state.settled)
		present := cursor{epoch: state.epoch, place: place{change: 5, kind: behindAll}, showing: true}
		for name, tt := range map[string]struct {
			at    cursor
			fresh bool
		}{
			"it begins":                     {cursor{}, true},
			"where it was":                  {cursor{epoch: state.epoch, place: place{3, "widgets", "a"}}, false},
			"while it was shown everything": {cursor{epoch: state.epoch, place: place{change: 3, kind: behindAll}, showing: true, shownTo: "a"}, false},
			"behind what was dropped":       {cursor{epoch: state.epoch, place: place{change: 2, kind: behindAll}}, false},
			"in what was dropped":           {cursor{epoch: state.epoch, place: place{2, "widgets", "a"}}, true},
			"at the present":                {cursor{epoch: state.epoch, place: place{5, "widgets", "a"}}, false},
			"later than the present":        {cursor{epoch: state.epoch, place: place{6, "widgets", "a"}}, true},
			"of another store":              {cursor{epoch: "other", place: place{3, "widgets", "a"}}, true},
			"of none":                       {cursor{place: place{3, "widgets", "a"}}, true},
		} {
			w := newWatch(s.API, scope{kind: "widgets"})
			w.at = tt.at
			require.NoError(t, w.start(t.Context()), name)
			require.Equal(t, tt.fresh, w.fresh, name)
			if tt.fresh {
				require.Equal(t, present, w.at, name)
			} else {
				require.Equal(t, tt.at, w.at, name)
			}
		}
	})
}

// TestWrongWatchesAreRefused, also those that go on from an earlier one. What browsers say comes first.
func TestWrongWatchesAreRefused(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		const good, bad = "e.1.widgets.a", "nonsense"
		for field, in := range map[string]watchInput{
			"kind":          {Kind: "Not A Kind", Cursor: good},
			"query.name":    {Kind: "widgets", Name: "/", Cursor: good},
			"query.labels":  {Kind: "widgets", Labels: "a", LastEventID: good},
			"query.version": {Kind: "widgets", Version: "v9", Cursor: good},
			"query.cursor":  {Kind: "widgets", Cursor: good, LastEventID: bad},
			"":              {Kind: "widgets", Name: "a", Labels: "a=b", Cursor: bad, LastEventID: good},
		} {
			_, err := s.API.watch(t.Context(), &in)
			if field == "" {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, apiclient.ErrInvalid, field)
			require.ErrorContains(t, err, field)
		}
		_, err := s.API.watch(t.Context(), &watchInput{Kind: "widgets", Cursor: bad})
		require.ErrorContains(t, err, "query.cursor")
	})
}

// TestEndOfAWatchIsLoggedIfItIsAFailure: not if the reader has gone, or was cut off.
func TestEndOfAWatchIsLoggedIfItIsAFailure(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		var logged []string
		s.API.log = funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
		serve := func(ctx context.Context, c *conn) *http.Response {
			answer, err := s.API.watch(asked(t.Context()), &watchInput{Kind: "widgets"})
			require.NoError(t, err)
			answer.Body(humago.NewContext(nil, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil), c))
			return c.Result()
		}
		gone, cancel := context.WithCancel(asked(t.Context()))
		cancel()
		serve(gone, &conn{ResponseRecorder: httptest.NewRecorder(), left: 1000})
		resp := serve(asked(t.Context()), &conn{ResponseRecorder: httptest.NewRecorder(), left: 1})
		require.Empty(t, logged, strings.Join(logged, "\n"))
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Equal(t, objects.EventStream, resp.Header.Get("Content-Type"))
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		require.Equal(t, "no", resp.Header.Get("X-Accel-Buffering"))

		s.write("a")
		answer, err := s.API.watch(t.Context(), &watchInput{Kind: "widgets"})
		require.NoError(t, err)
		s.breakSecrets()
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		answer.Body(humago.NewContext(nil, req, &conn{ResponseRecorder: httptest.NewRecorder(), left: 1000}))
		require.Len(t, logged, 1)
		require.Contains(t, logged[0], `"watch ended" "error"="`)
		require.Contains(t, logged[0], "the store is away")
		require.Contains(t, logged[0], `"kind"="widgets"`)
	})
}

// TestWatchOfOneObject shows that one, if there is one with the labels.
func TestWatchOfOneObject(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.write("a")
		s.write("b")
		show := func(sc scope) []string {
			s.begin(sc)
			events, _ := s.told()
			return events
		}
		require.Equal(t, []string{"put b 1", "synced"}, show(scope{kind: "widgets", name: "b"}))
		require.Equal(t, []string{"synced"}, show(scope{kind: "widgets", name: "c"}))
		require.Equal(t, []string{"synced"}, show(scope{kind: "widgets", name: "b", labels: map[string]string{"a": "b"}}))
		w := newWatch(s.API, scope{kind: "widgets", name: "b"})
		w.scope.version = "v9"
		_, _, err := w.page(t.Context())
		require.ErrorContains(t, err, "widgets has no versions")
		statement := s.store.read
		require.NoError(t, statement.Close())
		for _, labels := range []map[string]string{nil, {"a": "b"}} {
			w.scope.labels = labels
			_, _, err = w.page(t.Context())
			require.ErrorContains(t, err, "read widgets/b")
		}
	})
}

// TestEverythingIsShownOnce, also what does not fit in a page of a list, and caught up with likewise.
func TestEverythingIsShownOnce(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		const all = 2*objects.MaxLimit + 1
		var want []string
		for i := range all {
			s.write(fmt.Sprintf("w-%04d", i))
			want = append(want, fmt.Sprintf("put w-%04d", i))
		}
		began := place{change: all, kind: behindAll}
		s.begin(scope{kind: "widgets"})
		got, _ := s.told()
		require.Equal(t, "synced", got[len(got)-1])
		for i := range want {
			require.Equal(t, want[i], got[i][:len(want[i])]) // at whatever revision the shard had
		}
		require.Len(t, got, all+1)
		require.Equal(t, began, s.watch.at.place)
		s.watch.at.place = place{}
		require.NoError(t, s.watch.catchUp(t.Context(), nil))
		got, cursors := s.told()
		require.Len(t, got, all)
		wantForward(t, cursors)
	})
}

// TestConversionThatFailsEndsTheWatch before the event that it is of, which is told to who comes back.
func TestConversionThatFailsEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := Open(t.Context(), Config{
			Store: "sqlite::memory:", Notify: new(ear).notify, Access: Access{Insecure: true}, Kinds: []Kind{machinesOf(2)},
		})
		require.NoError(t, err)
		defer a.Close()
		a.feed.running = true // without its goroutine
		s := &stepped{t: t, API: a}
		s.begin(scope{kind: "machines", version: "v1"})
		s.told()
		sub, other := s.subscribe(s.watch.scope), s.subscribe(s.watch.scope)
		s.machine("a", `{"cores":9,"zone":"z"}`)
		s.step()
		s.machine("b", `{"cores":13,"zone":"z"}`)
		s.step()
		mend := s.breakSecrets()
		e := <-other.events
		require.ErrorIs(t, s.watch.convert(asked(t.Context()), &e), errStore)
		mend()
		err = s.watch.goOn(asked(t.Context()), sub)
		var failed *conversionError
		require.ErrorAs(t, err, &failed)
		require.Contains(t, s.out.Body.String(), `"version":"v1"`)
		require.Contains(t, s.out.Body.String(), `"spec":{"size":"large"}`)
		events, _ := s.told()
		require.Equal(t, []string{"put a 1"}, events)
		require.Equal(t, "a", s.watch.at.place.name)
	})
}

// TestWatchThatGoesOnIsToldWhatChangedSince, and not everything again. What comes together is sent together.
func TestWatchThatGoesOnIsToldWhatChangedSince(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.write("a")
		s.write("b")
		c := &conn{ResponseRecorder: httptest.NewRecorder(), left: 1000}
		s.out = c.ResponseRecorder
		require.NoError(t, s.serveTo(c, true))
		events, _ := s.told()
		require.Equal(t, []string{"put b 1", "put c 1", "heartbeat"}, events)
		s.begin(scope{kind: "widgets"})
		sub := s.subscribe(s.watch.scope)
		for range 4 {
			s.write("a")
			s.step()
		}
		c = &conn{ResponseRecorder: httptest.NewRecorder(), left: 1000}
		s.watch.out, s.watch.body = http.NewResponseController(c), c
		s.watch.at.place = sub.from
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.watch.follow(ctx, sub) }()
		synctest.Wait()
		require.Equal(t, 4+1, c.done, "each event is a write, and all of them are flushed once")
		s.feed.unsubscribe(sub)
		require.ErrorIs(t, <-ended, errCutOff)
		require.Equal(t, 4+1, c.done)
		cancel()
	})
}

// TestWatchOfNobodyEndsAtItsHeartbeat: whoever asked is not welcome any more.
func TestWatchOfNobodyEndsAtItsHeartbeat(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.begin(scope{kind: "widgets"})
		require.ErrorIs(t, s.watch.goOn(t.Context(), s.subscribe(s.watch.scope)), errCutOff)
	})
}
