package api

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// rows counts the rows of a store, and those that are dirty.
func rows(t *testing.T, a *API) (all, dirty int) {
	t.Helper()
	err := a.store.read.QueryRowContext(t.Context(),
		`SELECT count(*), coalesce(sum(CASE WHEN notified_revision < notify_revision THEN 1 ELSE 0 END), 0) FROM objects`).Scan(&all, &dirty)
	require.NoError(t, err)
	return all, dirty
}

// TestWritesDuringAnOutageAreNotifiedAfterIt is R1, and for the deletions R2 and R6: also when the API is restarted while
// the broker is down.
func TestWritesDuringAnOutageAreNotifiedAfterIt(t *testing.T) {
	store := newStore(t)
	e := &ear{fail: down}
	a := open(t, store, e.notify)
	stop := running(t, a)
	c := widgets(t, a)
	var want []string
	for i := range 60 {
		name := fmt.Sprintf("w-%02d", i)
		_, err := c.Create(t.Context(), name, doc{})
		require.NoError(t, err)
		switch i % 3 {
		case 0:
			want = append(want, "widgets/"+name+" created")
		case 1:
			_, err = c.Put(t.Context(), name, doc{"size": 1})
			want = append(want, "widgets/"+name+" changed")
		case 2:
			_, err = c.Delete(t.Context(), name)
			want = append(want, "widgets/"+name+" deleted")
		}
		require.NoError(t, err)
	}
	require.ErrorIs(t, a.Flush(t.Context()), errDown)
	require.Empty(t, e.drain())
	all, dirty := rows(t, a)
	require.Equal(t, []int{60, 60}, []int{all, dirty})

	for _, restart := range []bool{true, false} {
		if restart {
			stop()
			require.NoError(t, a.Close())
			a = open(t, store, e.notify)
			running(t, a)
		}
		e.setFail(nil)
		require.NoError(t, a.Flush(t.Context()))
		got := e.drain()
		slices.Sort(got)
		require.Equal(t, want, slices.Compact(got))
		all, dirty = rows(t, a)
		require.Equal(t, []int{40, 0}, []int{all, dirty}, "tombstones have done their work")

		// Once more, on the API that now runs: what changes is told, without anybody asking for it.
		e.setFail(down)
		c, want = widgets(t, a), nil
		for i := range 10 {
			name := fmt.Sprintf("w-%02d", i*3)
			_, err := c.Put(t.Context(), name, doc{"restart": restart})
			require.NoError(t, err)
			want = append(want, "widgets/"+name+" changed")
		}
	}
}

