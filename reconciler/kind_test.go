package reconciler

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/notify"
)

// dispatcher is a kind whose turns wait, in their first step, until they are let go.
type dispatcher struct {
	*kind
	*replica
	t *testing.T
}

func newDispatcher(t *testing.T, workers int) *dispatcher {
	c := jobs()
	c.Workers = workers
	s := newReplica(t, nil, c)
	s.kinds[0].consumer = new(notify.Consumer)
	return &dispatcher{kind: s.kinds[0], replica: s, t: t}
}

// holding has the turns of objects wait.
func (d *dispatcher) holding(names ...string) {
	for _, name := range names {
		d.hold[name] = make(chan struct{})
	}
}

// letGo has the turns of an object end, those that have begun and those to come, and waits until nothing moves.
func (d *dispatcher) letGo(name string) {
	d.replica.mu.Lock()
	held := d.hold[name]
	delete(d.hold, name)
	d.replica.mu.Unlock()
	close(held)
	synctest.Wait()
}

func (d *dispatcher) notify(name string) placement {
	got := d.place(d.t.Context(), &notify.Delivery{Kind: "jobs", Name: name, Reason: "changed"})
	synctest.Wait()
	return got
}

// begin is a turn that a worker of the test's has taken up, as startLocked has one do.
func (d *dispatcher) begin(name string) *turn {
	d.kind.mu.Lock()
	defer d.kind.mu.Unlock()
	t := &turn{name: name}
	d.busy++
	d.beginLocked(t)
	return t
}

// idle asserts that nothing is left of any turn.
func (d *dispatcher) idle() {
	d.t.Helper()
	require.Zero(d.t, d.busy, "busy workers")
	require.Zero(d.t, d.calling, "calls")
	require.Zero(d.t, d.detached, "turns without a worker")
	require.Empty(d.t, d.kind.running)
	require.Empty(d.t, d.waiting)
	require.Empty(d.t, d.ready)
	require.Equal(d.t, d.Workers, d.room())
}

func TestNotificationsAreWorkedOnByAsManyWorkersAsThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 2)
		d.holding("a", "b", "c")
		require.Equal(t, 2, d.room())
		require.Equal(t, placed, d.notify("a"))
		require.Equal(t, 1, d.room())
		require.Equal(t, placed, d.notify("b"))
		require.Equal(t, 0, d.room())
		require.Equal(t, nowhere, d.notify("c"), "another replica may have a free worker")
		require.Equal(t, []string{"a", "b"}, names(d.events()))
		require.Equal(t, []string{"jobs/a", "jobs/b"}, d.atWork())
		d.letGo("a")
		require.Equal(t, []string{"jobs/b"}, d.atWork())
		require.Equal(t, placed, d.notify("c"))
		d.letGo("b")
		d.letGo("c")
		require.Equal(t, []string{"c"}, names(d.events()))
		d.idle()
	})
}

// Two turns of an object at once would both read it; what comes while one runs must not be lost to it.
func TestNotificationOfAnObjectAtWorkWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 3)
		d.holding("a")
		d.notify("a")
		require.Equal(t, behind, d.notify("a"))
		require.Equal(t, placed, d.notify("a"), "it joins the one that waits")
		require.Len(t, d.waiting["a"].deliveries, 2)
		require.Len(t, d.events(), 1, "one turn")
		require.Equal(t, 2, d.room(), "what waits holds no worker")
		d.letGo("a")
		require.Len(t, d.events(), 1, "one more turn for both")
		d.idle()
	})
}

func TestContendedNotificationSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1)
		d.begin("a")
		d.dispatch(t.Context(), &notify.Delivery{Kind: "jobs", Name: "a", Reason: "changed"})
		got := d.events()
		require.Len(t, got, 1)
		require.Equal(t, StepContended, got[0].Step)
		require.Equal(t, []string{"jobs", "a", "changed"}, []string{got[0].Kind, got[0].Name, got[0].Reason})
	})
}

