package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

var errStore = errors.New("the store is away")

// breakSecrets lets nobody find out which fields are secrets, until the test mends it.
func (s *stepped) breakSecrets() (mend func()) {
	refresh := s.store.vault.refresh
	s.store.vault.refresh = func(context.Context) error { return errStore }
	return func() { s.store.vault.refresh = refresh }
}

// fed runs do beside a feed that runs in virtual time, with what it logs.
func fed(t *testing.T, do func(t *testing.T, s *stepped, logged *[]string)) {
	t.Helper()
	byHand(t, func(t *testing.T, s *stepped) {
		var logged []string
		s.feed.log = funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.feed.run(ctx) }()
		synctest.Wait()
		defer func() {
			cancel()
			require.NoError(t, <-ended)
		}()
		do(t, s, &logged)
	})
}

// looks is when the feed looks, from now until after so long.
func (s *stepped) looks(long time.Duration) (all []time.Duration) {
	s.t.Helper()
	steps := func() int64 {
		_, n, _ := s.feed.told(nil)
		return n
	}
	before, began := steps(), time.Now()
	for synctest.Wait(); time.Since(began) <= long; synctest.Wait() {
		now := steps()
		for range now - before {
			all = append(all, time.Since(began))
		}
		before = now
		time.Sleep(time.Millisecond)
	}
	return all
}

const ms = time.Millisecond

// TestFeedLooksSoonAfterChanges and seldom without: at once for what was written through it and for what did not fit in a page, soon
// for what may have been committed beside a change, later and later if there is nothing, and not at all for nobody.
func TestFeedLooksSoonAfterChanges(t *testing.T) {
	fed(t, func(t *testing.T, s *stepped, logged *[]string) {
		s.feed.nudge()
		require.Empty(t, s.looks(2*feedLate), "nobody watches")
		w := s.subscribe(scope{kind: "gadgets"})
		quiet := []time.Duration{0, 20 * ms, 60 * ms, 140 * ms, 300 * ms, 620 * ms, 1120 * ms, 1620 * ms}
		require.Equal(t, quiet, s.looks(2*time.Second))
		s.feed.nudge()
		require.Equal(t, quiet, s.looks(2*time.Second))

		s.looks(feedLate / 2)
		s.feed.nudge()
		synctest.Wait()
		s.write("blue")
		require.Equal(t, []time.Duration{20 * ms, 30 * ms, 50 * ms}, s.looks(60*ms))

		for i := range 2*feedPage + 1 {
			s.write(fmt.Sprint("w-", i))
		}
		s.feed.nudge()
		require.Equal(t, []time.Duration{0, 0, 0, 10 * ms, 30 * ms}, s.looks(50*ms))

		s.feed.unsubscribe(w)
		require.Empty(t, s.looks(2*time.Second))
		s.subscribe(scope{kind: "gadgets"})
		require.Equal(t, quiet[:3], s.looks(100*ms))
		require.Empty(t, *logged)
	})
}

// TestFeedThatFailsGoesOn a second later, where it was.
func TestFeedThatFailsGoesOn(t *testing.T) {
	fed(t, func(t *testing.T, s *stepped, logged *[]string) {
		w := s.subscribe(scope{kind: "widgets"})
		synctest.Wait()
		s.write("blue")
		s.write("red")
		mend := s.breakSecrets()
		require.Equal(t, []time.Duration{20 * ms, 1020 * ms, 2020 * ms}, s.looks(2500*ms))
		require.Len(t, *logged, 3)
		require.Contains(t, (*logged)[0], "the store is away")
		mend()
		statement := s.store.feed.selectChanges
		s.store.feed.selectChanges = "nonsense"
		require.Len(t, s.looks(time.Second), 1)
		require.Len(t, *logged, 4)
		require.Contains(t, (*logged)[3], "read changes")
		require.Empty(t, w.events)
		s.store.feed.selectChanges = statement
		s.looks(time.Second)
		require.Equal(t, "blue", (<-w.events).at.name)
		require.Equal(t, "red", (<-w.events).at.name)
		require.Empty(t, w.events)
		require.Len(t, *logged, 4)
	})
}

