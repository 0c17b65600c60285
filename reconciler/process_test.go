package reconciler

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

// A turn may stand for several notifications: what one of them asks for counts.
func TestTurnAnswersAllItsNotifications(t *testing.T) {
	now := time.Now()
	turnOf := func(deliveries ...*notify.Delivery) *run {
		r := newRun(newReplica(t, nil).kinds[0], &turn{name: "x", deliveries: deliveries}, new(lock.Lock))
		require.False(t, r.asked, "nothing is owed before it is taken")
		for _, d := range deliveries {
			r.heed(d)
		}
		return r
	}
	r := turnOf(&notify.Delivery{Reason: "due", GivenUp: 3, At: now}, &notify.Delivery{Reason: "changed", Asked: true, GivenUp: 1, At: now.Add(-time.Hour)},
		&notify.Delivery{Reason: "resync", GivenUp: 2, At: now.Add(-time.Minute)})
	require.Equal(t, []any{true, 3, "due"}, []any{r.asked, r.givenUp, r.reason})
	require.True(t, now.Equal(r.sent), "the latest")
	require.False(t, r.uncertain.Load(), "nothing of a predecessor is under way")
	require.False(t, r.called())
	r.began = now
	require.True(t, r.called())
	require.Equal(t, 1, cap(r.writing), "one write at a time")
	r = turnOf(&notify.Delivery{At: now.Add(-time.Hour)}, &notify.Delivery{At: now, GivenUp: 1})
	require.False(t, r.asked, "a requeue came due, or resync")
	require.Equal(t, 1, r.givenUp)
	require.True(t, now.Equal(r.sent))
}

// The finalizer is added before the first call, and only for what a cleanup can work on.
func TestFinalizerIsAddedOnlyForACleanup(t *testing.T) {
	now := time.Now()
	cleans := ForWithCleanup("jobs", returns(Result{}, nil), returns(Result{}, nil))
	for name, c := range map[string]struct {
		controller Controller
		object     apiclient.Raw
	}{
		"no cleanup":          {For("jobs", returns(Result{}, nil)), apiclient.Raw{}},
		"being deleted":       {cleans, apiclient.Raw{DeletedAt: &now}},
		"it has one":          {cleans, apiclient.Raw{Finalizers: []string{"x", "p"}}},
		"it does not fit":     {cleans, apiclient.Raw{Spec: []byte(`{"Size":"big"}`)}},
		"its status does not": {cleans, apiclient.Raw{Status: []byte(`[]`)}},
	} {
		s := newReplica(t, func(c *Config) { c.Prefix = "p" }, c.controller)
		r := &run{kind: s.kinds[0], turn: &turn{name: "x"}, object: &c.object}
		require.True(t, r.addFinalizer(), name) // to add it would need the lock, which is not there
	}
}

// Normally a turn claims nothing: the lock's fence is above that of every earlier run.
func TestCleanReleaseNeedsNoClaim(t *testing.T) {
	s := newReplica(t, nil)
	r := &run{kind: s.kinds[0], turn: &turn{name: "x"}, lock: new(lock.Lock), fence: 7, object: &apiclient.Raw{Reconciliation: apiclient.Reconciliation{Fence: 6}}}
	require.True(t, r.claim())
	require.Equal(t, uint64(7), r.fence)
	require.Nil(t, r.takenOver())
	require.Empty(t, r.claimedFrom())
	require.Empty(t, s.events())
}

// What is gone cannot be reached by a late write of anybody.
func TestObjectThatIsGoneNeedsNoClaim(t *testing.T) {
	for _, err := range []error{nil, fmt.Errorf("patch: %w", apiclient.ErrNotFound)} {
		s := newReplica(t, nil)
		r := &run{kind: s.kinds[0], turn: &turn{name: "x"}, lock: new(lock.Lock)}
		r.uncertain.Store(true)
		r.unclaimed(err)
		require.False(t, r.uncertain.Load())
		got := s.events()
		require.Len(t, got, 1)
		require.Equal(t, []any{StepSkipped, "the object is gone"}, []any{got[0].Step, got[0].Reason})
	}
}

// Fences that went backwards are those of all objects: an operator need hear of it once a minute.
func TestFencesThatWentBackwardsAreSaidNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newReplica(t, nil)
		r := &run{kind: s.kinds[0], turn: &turn{name: "x"}, lock: new(lock.Lock), fence: 7}
		for range 2 * int(rewoundEvery/time.Second) {
			s.rewound(r, 9)
			time.Sleep(time.Second)
		}
		got := s.events()
		require.Len(t, got, 2)
		require.Equal(t, rewoundEvery, got[1].Time.Sub(got[0].Time))
		require.Equal(t, []any{StepTrouble, "compare fences", "x"}, []any{got[0].Step, got[0].Reason, got[0].Name})
		require.ErrorContains(t, got[0].Err, "the object was written with fence 9, and the lock bucket has come to 0: ")
	})
}

// What a turn could not store must be found by others: by resync, or because its lock is not released.
func TestWorkThatCouldNotBeStoredIsLeftForOthers(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		kept     bool
		searched int
		ended    bool
		step     Step
	}{
		"stored":               {err: nil, kept: true},
		"too many wait for it": {err: fmt.Errorf("%w: no answer", errCrowded), searched: 1, step: StepTrouble},
		"the lock is lost":     {err: lock.ErrLost, ended: true, step: StepLost},
		"anything else":        {err: errors.New("no"), ended: true, step: StepLost},
	} {
		t.Run(name, func(t *testing.T) {
			s := newReplica(t, nil)
			r := &run{kind: s.kinds[0], turn: &turn{name: "x"}, fence: 7}
			require.Equal(t, c.kept, r.kept(c.err))
			require.Len(t, r.search, c.searched)
			require.Equal(t, c.ended, r.ended)
			got := s.events()
			if c.step == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Equal(t, c.step, got[0].Step)
			if r.ended {
				r.release() // the lock, which is not there, is left alone
				require.Empty(t, s.events())
			}
		})
	}
}

// A paused object says so once.
func TestPauseIsRecordedOnce(t *testing.T) {
	s := newReplica(t, nil)
	r := &run{kind: s.kinds[0], turn: &turn{name: "x"}, object: &apiclient.Raw{Reconciliation: apiclient.Reconciliation{State: apiclient.StatePaused}}}
	r.markPaused() // a patch would need the lock, which is not there
	got := s.events()
	require.Len(t, got, 1)
	require.Equal(t, []any{StepSkipped, "paused"}, []any{got[0].Step, got[0].Reason})
}