// A turn that waits for a lock goes on at the release: at once if a worker is free, else with the next one that is.
func TestTurnGoesOnWhenItsLockIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1)
		a := d.begin("a")
		require.Nil(t, d.next(t.Context(), a, true))
		require.Equal(t, 1, d.room(), "waiting for a lock holds no worker")
		require.Empty(t, d.kind.running)

		d.holding("b", "c")
		d.notify("b")
		d.events()
		d.released(t.Context(), a)
		d.released(t.Context(), a)
		synctest.Wait()
		require.Equal(t, []*turn{a}, d.ready, "once, however often it is told")
		require.Empty(t, d.events(), "no worker is free")
		require.Equal(t, 0, d.room())
		require.Equal(t, nowhere, d.notify("c"))
		d.letGo("b")
		require.Equal(t, []string{"a"}, names(d.events()), "b's worker takes it up")
		require.False(t, a.queued)
		d.idle()

		waits := d.begin("e")
		d.next(t.Context(), waits, true)
		d.released(t.Context(), waits)
		synctest.Wait()
		require.Equal(t, []string{"e"}, names(d.events()), "a free worker takes it up at once")
		d.released(t.Context(), waits)
		synctest.Wait()
		require.Empty(t, d.events(), "it does not wait any more")
		d.idle()
	})
}

// The lock may be released between the try that failed and the wait.
func TestReleaseDuringTheTryIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1)
		a := d.begin("a")
		d.released(t.Context(), a)
		require.Same(t, a, d.next(t.Context(), a, true), "it is tried again by the same worker")
		require.Contains(t, d.kind.running, "a")
		require.False(t, a.hint)
		require.Nil(t, d.next(t.Context(), a, true), "once for each release")
		require.Contains(t, d.waiting, "a")
	})
}

// What came for an object while its lock was tried is worked on with what waits for the lock.
func TestTurnThatWaitsTakesLaterNotificationsAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1)
		a := d.begin("a")
		a.deliveries = []*notify.Delivery{{Name: "a", Reason: "first"}}
		require.Equal(t, behind, d.notify("a"))
		require.Nil(t, d.next(t.Context(), a, true), "its lock is held")
		require.Same(t, a, d.waiting["a"])
		require.Len(t, a.deliveries, 2)
		require.Equal(t, "first", a.deliveries[0].Reason)
		require.Equal(t, placed, d.notify("a"))
		require.Len(t, a.deliveries, 3)
		d.released(t.Context(), a)
		synctest.Wait()
		require.Len(t, d.events(), 1)
		d.idle()
	})
}

// Each waiting turn costs memory and a watch, so there is a bound; above it, the broker delivers again.
func TestTurnsThatWaitForLocksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1)
		fill := func(n int) {
			clear(d.waiting)
			for i := range n {
				d.waiting[fmt.Sprint(i)] = &turn{name: fmt.Sprint(i)}
			}
		}
		contended := func() (forgotten bool) {
			a := d.begin("a")
			a.unwatch = func() { forgotten = true }
			require.Nil(t, d.next(t.Context(), a, true))
			require.Equal(t, forgotten, a.unwatch == nil)
			return forgotten
		}
		fill(maxWaiting - 1)
		require.False(t, contended())
		require.Contains(t, d.waiting, "a")
		fill(maxWaiting)
		require.True(t, contended())
		require.NotContains(t, d.waiting, "a")
		require.Zero(t, d.busy)
		fill(maxWaiting - 1)
		a := d.begin("a")
		d.waiting["a"] = &turn{name: "a"}
		a.unwatch = func() { t.Error("it takes the place of one that waits") }
		require.Nil(t, d.next(t.Context(), a, true))
		require.Len(t, d.waiting, maxWaiting)
	})
}

func TestStopGivesBackWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1)
		var unwatched []string
		contended := func(name string) *turn {
			a := d.begin(name)
			a.unwatch = func() { unwatched = append(unwatched, name) }
			d.next(t.Context(), a, true)
			return a
		}
		d.holding("x")
		d.notify("x")
		waits := contended("a")
		d.released(t.Context(), contended("b"))
		require.Len(t, d.ready, 1)
		running := d.begin("c")
		running.unwatch = func() { unwatched = append(unwatched, "c") }
		d.stop()
		require.ElementsMatch(t, []string{"a", "b"}, unwatched)
		require.Nil(t, waits.unwatch)
		require.Empty(t, d.waiting)
		require.Empty(t, d.ready)

		d.events()
		require.Equal(t, nowhere, d.notify("d"))
		require.Equal(t, nowhere, d.notify("x"), "also for an object at work: nobody would take it up")
		d.released(t.Context(), waits)
		require.Nil(t, d.next(t.Context(), running, true))
		require.Equal(t, "c", unwatched[2], "what finds its lock held now is given back")
		d.letGo("x")
		require.Empty(t, d.events(), "nothing begins")
		require.Zero(t, d.busy)
		require.Empty(t, d.waiting)
		require.Empty(t, d.ready)
		require.Empty(t, d.kind.running)
	})
}

