package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// stepped is an API whose feed makes a step when a test says so, in virtual time, and a watch of widgets at the present.
type stepped struct {
	*API
	t     *testing.T
	watch *watch
	out   *httptest.ResponseRecorder
	// stepping is whether the feed is.
	stepping bool
}

// byHand runs do beside a feed that does nothing by itself.
func byHand(t *testing.T, do func(t *testing.T, s *stepped)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stepped{t: t, API: open(t, "sqlite::memory:", new(ear).notify)}
		s.feed.running = true // without its goroutine
		do(t, s)
	})
}

// begin makes a watch that has shown everything there is.
func (s *stepped) begin(sc scope) {
	s.t.Helper()
	s.out = httptest.NewRecorder()
	s.watch = newWatch(s.API, sc)
	s.watch.out, s.watch.body = http.NewResponseController(s.out), s.out
	require.NoError(s.t, s.watch.start(s.t.Context()))
	require.NoError(s.t, s.watch.showAll(s.t.Context()))
	require.NoError(s.t, s.watch.catchUp(s.t.Context(), nil))
}

// subscribe lets somebody else watch.
func (s *stepped) subscribe(sc scope) *watcher {
	s.t.Helper()
	w, err := s.feed.subscribe(s.t.Context(), sc)
	require.NoError(s.t, err)
	return w
}

// goOn lets the watch follow the feed until do has returned.
func (s *stepped) goOn(sub *watcher, do func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(asked(s.t.Context()))
	ended := make(chan error)
	go func() { ended <- s.watch.goOn(ctx, sub) }()
	synctest.Wait()
	do()
	synctest.Wait()
	cancel()
	require.ErrorIs(s.t, <-ended, context.Canceled)
}

// write makes an object, or changes it.
func (s *stepped) write(name string) {
	s.t.Helper()
	k := objects.Key{Kind: "widgets", Name: name}
	refresh := s.store.vault.refresh
	defer func() { s.store.vault.refresh = refresh }()
	s.store.vault.refresh = s.store.kinds.refresh // also where reading fails
	_, _, err := s.store.change(s.t.Context(), k, objects.RequestRetry)
	if err != nil {
		require.ErrorIs(s.t, err, apiclient.ErrNotFound)
		_, err = s.store.create(s.t.Context(), k, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
	}
	require.NoError(s.t, err)
}

// remove deletes an object.
func (s *stepped) remove(name string) {
	s.t.Helper()
	_, _, err := s.store.change(s.t.Context(), objects.Key{Kind: "widgets", Name: name}, objects.RequestDeletion)
	require.NoError(s.t, err)
}

func (s *stepped) step() {
	s.t.Helper()
	s.stepping = true
	_, err := s.feed.step(s.t.Context())
	s.stepping = false
	require.NoError(s.t, err)
}

// told is what the watch was told since told was last asked, with the revisions of objects, and the cursor of each event.
func (s *stepped) told() (events, cursors []string) {
	s.t.Helper()
	for text := range strings.SplitSeq(strings.TrimSuffix(s.out.Body.String(), "\n\n"), "\n\n") {
		if text == "" {
			continue
		}
		fields := map[string]string{}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			fields[name] = value
		}
		var o apiclient.Raw
		require.NoError(s.t, json.Unmarshal([]byte(fields["data"]), &o))
		event := fields["event"]
		if o.Name != "" {
			event += " " + o.Name
		}
		if o.Revision != 0 {
			event += fmt.Sprint(" ", o.Revision)
		}
		events, cursors = append(events, event), append(cursors, fields["id"])
	}
	s.out.Body.Reset()
	return events, cursors
}

// TestStalePageIsNotToldToWhoCameLater: the revisions of an object never go back, though the feed read it before a watch did that
// has subscribed since.
func TestStalePageIsNotToldToWhoCameLater(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.subscribe(scope{kind: "widgets"})
		s.write("blue")
		from := s.feed.at
		page, err := s.store.changesAfter(t.Context(), from, feedPage)
		require.NoError(t, err)
		keys, kinds := s.feed.wanted(page)
		read, err := s.store.objectsOf(t.Context(), keys)
		require.NoError(t, err)
		s.write("blue")
		s.begin(scope{kind: "widgets"})
		s.goOn(s.subscribe(scope{kind: "widgets"}), func() {
			_, err := s.feed.pass(t.Context(), from, page, kinds, read)
			require.NoError(t, err)
			synctest.Wait()
			s.write("red")
			s.step()
		})
		events, cursors := s.told()
		require.Equal(t, []string{"put blue 2", "synced", "put red 1"}, events)
		wantForward(t, cursors)
	})
}

