package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// through is a transport that calls before with each request, and fails with its error.
type through struct {
	next   http.RoundTripper
	before func(*http.Request) error
}

func (h *through) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := h.before(r); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	return h.next.RoundTrip(r)
}

// underWay is a run of the object blue whose call has begun, with an API in memory.
type underWay struct {
	*run
	s        *replica
	t        *testing.T
	patches  atomic.Int32
	before   func(*http.Request) error // of each request
	detached atomic.Int32
}

func newUnderWay(t *testing.T, change func(*Controller)) *underWay {
	t.Helper()
	c := jobs()
	if change != nil {
		change(&c)
	}
	u := &underWay{t: t}
	u.s = newReplica(t, func(cfg *Config) {
		cfg.HTTP.Transport = &through{next: cfg.HTTP.Transport, before: func(r *http.Request) error {
			if r.Method == http.MethodPatch {
				u.patches.Add(1)
			}
			if u.before != nil {
				return u.before(r)
			}
			return nil
		}}
	}, c)
	api := u.s.kinds[0].api
	o, err := api.Create(t.Context(), "blue", json.RawMessage(`{}`))
	require.NoError(t, err)
	u.run = &run{
		kind: u.s.kinds[0], turn: &turn{name: "blue"}, fence: 7, object: o, attempt: 1, began: time.Now(), writing: make(chan struct{}, 1),
	}
	u.turn.detach = func() bool { u.detached.Add(1); return true }
	return u
}

// stored is the object as the API has it.
func (u *underWay) stored() *apiclient.Raw {
	u.t.Helper()
	before := u.before
	u.before = nil
	defer func() { u.before = before }()
	o, err := u.api.Get(u.t.Context(), "blue")
	require.NoError(u.t, err)
	return o
}

// writeBeside changes the object as a user does, which makes a write conflict that has read it earlier.
func (u *underWay) writeBeside() {
	u.t.Helper()
	before := u.before
	u.before = nil
	defer func() { u.before = before }()
	_, err := u.api.Put(u.t.Context(), "blue", json.RawMessage(`{"size":`+strings.Repeat("1", int(u.patches.Load())+1)+`}`))
	require.NoError(u.t, err)
}

// A long run shows on its object; a short one costs no write.
func TestOnlyLongRunsAreAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnderWay(t, nil)
		stop := u.announce(t.Context())
		time.Sleep(announceAfter - 1)
		stop()
		time.Sleep(time.Hour)
		require.Zero(t, u.patches.Load())
		require.Equal(t, apiclient.StatePending, u.object.Reconciliation.State)

		began := time.Now()
		u.began = began
		stop = u.announce(t.Context())
		time.Sleep(announceAfter)
		synctest.Wait()
		got := u.stored().Reconciliation
		require.Equal(t, apiclient.StateReconciling, got.State)
		require.True(t, began.Equal(*got.RunningSince))
		require.Equal(t, uint64(7), got.Fence)
		e := u.s.events()
		require.Len(t, e, 1)
		require.Equal(t, []any{StepPatched, apiclient.StateReconciling, "blue"}, []any{e[0].Step, e[0].State, e[0].Name})
		stop()
		require.EqualValues(t, 1, u.patches.Load())
		require.Equal(t, apiclient.StateReconciling, u.object.Reconciliation.State, "so that the outcome is stored over it")
	})
}

// The outcome must find what the announcement has stored, or may have: it is waited for, and given up at the end of the call.
func TestAnnouncementUnderWayIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnderWay(t, nil)
		u.before = func(r *http.Request) error {
			<-r.Context().Done()
			time.Sleep(time.Second)
			return r.Context().Err()
		}
		stop := u.announce(t.Context())
		time.Sleep(announceAfter + time.Second)
		now := time.Now()
		stop()
		require.Equal(t, time.Second, time.Since(now))
		require.Equal(t, apiclient.StateReconciling, u.object.Reconciliation.State, "it may have been stored")
		require.True(t, u.uncertain.Load())
	})
}

// The announcement is of less worth than what others write: it is not tried again.
func TestAnnouncementGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnderWay(t, nil)
		u.writeBeside()
		stop := u.announce(t.Context())
		time.Sleep(time.Minute)
		stop()
		require.EqualValues(t, 1, u.patches.Load())
		require.Empty(t, u.stored().Reconciliation.RunningSince)
	})
}

