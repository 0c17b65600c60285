package api

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// seen is what a watch has told of objects.
func seen(e apiclient.Event[doc, doc]) string {
	if e.Object == nil {
		return string(e.Type) + " " + e.Name
	}
	return fmt.Sprintf("%s %s %s %v", e.Type, e.Name, e.Object.Version, e.Object.Spec)
}

// observe watches until the test ends.
func observe(t *testing.T, c *apiclient.Client[doc, doc], opts ...apiclient.WatchOption) <-chan string {
	t.Helper()
	events := make(chan string, 1000)
	go func() {
		defer close(events)
		for e, err := range c.Watch(t.Context(), opts...) {
			if err != nil {
				if t.Context().Err() == nil {
					t.Error(err)
				}
				return
			}
			events <- seen(e)
		}
	}()
	return events
}

func wantEvents(t *testing.T, events <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		require.Equal(t, w, <-events)
	}
}

// TestWatchesAreInTheVersionAskedFor: what there is, what happens, and what happened while a watch was away; each change is
// converted once for all watches.
func TestWatchesAreInTheVersionAskedFor(t *testing.T) {
	v, h := hooked(t, newStore(t))
	running(t, v.API)
	require.Eventually(t, func() bool { return v.feed.open() == nil }, time.Minute, time.Millisecond)
	old, now := v.of("widgets").At("v1"), v.of("widgets")
	first, second := observe(t, old), observe(t, old, apiclient.WatchNamed("d"))
	third, stored := observe(t, now), observe(t, now.At(apiclient.AsStored))
	wantEvents(t, first, "reset ", "put a v1 map[size:0]", "put b v1 map[size:1]", "put c v1 map[size:2]", "put d v1 map[size:3]", "synced ")
	wantEvents(t, second, "reset ", "put d v1 map[size:3]", "synced ")
	wantEvents(t, third, "reset ", "put a v2 map[count:0]", "put b v2 map[count:1]", "put c v2 map[count:2]", "put d v2 map[count:3 keep:me]", "synced ")
	wantEvents(t, stored, "reset ", "put a v1 map[size:0]", "put b v1 map[size:1]", "put c v1 map[size:2]", "put d v2 map[count:3 keep:me]", "synced ")
	require.Eventually(t, func() bool { return v.feed.count() == 4 }, time.Minute, time.Millisecond)

	h.called()
	_, err := now.Put(t.Context(), "d", doc{"count": 5})
	require.NoError(t, err)
	wantEvents(t, first, "put d v1 map[size:5]")
	wantEvents(t, second, "put d v1 map[size:5]")
	wantEvents(t, third, "put d v2 map[count:5]")
	wantEvents(t, stored, "put d v2 map[count:5]")
	require.Equal(t, []string{"widgets v2>v1 1"}, h.called(), "once for both")
	_, err = old.At(apiclient.AsStored).Pause(t.Context(), "a")
	require.NoError(t, err)
	wantEvents(t, third, "put a v2 map[count:0]")
	wantEvents(t, first, "put a v1 map[size:0]")
	wantEvents(t, stored, "put a v1 map[size:0]")
	_, err = now.Delete(t.Context(), "d")
	require.NoError(t, err)
	wantEvents(t, first, "gone d")
	wantEvents(t, second, "gone d")

	h.setAnswer(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusInternalServerError) })
	_, err = now.Put(t.Context(), "d", doc{"count": 7})
	require.NoError(t, err)
	_, err = v.of("gadgets").Create(t.Context(), "one", doc{})
	require.NoError(t, err)
	wantEvents(t, third, "gone d", "put d v2 map[count:7]")
	wantEvents(t, stored, "gone d", "put d v2 map[count:7]")
	wantEvents(t, observe(t, v.of("gadgets")), "reset ", "put one  map[]", "synced ")
	require.Empty(t, first, "it waits for the hook")
	h.setAnswer(nil)
	wantEvents(t, first, "put d v1 map[size:7]")
	wantEvents(t, second, "put d v1 map[size:7]")
}

// TestDroppedVersionEndsItsWatches, and no other.
func TestDroppedVersionEndsItsWatches(t *testing.T) {
	v, _ := hooked(t, newStore(t))
	running(t, v.API)
	require.Eventually(t, func() bool { return v.feed.open() == nil }, time.Minute, time.Millisecond)
	now := v.of("widgets")
	_, err := v.kindsClient().Upgrade(t.Context(), "widgets", nil)
	require.NoError(t, err)
	ended := make(chan error, 1)
	synced := make(chan struct{})
	go func() {
		for e, err := range now.At("v1").Watch(t.Context()) {
			if e.Type == apiclient.EventSynced {
				close(synced)
			}
			if err != nil {
				ended <- err
			}
		}
	}()
	<-synced
	events := observe(t, now)
	wantEvents(t, events, "reset ", "put a v2 map[count:0]", "put b v2 map[count:1]", "put c v2 map[count:2]", "put d v2 map[count:3 keep:me]", "synced ")
	require.Eventually(t, func() bool { return v.feed.count() == 2 }, time.Minute, time.Millisecond)
	k, err := v.kindsClient().Get(t.Context(), "widgets")
	require.NoError(t, err)
	k.Versions = nil
	_, err = v.kindsClient().Define(t.Context(), *k)
	require.NoError(t, err)
	_, err = now.Put(t.Context(), "a", doc{"count": 9})
	require.NoError(t, err)
	wantEvents(t, events, "put a v2 map[count:9]")
	require.ErrorContains(t, <-ended, "want one of v2")
}