// What becomes ready while a turn ends during a stop is given back, and the worker ends.
func TestStopLeavesNoWorkerBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 2)
		a, given := d.begin("a"), 0
		d.stopping = true
		for _, name := range []string{"b", "c", "d"} {
			w := &turn{name: name, unwatch: func() { given++ }}
			d.waiting[name] = w
			d.readyLocked(w)
		}
		d.waiting["b"].unwatch = nil // it has not tried its lock
		require.Nil(t, d.next(t.Context(), a, false))
		require.Equal(t, 2, given)
		require.Equal(t, nowhere, d.notify("e"), "a free worker takes nothing up")
		d.idle()
	})
}

// A function that ignores its deadline, or a result that cannot be stored, must not keep other objects waiting.
func TestDetachedTurnGivesItsWorkerToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1)
		a := d.begin("a")
		d.mark(a, true)
		b := d.begin("b")
		d.busy = 1 // b has found its lock held, and waits for a worker
		require.Nil(t, d.next(t.Context(), b, true))
		d.busy = 1
		d.released(t.Context(), b)
		require.Len(t, d.ready, 1)

		d.holding("b")
		require.True(t, d.detach(t.Context(), a))
		synctest.Wait()
		require.Equal(t, []string{"b"}, names(d.events()), "its worker takes up b")
		require.Equal(t, []int{1, 1, 0}, []int{d.detached, d.busy, d.calling})
		require.True(t, d.detach(t.Context(), a), "again")
		require.Equal(t, []int{1, 1, 0}, []int{d.detached, d.busy, d.calling})
		require.Equal(t, []string{"jobs/a", "jobs/b"}, d.atWork(), "its object is not free")
		require.Equal(t, behind, d.notify("a"))
		d.mark(a, true)
		d.mark(a, false)
		require.Zero(t, d.calling, "a call without a worker does not count among the workers' calls")

		require.Nil(t, d.next(t.Context(), a, false), "it has no worker that could take up another turn")
		synctest.Wait()
		require.Zero(t, d.detached)
		require.Len(t, d.ready, 1, "what came for its object waits for b's worker")
		d.letGo("b")
		require.Equal(t, []string{"a"}, names(d.events()))
		d.idle()
	})
}

// When a detached turn ends, a worker may be free for what came for its object meanwhile: nobody else would start it.
func TestEndOfADetachedTurnStartsWhatWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1)
		a := d.begin("a")
		require.True(t, d.detach(t.Context(), a))
		require.Equal(t, 1, d.room())
		d.notify("a")
		d.events()
		require.Nil(t, d.next(t.Context(), a, false))
		synctest.Wait()
		require.Equal(t, []string{"a"}, names(d.events()))
		require.True(t, d.detach(t.Context(), a))

		b := d.begin("b")
		require.Nil(t, d.next(t.Context(), b, false))
		require.True(t, d.detach(t.Context(), b), "its timer may fire when it is over")
		d.idle()
	})
}

// Each detached turn is a goroutine with a lock: they are bounded.
func TestDetachedTurnsAreBounded(t *testing.T) {
	for workers, bound := range map[int]int{1: maxDetached, maxDetached: maxDetached, 200: 200} {
		synctest.Test(t, func(t *testing.T) {
			d := newDispatcher(t, workers)
			turns := make([]*turn, bound+1)
			for i := range turns {
				turns[i] = d.begin(fmt.Sprint(i))
				require.Equal(t, i < bound, d.detach(t.Context(), turns[i]), "%d of %d workers", i, workers)
			}
			require.Equal(t, 1, d.busy, "the last one keeps its worker")
			require.True(t, slices.IsSorted(d.atWork()), "for people")
			d.next(t.Context(), turns[0], false)
			require.True(t, d.detach(t.Context(), turns[bound]))
			for _, a := range turns[1:] {
				d.next(t.Context(), a, false)
			}
			d.idle()
		})
	}
}