// TestFeedThatEndsCutsAllOff, logs nothing, and lets nobody in any more.
func TestFeedThatEndsCutsAllOff(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		var logged []string
		s.feed.log = funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
		watchers := []*watcher{s.subscribe(scope{kind: "widgets"}), s.subscribe(scope{kind: "widgets"}), s.subscribe(scope{kind: "gadgets"})}
		s.write("blue")
		ctx, cancel := context.WithCancel(t.Context())
		s.store.vault.refresh = func(ctx context.Context) error { // in the middle of a step
			cancel()
			return ctx.Err()
		}
		require.NoError(t, s.feed.run(ctx))
		require.Empty(t, logged)
		for _, w := range watchers {
			_, open := <-w.events
			require.False(t, open)
			s.feed.unsubscribe(w) // as each does that notices
		}
		_, err := s.feed.subscribe(t.Context(), scope{kind: "widgets"})
		require.ErrorIs(t, err, errNoFeed)
		require.ErrorIs(t, s.feed.open(), errNoFeed)
	})
}

// TestNudgesAreOneLook, however many come before the feed has time for them, and are not forgotten.
func TestNudgesAreOneLook(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.subscribe(scope{kind: "widgets"})
		for range 3 {
			s.feed.nudge()
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.feed.run(ctx) }()
		looks := s.looks(ms)
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, []time.Duration{0}, looks)
	})
}

// TestWatchersAreBounded, and who could not begin to watch takes no room.
func TestWatchersAreBounded(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		statement := s.store.feed.selectFeed
		s.store.feed.selectFeed = "nonsense"
		_, err := s.feed.subscribe(t.Context(), scope{kind: "widgets"})
		require.ErrorContains(t, err, "read the state of the feed")
		require.Zero(t, s.feed.count())
		s.store.feed.selectFeed = statement
		for range maxWatchers - 1 {
			s.feed.watchers[&watcher{events: make(chan event)}] = struct{}{}
		}
		require.NoError(t, s.feed.open())
		last := s.subscribe(scope{kind: "widgets"})
		require.ErrorIs(t, s.feed.open(), errCrowded)
		_, err = s.feed.subscribe(t.Context(), scope{kind: "widgets"})
		require.ErrorIs(t, err, errCrowded)
		s.feed.unsubscribe(last)
		require.Equal(t, maxWatchers-1, s.feed.count())
		s.subscribe(scope{kind: "widgets"})
	})
}

// TestStalePageTakesNobodyBack: a page that was read for watchers who have left meanwhile is not for those who began later.
func TestStalePageTakesNobodyBack(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		first := s.subscribe(scope{kind: "widgets"})
		s.write("blue")
		from := s.feed.begin()
		page, err := s.store.changesAfter(t.Context(), from, feedPage)
		require.NoError(t, err)
		_, kinds := s.feed.wanted(page)
		s.feed.unsubscribe(first)
		s.write("red")
		second := s.subscribe(scope{kind: "widgets"})
		at := s.feed.at
		_, err = s.feed.pass(t.Context(), from, page, kinds, nil)
		require.NoError(t, err)
		require.Equal(t, at, s.feed.at)
		require.Empty(t, second.events)
	})
}

// scopes are watchers, and what each was told.
func (s *stepped) scopes(all ...scope) (told func() [][]string) {
	s.t.Helper()
	var watchers []*watcher
	for _, sc := range all {
		watchers = append(watchers, s.subscribe(sc))
	}
	return func() [][]string {
		s.step()
		events := make([][]string, len(watchers))
		for i, w := range watchers {
			for len(w.events) > 0 {
				e := <-w.events
				events[i] = append(events[i], e.kind+" "+e.at.kind+"/"+e.at.name)
			}
		}
		return events
	}
}

// TestEachWatcherIsToldWhatConcernsIt: of its kind, of its name, with its labels. What has not these labels any more has gone for it.
func TestEachWatcherIsToldWhatConcernsIt(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		label := func(name string, labels map[string]string) {
			w := objects.Wanted{Spec: []byte(`{}`), Labels: labels}
			_, _, err := s.store.put(t.Context(), objects.Key{Kind: "widgets", Name: name}, w)
			require.NoError(t, err)
		}
		told := s.scopes(
			scope{kind: "widgets"}, scope{kind: "widgets", name: "red"}, scope{kind: "widgets", labels: map[string]string{"a": "b"}},
			scope{kind: "gadgets"}, scope{kind: "gadgets", version: "v9"},
		)
		label("blue", map[string]string{"a": "b"})
		label("red", nil)
		require.Equal(t, [][]string{
			{"put widgets/blue", "put widgets/red"}, {"put widgets/red"}, {"put widgets/blue", "gone widgets/red"}, nil, nil,
		}, told())
		label("blue", nil)
		s.remove("red")
		require.Equal(t, [][]string{
			{"put widgets/blue", "gone widgets/red"}, {"gone widgets/red"}, {"gone widgets/blue", "gone widgets/red"}, nil, nil,
		}, told())
		require.Equal(t, 5, s.feed.count(), "nobody was cut off: what is no version of another kind concerns nobody")
		_, err := s.store.create(t.Context(), objects.Key{Kind: "gadgets", Name: "one"}, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
		require.NoError(t, err)
		require.Equal(t, [][]string{nil, nil, nil, {"put gadgets/one"}, nil}, told())
		require.Equal(t, 4, s.feed.count(), "there is no version v9")
	})
}