// TestRelayNeedsNobodyToAsk: a write wakes it, and so does a broker that comes back.
func TestRelayNeedsNobodyToAsk(t *testing.T) {
	heard := make(chan string)
	var outage atomic.Bool
	failed := make(chan struct{}, 1)
	a := open(t, newStore(t), func(ctx context.Context, _, name, reason string) error {
		if outage.Load() {
			select {
			case failed <- struct{}{}:
			default:
			}
			return errDown
		}
		select {
		case heard <- name + " " + reason:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	a.relay.poll = time.Hour
	running(t, a)
	c := widgets(t, a)
	_, err := c.Create(t.Context(), "blue", doc{})
	require.NoError(t, err)
	require.Equal(t, "blue created", <-heard)
	outage.Store(true)
	_, err = c.Retry(t.Context(), "blue")
	require.NoError(t, err)
	<-failed
	outage.Store(false)
	require.Equal(t, "blue retry", <-heard)
}

// TestChangeDuringANotificationIsNotifiedToo: the mark of the earlier notification must not cover the later change.
func TestChangeDuringANotificationIsNotifiedToo(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var heard []string
	a := open(t, newStore(t), func(_ context.Context, _, _, reason string) error {
		if reason == "created" {
			close(begun)
			<-finish
		}
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, reason)
		return nil
	})
	c := widgets(t, a)
	_, err := c.Create(t.Context(), "blue", doc{})
	require.NoError(t, err)
	flushed := make(chan error)
	go func() { flushed <- a.Flush(context.Background()) }()
	<-begun
	_, err = c.Delete(t.Context(), "blue")
	require.NoError(t, err)
	close(finish)
	require.NoError(t, <-flushed)
	_, dirty := rows(t, a)
	require.Equal(t, 1, dirty)
	require.NoError(t, a.Flush(t.Context()))
	require.Equal(t, []string{"created", "deleted"}, heard)
	all, _ := rows(t, a)
	require.Zero(t, all)
}

// TestObjectRemovedByItsControllerBeforeItIsNotified: the one way in which a row goes without a notification of its own.
func TestObjectRemovedByItsControllerBeforeItIsNotified(t *testing.T) {
	e := &ear{fail: down}
	a := open(t, newStore(t), e.notify)
	c := widgets(t, a)
	o, err := c.Create(t.Context(), "blue", doc{})
	require.NoError(t, err)
	_, err = c.PatchStatus(t.Context(), "blue", apiclient.StatusPatch{UID: o.UID, Fence: 1, AddFinalizers: []string{"f"}})
	require.NoError(t, err)
	_, err = c.Delete(t.Context(), "blue")
	require.NoError(t, err)
	o, err = c.PatchStatus(t.Context(), "blue", apiclient.StatusPatch{UID: o.UID, Fence: 1, RemoveFinalizers: []string{"f"}})
	require.NoError(t, err)
	require.Nil(t, o)
	all, dirty := rows(t, a)
	require.Equal(t, []int{1, 1}, []int{all, dirty})
	e.setFail(nil)
	require.NoError(t, a.Flush(t.Context()))
	require.Equal(t, []string{"widgets/blue deleted"}, e.drain())
	all, _ = rows(t, a)
	require.Zero(t, all)
}

// TestTwoAPIsOnOneStoreLoseNothing: both take writes to the same objects and both relay, to a broker that refuses every
// third notification. Whoever is notified looks at the object, as a controller does; in the end it must have seen the last
// generation of each.
func TestTwoAPIsOnOneStoreLoseNothing(t *testing.T) {
	store := newStore(t)
	var calls atomic.Int64
	var mu sync.Mutex
	seen := map[string]int64{}
	reader := open(t, store, new(ear).notify)
	notify := func(ctx context.Context, kind, name, _ string) error {
		if calls.Add(1)%3 == 0 {
			return errDown
		}
		o, err := reader.store.get(ctx, objects.Key{Kind: kind, Name: name})
		mu.Lock()
		defer mu.Unlock()
		seen[name] = max(seen[name], o.Generation)
		return err
	}
	a, b := open(t, store, notify), open(t, store, notify)
	running(t, a)
	running(t, b)
	const objects, changes = 10, 20
	var wg sync.WaitGroup
	for writer, c := range []*apiclient.Client[doc, doc]{widgets(t, a), widgets(t, b)} {
		wg.Go(func() {
			for n := range objects * changes {
				_, err := c.Put(t.Context(), fmt.Sprintf("w-%d", n%objects), doc{"writer": writer, "n": n})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for dirty := 1; dirty > 0; _, dirty = rows(t, a) {
		_, _ = a.Flush(t.Context()), b.Flush(t.Context())
	}
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, seen, objects)
	for name, generation := range seen {
		require.EqualValues(t, 2*changes, generation, name)
	}
}

// TestOutageIsNotAStorm: P6. However many rows are dirty, a sweep gives up after a few failures.
func TestOutageIsNotAStorm(t *testing.T) {
	e := &ear{fail: down}
	a := open(t, newStore(t), e.notify)
	create(t, a, 600)
	require.ErrorIs(t, a.relay.sweep(t.Context()), errOutage)
	require.LessOrEqual(t, e.tries, giveUpAfter+inFlight)
	e.setFail(nil)
	require.NoError(t, a.relay.sweep(t.Context()))
	require.Len(t, e.drain(), 600)
}

// TestBadObjectsDelayNoOthers: P4 for the relay, where nobody nudges it: a block of objects that cannot be notified, longer
// than what ends a batch, stands before one that can.
func TestBadObjectsDelayNoOthers(t *testing.T) {
	e := &ear{fail: func(name string) error {
		if name < "w-0100" {
			return errDown
		}
		return nil
	}}
	a := open(t, newStore(t), e.notify)
	create(t, a, 101)
	for range 100/giveUpAfter + 1 {
		require.Error(t, a.relay.sweep(t.Context()))
	}
	require.Equal(t, []string{"widgets/w-0100 created"}, e.drain())
	_, dirty := rows(t, a)
	require.Equal(t, 100, dirty)
}

func TestNotificationsAreConcurrentAndBounded(t *testing.T) {
	var now, most atomic.Int64
	full := make(chan struct{})
	var once sync.Once
	a := open(t, newStore(t), func(ctx context.Context, _, _, _ string) error {
		n := now.Add(1)
		defer now.Add(-1)
		most.Store(max(most.Load(), n))
		if n == inFlight {
			once.Do(func() { close(full) })
		}
		select {
		case <-full:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	create(t, a, 300)
	require.NoError(t, a.Flush(t.Context()))
	require.Equal(t, int64(inFlight), most.Load())
}

// TestStopKeepsWhatWasNotified: the notification that is out when the relay is stopped is waited for, and marked.
func TestStopKeepsWhatWasNotified(t *testing.T) {
	publishing := make(chan struct{})
	a := open(t, newStore(t), func(ctx context.Context, _, _, _ string) error {
		close(publishing)
		<-ctx.Done() // the broker's answer comes in after the stop was asked for
		return nil
	})
	create(t, a, 1)
	stop := running(t, a)
	<-publishing
	stop()
	_, dirty := rows(t, a)
	require.Zero(t, dirty)
}

// TestRelayFindsWhatNobodyNudgedItAbout: the writes of an API that died before it relayed them.
func TestRelayFindsWhatNobodyNudgedItAbout(t *testing.T) {
	store := newStore(t)
	create(t, open(t, store, new(ear).notify), 1)
	heard := make(chan string, 1)
	a := open(t, store, func(_ context.Context, _, name, _ string) error {
		heard <- name
		return nil
	})
	a.relay.poll = time.Millisecond
	running(t, a)
	require.Equal(t, "w-0000", <-heard)
	_, err := a.store.create(t.Context(), objects.Key{Kind: "widgets", Name: "late"}, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
	require.NoError(t, err)
	require.Equal(t, "late", <-heard)
}

// create stores objects named w-0000 and so on, past HTTP and past the relay's nudges.
func create(t *testing.T, a *API, n int) {
	t.Helper()
	for i := range n {
		_, err := a.store.create(t.Context(), objects.Key{Kind: "widgets", Name: fmt.Sprintf("w-%04d", i)}, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
		require.NoError(t, err)
	}
}