func TestDeletionShowsAsSuch(t *testing.T) {
	now := time.Now()
	require.Equal(t, apiclient.StateReconciling, runningState(&apiclient.Raw{}))
	require.Equal(t, apiclient.StateDeleting, runningState(&apiclient.Raw{DeletedAt: &now}))
}

// Users write to an object while its function runs. What the function stores goes in between, as long as it is the same object.
func TestCheckpointIsStoredBesideOtherWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnderWay(t, nil)
		conflicts := interimTries - 1
		u.before = func(r *http.Request) error {
			if r.Method == http.MethodPatch && conflicts > 0 {
				conflicts--
				u.writeBeside()
			}
			return nil
		}
		require.NoError(t, u.checkpoint(t.Context(), json.RawMessage(`{"made":1}`)))
		require.EqualValues(t, interimTries, u.patches.Load())
		got := u.stored()
		require.JSONEq(t, `{"made":1}`, string(got.Status))
		require.Equal(t, apiclient.StateReconciling, got.Reconciliation.State)
		require.Equal(t, got.Revision, u.revision)

		require.NoError(t, u.checkpoint(t.Context(), json.RawMessage(`{"made":2}`)), "the next one knows of the first")
		require.EqualValues(t, interimTries+1, u.patches.Load())
		require.False(t, u.uncertain.Load())

		u.before = func(r *http.Request) error {
			if r.Method == http.MethodPatch {
				u.writeBeside()
			}
			return nil
		}
		u.patches.Store(0)
		require.ErrorIs(t, u.checkpoint(t.Context(), json.RawMessage(`{"made":3}`)), apiclient.ErrConflict)
		require.EqualValues(t, interimTries, u.patches.Load(), "others write all the time")
		require.JSONEq(t, `{"made":2}`, string(u.stored().Status))
	})
}

// A checkpoint whose fate is unknown fails, and the next run must know that it may still arrive.
func TestCheckpointWithoutAnAnswerIsUncertain(t *testing.T) {
	u := newUnderWay(t, nil)
	u.before = func(*http.Request) error { return errors.New("connection reset") }
	require.ErrorIs(t, u.checkpoint(t.Context(), json.RawMessage(`{}`)), apiclient.ErrUnavailable)
	require.True(t, u.uncertain.Load())
	require.Empty(t, u.s.events(), "nothing was stored")
}

// A conflict is told from another's fence and from a read that fails.
func TestCheckpointOfALostObjectFails(t *testing.T) {
	u := newUnderWay(t, nil)
	u.before = func(r *http.Request) error {
		if r.Method == http.MethodGet {
			return errors.New("connection reset")
		}
		return nil
	}
	u.writeBeside()
	require.ErrorIs(t, u.checkpoint(t.Context(), json.RawMessage(`{}`)), apiclient.ErrUnavailable, "the object could not be read again")
	require.EqualValues(t, 1, u.patches.Load())

	u = newUnderWay(t, nil)
	_, err := u.api.PatchStatus(t.Context(), "blue", apiclient.StatusPatch{UID: u.object.UID, Fence: 8})
	require.NoError(t, err)
	u.patches.Store(0)
	require.ErrorIs(t, u.checkpoint(t.Context(), json.RawMessage(`{}`)), apiclient.ErrFenced)
	require.EqualValues(t, 1, u.patches.Load())
}

// Two writes of one call do not overtake each other; one whose call has ended does not wait for the other.
func TestWritesOfACallGoOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnderWay(t, nil)
		answer := make(chan struct{})
		u.before = func(*http.Request) error { <-answer; return nil }
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- u.checkpoint(t.Context(), json.RawMessage(`{"made":1}`)) }()
		}
		synctest.Wait()
		require.EqualValues(t, 1, u.patches.Load())

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(ErrStopping)
		require.Equal(t, ErrStopping, u.checkpoint(ctx, json.RawMessage(`{"made":2}`)))
		close(answer)
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.EqualValues(t, 2, u.patches.Load(), "each knows what the one before it has stored")
	})
}