// TestNothingIsShownWhileSecretsAreNotKnown: neither by the feed, nor to a watch that catches up, nor in part.
func TestNothingIsShownWhileSecretsAreNotKnown(t *testing.T) {
	byHand(t, func(t *testing.T, s *stepped) {
		s.begin(scope{kind: "widgets"})
		s.told()
		w := s.subscribe(scope{kind: "widgets"})
		s.write("blue")
		mend := s.breakSecrets()
		from := s.feed.at
		_, err := s.feed.step(t.Context())
		require.ErrorIs(t, err, errStore)
		require.Equal(t, from, s.feed.at)
		require.Empty(t, w.events)
		c := change{place{change: 1, kind: "widgets", name: "blue"}}
		o := apiclient.Raw{Kind: "widgets", Name: "blue", Spec: []byte(`{"password":"hunter2"}`)}
		e, err := putEvent(t.Context(), s.store.vault, c.place, o, false)
		require.ErrorIs(t, err, errStore)
		require.Zero(t, e)
		e, err = (&telling{vault: s.store.vault, change: c, object: &o}).event(t.Context(), false)
		require.ErrorIs(t, err, errStore)
		require.Zero(t, e)
		o.Spec = []byte(`{`)
		_, err = putEvent(t.Context(), s.store.vault, c.place, o, true)
		require.Error(t, err)
		require.ErrorIs(t, s.watch.catchUp(t.Context(), nil), errStore)
		events, _ := s.told()
		require.Empty(t, events)
		mend()
		s.step()
		require.Equal(t, "blue", (<-w.events).at.name)
		require.NoError(t, s.watch.catchUp(t.Context(), nil))
		events, _ = s.told()
		require.Equal(t, []string{"put blue 1"}, events)
	})
}

// machine makes one, in version v2.
func (s *stepped) machine(name, spec string) {
	s.t.Helper()
	w := objects.Wanted{Spec: []byte(spec), Admit: func(_ *apiclient.Raw, wanted json.RawMessage) (json.RawMessage, string, error) {
		return wanted, "v2", nil
	}}
	_, err := s.store.create(s.t.Context(), objects.Key{Kind: "machines", Name: name}, w, requestKey{})
	require.NoError(s.t, err)
}

// TestWhatIsConvertedTogetherIsConvertedOnce, for all watchers of a page of changes; what is not is made ready once.
func TestWhatIsConvertedTogetherIsConvertedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := Open(t.Context(), Config{
			Store: "sqlite::memory:", Notify: new(ear).notify, Access: Access{Insecure: true}, Kinds: []Kind{machinesOf(2)},
		})
		require.NoError(t, err)
		defer a.Close()
		a.feed.running = true // without its goroutine
		s := &stepped{t: t, API: a}
		var watchers []*watcher
		for _, version := range []string{"v1", "v1", "v2", "v2"} {
			watchers = append(watchers, s.subscribe(scope{kind: "machines", version: version}))
		}
		watchers[1].secrets = true
		for _, name := range []string{"a", "b"} {
			s.machine(name, `{"cores":8,"zone":"z"}`)
		}
		require.NoError(t, a.store.vault.ready(t.Context()))
		s.step()
		var later []*later
		var jobs []int
		var data [][]byte
		for _, w := range watchers {
			require.Len(t, w.events, 2)
			for range 2 {
				e := <-w.events
				later, jobs, data = append(later, e.later), append(jobs, e.job), append(data, e.data)
			}
		}
		require.Len(t, later[0].jobs, 2)
		require.Equal(t, []int{0, 1, 0, 1, 0, 0, 0, 0}, jobs)
		for _, l := range later[:4] {
			require.Same(t, later[0], l)
		}
		require.Equal(t, []bool{false, false, false, false, true, true, true, true}, present(data))
		require.Same(t, &data[4][0], &data[6][0])
	})
}

func present(all [][]byte) []bool {
	var is []bool
	for data := range slices.Values(all) {
		is = append(is, data != nil)
	}
	return is
}
