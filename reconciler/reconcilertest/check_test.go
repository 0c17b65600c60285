package reconcilertest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// at is a time of the histories below, in seconds.
func at(seconds float64) time.Time {
	return time.Unix(1_000_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func call(replica string, fence uint64, from, to float64) RunOf {
	r := RunOf{Replica: replica, Kind: "widgets", Name: "x", Fence: fence, Generation: 2, Start: at(from)}
	if to > 0 {
		r.End = at(to)
	}
	return r
}

func read(replica string, when float64, generation int64) access {
	return access{at: at(when), replica: replica, method: http.MethodGet, object: "widgets/x", uid: "u", generation: generation}
}

func wrote(when float64) access {
	return access{at: at(when), method: http.MethodPut, object: "widgets/x", uid: "u"}
}

func stored(when float64, fence uint64, body string) access {
	return access{at: at(when), replica: "a", method: http.MethodPatch, object: "widgets/x", uid: "u", status: true, fence: fence, body: body}
}

func ready() *apiclient.Raw {
	o := &apiclient.Raw{Kind: "widgets", Name: "x", UID: "u", Generation: 2, ChangedAt: at(10)}
	o.Reconciliation = apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 2}
	return o
}

func TestUnconverged(t *testing.T) {
	seen := history{accesses: []access{read("a", 11, 2)}, runs: []RunOf{call("a", 1, 12, 13)}}
	for name, c := range map[string]struct {
		object func(o *apiclient.Raw)
		h      history
		want   string
	}{
		"it ran on what it read after the change": {h: seen},
		"a change that no run has read": {
			h:    history{accesses: []access{read("a", 9, 1)}, runs: []RunOf{call("a", 1, 12, 13)}},
			want: "no call of its function succeeded that began with its generation 2",
		},
		"a run of an older generation": {
			h:    history{accesses: seen.accesses, runs: []RunOf{{Replica: "a", Kind: "widgets", Name: "x", Generation: 1, Start: at(12), End: at(13)}}},
			want: "no call",
		},
		"a run that failed": {
			h:    history{accesses: seen.accesses, runs: []RunOf{{Replica: "a", Kind: "widgets", Name: "x", Generation: 2, Start: at(12), End: at(13), Err: errors.New("e")}}},
			want: "no call",
		},
		"a run that has not ended":      {h: history{accesses: seen.accesses, runs: []RunOf{call("a", 1, 12, 0)}}, want: "no call"},
		"a read of another replica":     {h: history{accesses: []access{read("b", 11, 2)}, runs: seen.runs}, want: "no call"},
		"a read after the run":          {h: history{accesses: []access{read("a", 12.5, 2)}, runs: seen.runs}, want: "no call"},
		"a read of an earlier namesake": {object: func(o *apiclient.Raw) { o.UID = "another" }, h: seen, want: "no call"},
		"a generation that was not observed": {
			object: func(o *apiclient.Raw) { o.Reconciliation.ObservedGeneration = 1 }, h: seen, want: "generation 1 of 2 was reconciled",
		},
		"it waits":     {object: func(o *apiclient.Raw) { o.Reconciliation.State = apiclient.StateRetrying }, h: seen, want: "has not converged: it is Retrying"},
		"it is paused": {object: func(o *apiclient.Raw) { o.Paused = true }},
		"it stalled":   {object: func(o *apiclient.Raw) { o.Reconciliation.State = apiclient.StateStalled }},
	} {
		t.Run(name, func(t *testing.T) {
			o := ready()
			if c.object != nil {
				c.object(o)
			}
			expect(t, c.want, unconverged(o, &c.h))
		})
	}
}

func TestOverlapping(t *testing.T) {
	for name, c := range map[string]struct {
		runs []RunOf
		want string
	}{
		"one after the other":            {runs: []RunOf{call("a", 1, 1, 2), call("b", 2, 2, 3)}},
		"two at once":                    {runs: []RunOf{call("a", 1, 1, 3), call("b", 2, 2, 4)}, want: "two writers: a runs on widgets/x"},
		"one that never ends":            {runs: []RunOf{call("a", 1, 1, 0), call("b", 2, 2, 4)}, want: "two writers"},
		"a fence that does not rise":     {runs: []RunOf{call("a", 5, 1, 2), call("b", 5, 3, 4)}, want: "fences: b runs on widgets/x with 5 after a with 5"},
		"two at once in the same moment": {runs: []RunOf{call("a", 1, 1, 3), call("b", 2, 1, 3)}, want: "two writers"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, c.want, overlapping(&history{runs: c.runs})) })
	}
}

func TestLate(t *testing.T) {
	runs := []RunOf{call("a", 5, 1, 2), call("b", 7, 4, 6)}
	for name, c := range map[string]struct {
		accesses []access
		want     string
	}{
		"each before the next begins":    {accesses: []access{stored(2, 5, "1"), stored(6, 7, "2")}},
		"after the next has begun":       {accesses: []access{stored(5, 5, "1")}, want: "late: the API accepted a status of widgets/x with 5"},
		"after the next has stored":      {accesses: []access{stored(6, 7, "2"), stored(7, 5, "1")}, want: "fences: the API accepted a status of widgets/x with 5 after 7"},
		"again, before the next stored":  {accesses: []access{stored(2, 5, "1"), stored(5, 5, "1"), stored(6, 7, "2")}},
		"again, after the next stored":   {accesses: []access{stored(2, 5, "1"), stored(6, 7, "2"), stored(7, 5, "1")}, want: "fences:"},
		"another one than the first one": {accesses: []access{stored(2, 5, "1"), stored(5, 5, "3")}, want: "late:"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, c.want, late(&history{accesses: c.accesses, runs: runs})) })
	}
}