// wantForward: whoever goes on from any of the cursors has missed nothing, and is told nothing twice.
func wantForward(t *testing.T, cursors []string) {
	t.Helper()
	var last place
	for _, text := range cursors {
		c, err := parseWatchCursor(text)
		require.NoError(t, err)
		require.GreaterOrEqual(t, c.place.compare(last), 0, "%s comes after %+v", text, last)
		last = c.place
	}
}

// TestCatchingUpDoesNotGoBack: what a watch reads while it comes up to where the feed was is newer than what the feed has told
// it meanwhile. Deletions are told all the same.
func TestCatchingUpDoesNotGoBack(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.subscribe(scope{kind: "widgets"})
		for _, name := range []string{"blue", "gone", "red"} {
			s.write(name)
		}
		s.step()
		s.begin(scope{kind: "widgets"})
		s.told()
		s.write("blue")
		s.write("gone")
		s.step() // the feed is further than the watch was
		sub := s.subscribe(scope{kind: "widgets"})
		s.write("blue")
		s.remove("gone")
		s.step() // and tells of these, while the watch has not caught up
		s.write("gone")
		s.write("blue")
		s.goOn(sub, func() {
			s.step()
			s.write("blue")
			s.step()
		})
		events, cursors := s.told()
		require.Equal(t, []string{"put blue 4", "put gone 4", "gone gone", "put gone 4", "put blue 4", "put blue 5"}, events)
		wantForward(t, cursors)
		require.Empty(t, s.watch.sent, "it is not kept for longer than it is needed")
	})
}

// TestHeartbeatSkipsNothing: a watch that was cut off, because it was too slow, has not been told what the feed has told others since.
func TestHeartbeatSkipsNothing(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.begin(scope{kind: "widgets"})
		sub := s.subscribe(s.watch.scope)
		s.subscribe(s.watch.scope)
		for i := range watcherBehind + 1 {
			s.write(fmt.Sprintf("w-%04d", i))
			s.step()
		}
		var last place
		for e := range sub.events { // which end: it was cut off
			last = e.at
		}
		s.watch.at.place = last
		require.Positive(t, s.feed.at.compare(last))
		require.NoError(t, s.watch.beat(sub))
		events, cursors := s.told()
		require.Equal(t, []string{"heartbeat"}, events[len(events)-1:])
		require.Equal(t, s.watch.at.String(), cursors[len(cursors)-1])
		require.Equal(t, last, s.watch.at.place)
	})
}

// TestQuietWatchesKeepTheirPlace: the heartbeats of a watch of which nothing is told bear cursors, too, that do not grow old. While
// an event waits to be sent, its place is not passed.
func TestQuietWatchesKeepTheirPlace(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.begin(scope{kind: "widgets"})
		sub := s.subscribe(s.watch.scope)
		_, err := s.store.create(t.Context(), objects.Key{Kind: "gadgets", Name: "one"}, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
		require.NoError(t, err)
		s.step()
		before := s.watch.at.place
		require.NoError(t, s.watch.beat(sub))
		quiet := s.watch.at.place
		require.Positive(t, quiet.compare(before))
		require.Equal(t, s.feed.at, quiet)
		s.write("blue")
		s.step()
		require.NoError(t, s.watch.beat(sub))
		require.Equal(t, quiet, s.watch.at.place)
		_, cursors := s.told()
		wantForward(t, cursors)
	})
}

// TestObjectMadeAnewIsNotLost: what was told as gone, because the feed came late to it, is told again, though it was sent before.
func TestObjectMadeAnewIsNotLost(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.subscribe(scope{kind: "widgets"})
		s.write("gone")
		s.step()
		s.begin(scope{kind: "widgets"})
		s.told()
		s.write("gone")
		s.step()
		sub := s.subscribe(scope{kind: "widgets"})
		s.remove("gone")
		s.step()
		s.write("gone")
		s.step()
		s.goOn(sub, func() {})
		events, cursors := s.told()
		require.Equal(t, []string{"put gone 4", "gone gone", "put gone 4"}, events)
		wantForward(t, cursors)
		require.NotEmpty(t, s.watch.sent)
	})
}