// The probe of an API that is out of reach waits for the workers that talk to it, and not for functions that take hours.
func TestGateCountsOnlyWorkersOutsideOfFunctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 4)
		a := d.begin("a")
		d.mark(a, true)
		d.mark(a, true)
		require.Equal(t, 1, d.calling, "once")
		require.Equal(t, 3, d.room())
		d.r.gate.failures = gateAfter
		require.Equal(t, 1, d.room(), "one probe")
		b := d.begin("b")
		require.Equal(t, 0, d.room(), "which is b")
		d.mark(b, true)
		require.Equal(t, 1, d.room())
		d.mark(b, false)
		require.Equal(t, 0, d.room())
		d.r.gate.failures = 0
		require.Equal(t, 2, d.room())
		d.next(t.Context(), b, false)
		d.mark(a, false)
		d.next(t.Context(), a, false)
		d.idle()
	})
}

// More turns may be ready than there are workers.
func TestRoomIsNeverNegative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1)
		d.begin("a")
		d.ready = []*turn{{name: "b"}, {name: "c"}}
		require.Equal(t, 0, d.room())
	})
}

// Turns that wait for a worker get one in the order in which they became ready.
func TestReadyTurnsGoFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 2)
		d.holding("x", "y", "a", "b", "c")
		d.notify("x")
		d.notify("y")
		for _, name := range []string{"a", "b", "c"} {
			w := &turn{name: name}
			d.waiting[name] = w
			d.released(t.Context(), w)
		}
		d.events()
		d.letGo("x")
		require.Equal(t, []string{"a"}, names(d.events()))
		d.letGo("y")
		require.Equal(t, []string{"b"}, names(d.events()))
		d.letGo("a")
		require.Equal(t, []string{"c"}, names(d.events()))
		d.letGo("b")
		d.letGo("c")
		d.idle()
	})
}

// Only turns of which somebody else holds the lock are looked after: what is queued here goes on by itself.
func TestOnlyTurnsThatWaitForOthersAreLookedAfter(t *testing.T) {
	d := newDispatcher(t, 1)
	elsewhere := &turn{name: "a", unwatch: func() {}, deliveries: []*notify.Delivery{{Name: "a"}, {Name: "a"}}}
	d.waiting["a"] = elsewhere
	d.waiting["b"] = &turn{name: "b", unwatch: func() {}, queued: true, deliveries: []*notify.Delivery{{Name: "b"}}}
	d.waiting["c"] = &turn{name: "c", deliveries: []*notify.Delivery{{Name: "c"}}}
	deliveries, turns := d.waitingTurns()
	require.Len(t, deliveries, 4, "all are kept from being delivered to others")
	require.Equal(t, []*turn{elsewhere}, turns)
}

// Whether a lock is held is asked only if somebody waits, and without an answer nothing is taken for free.
func TestLocksAreLookedAtOnlyIfSomebodyWaits(t *testing.T) {
	d := newDispatcher(t, 1)
	require.Empty(t, d.freed(t.Context(), nil))
	require.Empty(t, d.events())
	waits := []*turn{{name: "a"}}
	require.Empty(t, d.freed(t.Context(), waits), "there is no connection")
	require.Equal(t, "list the locks that are held", d.events()[0].Reason)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Empty(t, d.freed(ctx, waits))
	require.Empty(t, d.events(), "a stop is no trouble")
}

func TestNothingIsPulledWithoutALockSession(t *testing.T) {
	d := newDispatcher(t, 4)
	require.Equal(t, 4, d.room())
	require.Zero(t, d.free())
}

// A stream that was made again has lost what was in it: it is looked after, and what was lost is searched for.
func TestChangedStreamIsRepaired(t *testing.T) {
	d := newDispatcher(t, 1)
	d.changed("it was deleted")
	d.changed("it was deleted")
	require.Len(t, d.missing, 1)
	got := d.events()[0]
	require.Equal(t, []any{StepTrouble, "jobs", "look at the stream"}, []any{got.Step, got.Kind, got.Reason})
	require.EqualError(t, got.Err, "it was deleted")
}

// A search that is asked for while another runs follows it; more are not needed.
func TestSearchIsAskedForOnce(t *testing.T) {
	d := newDispatcher(t, 1)
	d.resyncSoon()
	d.resyncSoon()
	require.Len(t, d.search, 1)
}