func TestNeedless(t *testing.T) {
	hot := func(n int, failed error) (runs []RunOf) {
		for i := range n {
			r := call("a", uint64(i+1), float64(i)+10, float64(i)+10.5)
			r.Err = failed
			runs = append(runs, r)
		}
		return runs
	}
	requeues := func(n int) (tl Timeline) {
		for i := range n {
			tl = append(tl, reconciler.Event{Step: reconciler.StepRequeued, Kind: "widgets", Name: "x", Time: at(float64(i) + 10.6)})
		}
		return tl
	}
	var writes []access
	for i := range 20 {
		writes = append(writes, wrote(float64(i)+9.9))
	}
	for name, c := range map[string]struct {
		h    history
		want string
	}{
		"a run for a write":                  {h: history{accesses: []access{wrote(1)}, runs: hot(1, nil)}},
		"a hot loop":                         {h: history{accesses: []access{wrote(1)}, runs: hot(20, nil)}, want: "needless: a ran on widgets/x"},
		"as many runs as writes":             {h: history{accesses: writes, runs: hot(20, nil)}},
		"retries of failures":                {h: history{accesses: []access{wrote(1)}, runs: hot(20, errors.New("e"))}},
		"requeues":                           {h: history{accesses: []access{wrote(1)}, runs: hot(20, nil), timeline: requeues(20)}},
		"a hot loop after requeues":          {h: history{runs: hot(40, nil), timeline: requeues(20)}, want: "needless:"},
		"reads of the test are no cause":     {h: history{accesses: []access{read("", 11, 2), read("", 12, 2)}, runs: hot(spareRuns+1, nil)}, want: "needless:"},
		"statuses of replicas are no cause":  {h: history{accesses: []access{stored(11, 1, "1"), stored(12, 2, "2")}, runs: hot(spareRuns+1, nil)}, want: "needless:"},
		"a batch may be about any object":    {h: history{accesses: []access{{at: at(12), method: http.MethodPost}}, runs: hot(spareRuns+1, nil)}},
		"many writes at once are few causes": {h: history{accesses: []access{wrote(1), wrote(2), wrote(3), wrote(4), wrote(5), wrote(6), wrote(7)}, runs: hot(spareRuns+1, nil)}, want: "needless:"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, c.want, needless(&c.h)) })
	}
}

// expect checks that there is a violation with a text, or none.
func expect(t *testing.T, want string, violations []string) {
	t.Helper()
	if want == "" {
		require.Empty(t, violations)
		return
	}
	require.NotEmpty(t, violations)
	require.Contains(t, violations[0], want)
}

// What nobody needs is named, each thing by its subject or key.
func TestLeftovers(t *testing.T) {
	Run(t, func(t *testing.T, w *World) {
		a := w.Start("a", reconciler.For("widgets", func(context.Context, *apiclient.Object[map[string]int, map[string]int]) (reconciler.Result, error) {
			return reconciler.Result{RequeueAfter: time.Hour}, nil
		}))
		widgets := Client[map[string]int, map[string]int](w, "widgets")
		_, err := widgets.Create(t.Context(), "x", map[string]int{"a": 1})
		require.NoError(t, err)
		w.RunUntilSettled()
		expectLeft := func(want ...string) {
			t.Helper()
			left, err := w.leftovers()
			require.NoError(t, err)
			require.Equal(t, want, left)
		}
		expectLeft() // x waits for its requeue
		require.NoError(t, a.Stop())
		w.Advance(leftFor)
		put := func(subject string, headers ...string) {
			t.Helper()
			m := nats.NewMsg(subject)
			for i := 0; i < len(headers); i += 2 {
				m.Header.Set(headers[i], headers[i+1])
			}
			_, err := w.nc.RequestMsg(m, time.Second)
			require.NoError(t, err)
		}
		put("evenkeel.n.widgets.1.y")
		put("evenkeel.s.widgets.1.y", "Nats-Schedule", "@at 2100-01-01T00:00:00Z", "Nats-Schedule-Target", "evenkeel.r.widgets.1.y")
		put("evenkeel.x.widgets")
		put("$KV.evenkeel_locks.lock.widgets.1.y")
		put("$KV.evenkeel_locks.session.z")
		put("$KV.evenkeel_locks.session.closed-z")
		expectLeft("left in the work stream: evenkeel.n.widgets.1.y", "left in the work stream: evenkeel.s.widgets.1.y", "set aside: evenkeel.x.widgets",
			"still locked: lock.widgets.1.y", "a session that ended is still marked: session.closed-z", "more sessions than replicas: session.z")
	})
}

// What a frozen link holds back does not arrive when the client gives the connection up: it would be minutes later.
func TestWhatAFrozenLinkHoldsBackEndsWithTheConnection(t *testing.T) {
	Run(t, func(t *testing.T, w *World) {
		a := w.Start("a", reconciler.For("widgets", func(context.Context, *apiclient.Object[map[string]int, map[string]int]) (reconciler.Result, error) {
			return reconciler.Result{}, nil
		}))
		w.Advance(time.Second)
		a.Freeze()
		w.Advance(20 * time.Second) // it loses its session, and asks for others
		_ = a.Stop()                // not everything could be handed over
		w.AssertNothingLeft()
		a.nc.Close()
		w.Advance(time.Second)
		w.AssertNothingLeft()
	})
}