// TestWhatWasCaughtUpWithIsNotKept for longer than the feed may be behind: a heartbeat later it is not, also if nothing happens.
func TestWhatWasCaughtUpWithIsNotKept(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.begin(scope{kind: "widgets"})
		s.write("blue")
		require.NoError(t, s.watch.catchUp(t.Context(), nil))
		require.NotEmpty(t, s.watch.sent)
		at := s.watch.at.place
		sub := s.subscribe(s.watch.scope)
		s.goOn(sub, func() { time.Sleep(objects.Heartbeat) })
		require.NotEmpty(t, s.watch.sent, "the feed has not looked since")
		s.goOn(sub, func() {
			s.step()
			time.Sleep(objects.Heartbeat)
		})
		require.Empty(t, s.watch.sent)
		require.GreaterOrEqual(t, s.watch.at.place.compare(at), 0)
	})
}

// TestHeartbeatsGoNotBack where the feed is behind what a watch has read itself.
func TestHeartbeatsGoNotBack(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.subscribe(scope{kind: "widgets"})
		s.begin(scope{kind: "widgets"})
		s.write("blue")
		require.NoError(t, s.watch.catchUp(t.Context(), nil))
		s.told()
		at := s.watch.at.place
		sub := s.subscribe(scope{kind: "widgets"})
		require.NoError(t, s.watch.beat(sub))
		require.Equal(t, at, s.watch.at.place)
		s.goOn(sub, s.step) // which tells of what the watch has come to by itself
		events, _ := s.told()
		require.Equal(t, []string{"heartbeat"}, events)
	})
}

// TestCatchingUpEndsWhereItIsTold, and has told of all before: its own kind, in its own labels, each with the place to go on from.
func TestCatchingUpEndsWhereItIsTold(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		const before, all = 5, 5 + 2*feedPage
		for i := range all {
			s.write(fmt.Sprintf("w-%04d", i))
		}
		_, err := s.store.create(t.Context(), objects.Key{Kind: "gadgets", Name: "one"}, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
		require.NoError(t, err)
		s.begin(scope{kind: "widgets"})
		s.told()
		for _, upTo := range []int{0, 1, before, feedPage - 1, feedPage, feedPage + 1, all - 1, all} {
			s.watch.at.place = place{}
			end := place{change: int64(upTo), kind: behindAll}
			require.NoError(t, s.watch.catchUp(t.Context(), &end))
			events, cursors := s.told()
			require.Len(t, events, upTo)
			for i, text := range cursors {
				c, err := parseWatchCursor(text)
				require.NoError(t, err)
				require.Equal(t, place{int64(i + 1), "widgets", fmt.Sprintf("w-%04d", i)}, c.place)
			}
		}
		s.watch.scope = scope{kind: "gadgets"}
		s.watch.at.place = place{}
		require.NoError(t, s.watch.catchUp(t.Context(), nil))
		events, _ := s.told()
		require.Len(t, events, 1)
		require.Contains(t, events[0], "put one ")
		s.watch.scope = scope{kind: "widgets", labels: map[string]string{"a": "b"}}
		s.watch.at.place = place{change: all - 1, kind: behindAll}
		require.NoError(t, s.watch.catchUp(t.Context(), nil))
		events, _ = s.told()
		require.Equal(t, []string{fmt.Sprintf("gone w-%04d", all-1)}, events)
		require.Equal(t, place{all + 1, "gadgets", "one"}, s.watch.at.place, "also past what does not concern it")
	})
}

// TestRowThatCannotBeReadIsNotSkipped by the feed or by who catches up: it would be told as gone.
func TestRowThatCannotBeReadIsNotSkipped(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.begin(scope{kind: "widgets"})
		s.told()
		w := s.subscribe(scope{kind: "widgets"})
		s.write("blue")
		_, err := s.store.write.ExecContext(t.Context(), `UPDATE objects SET labels = '{'`)
		require.NoError(t, err)
		from, at := s.feed.at, s.watch.at.place
		_, err = s.feed.step(t.Context())
		require.ErrorContains(t, err, "read widgets")
		require.Equal(t, from, s.feed.at)
		require.Empty(t, w.events)
		require.ErrorContains(t, s.watch.catchUp(t.Context(), nil), "read widgets")
		require.ErrorContains(t, s.watch.goOn(t.Context(), &watcher{from: place{change: 1, kind: behindAll}}), "read widgets")
		require.Equal(t, at, s.watch.at.place)
		require.Empty(t, s.out.Body.String())
	})
}
