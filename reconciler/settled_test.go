package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/script"
	"github.com/evenkeel-io/evenkeel/lock"
)

// refusal is an error answer of the API.
func refusal(status int, kind string) *http.Response {
	body, _ := json.Marshal(apiclient.Problem{Type: "https://evenkeel.example/" + kind, Status: status, Detail: kind})
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/problem+json"}}, Body: io.NopCloser(strings.NewReader(string(body))),
	}
}

// patches answers patches of the replica, one after the other; nil lets one pass, and the last counts for all that follow.
func (s *joined) patches(answers ...func() *http.Response) {
	s.meeting.Lock()
	defer s.meeting.Unlock()
	s.meet = func(q *http.Request) (*http.Response, error) {
		if q.Method != http.MethodPatch {
			return nil, nil
		}
		answer := answers[0]
		answers = answers[min(1, len(answers)-1):]
		if answer == nil {
			return nil, nil
		}
		return answer(), nil
	}
}

func (s *joined) patched() (n int) {
	for _, method := range s.requests() {
		if method == http.MethodPatch {
			n++
		}
	}
	return n
}

// The outcome is stored, then what is next is queued, then others are told.
func TestOutcomeIsStoredBeforeAnythingFollowsFromIt(t *testing.T) {
	for name, c := range map[string]struct {
		result Result
		err    error
		again  bool // the second call, which finds what the first has stored
		state  apiclient.State
		steps  []Step
		later  int
		logged string
	}{
		"success":     {state: apiclient.StateReady, steps: []Step{StepPatched}},
		"no change":   {again: true, state: apiclient.StateReady},
		"come again":  {result: Result{RequeueAfter: time.Hour}, state: apiclient.StateReady, steps: []Step{StepPatched, StepRequeued}, later: 1},
		"failure":     {err: errors.New("no"), state: apiclient.StateRetrying, steps: []Step{StepPatched, StepRequeued}, later: 1, logged: "no"},
		"for ever so": {err: Terminal(errors.New("no such region")), state: apiclient.StateStalled, steps: []Step{StepPatched}, logged: "no such region"},
	} {
		t.Run(name, func(t *testing.T) {
			var told []string
			var s *joined
			function := func(ctx context.Context, _ *apiclient.Object[job, job]) (Result, error) {
				WhenStored(ctx, func() {
					o, err := s.jobs.Get(s.t.Context(), "x")
					later, _ := s.queued("x")
					told = append(told, string(o.Reconciliation.State))
					require.NoError(s.t, err)
					require.Equal(s.t, c.later, later)
					panic("on purpose")
				})
				WhenStored(ctx, func() { told = append(told, "second") })
				return c.result, c.err
			}
			join(t, func(t *testing.T, joined *joined) {
				s = joined
				s.put("x")
				r := s.begin("x")
				if c.again {
					r.settle(r.call())
					require.True(t, r.read())
					told = nil
				}
				out := r.call()
				s.events()
				s.lines()
				s.requests()
				r.settle(out)
				require.Equal(t, c.steps, s.steps())
				require.Equal(t, []string{string(c.state), "second"}, told)
				require.Equal(t, !c.again, s.patched() == 1)
				o, err := s.jobs.Get(t.Context(), "x")
				require.NoError(t, err)
				require.Equal(t, c.state, o.Reconciliation.State)
				logs := strings.Join(s.lines(), "\n")
				require.Contains(t, logs, "a function for when the outcome is stored panicked")
				require.Equal(t, 1, strings.Count(logs, "panicked"))
				require.Contains(t, logs, c.logged)
				require.False(t, r.ended)
			}, For("jobs", function))
		})
	}
}

// What becomes of an outcome that the API does not take depends on why.
func TestOutcomeThatIsNotTaken(t *testing.T) {
	failed := errors.New("no")
	for name, c := range map[string]struct {
		err     error // of the function
		prepare func(s *joined, r *run)
		steps   []Step
		later   int
		now     int
		told    bool
		lost    bool
	}{
		"the object is another": {prepare: func(s *joined, _ *run) {
			_, err := s.jobs.Delete(s.t.Context(), "x")
			require.NoError(s.t, err)
			s.put("x")
		}, steps: []Step{StepFenced}},
		"the object is gone": {prepare: func(s *joined, _ *run) {
			_, err := s.jobs.Delete(s.t.Context(), "x")
			require.NoError(s.t, err)
		}, steps: []Step{StepFenced}},
		"somebody has passed our fence": {prepare: func(s *joined, r *run) {
			_, err := s.jobs.PatchStatus(s.t.Context(), "x", apiclient.StatusPatch{UID: r.object.UID, Fence: r.fence + 1})
			require.NoError(s.t, err)
		}, steps: []Step{StepFenced, StepRequeued}, later: 1},
		"somebody else has the lock": {prepare: func(s *joined, r *run) {
			_, err := s.jobs.PatchStatus(s.t.Context(), "x", apiclient.StatusPatch{UID: r.object.UID, Fence: r.fence + 1})
			require.NoError(s.t, err)
			s.free("x")
		}, steps: []Step{StepFenced}},
		"it is refused": {prepare: func(s *joined, _ *run) {
			s.patches(func() *http.Response { return refusal(http.StatusForbidden, apiclient.TypeForbidden) })
		}, steps: []Step{StepTrouble, StepRequeued}, later: 1},
		"the record is refused": {prepare: func(s *joined, _ *run) {
			s.patches(func() *http.Response { return refusal(http.StatusUnprocessableEntity, apiclient.TypeInvalid) })
		}, steps: []Step{StepTrouble, StepRequeued}, later: 1},
		"the session is over": {prepare: func(s *joined, _ *run) { s.resign() }, steps: []Step{StepLost}, lost: true},
		"a stop, and it failed": {err: failed, prepare: func(s *joined, _ *run) {
			s.stop(ErrStopping)
		}, steps: []Step{StepHandedOver}, now: 1},
		"a stop, and it succeeded": {prepare: func(s *joined, _ *run) {
			s.stop(ErrStopping)
		}, steps: []Step{StepPatched}, told: true},
		"a stop while the API is away": {prepare: func(s *joined, _ *run) {
			s.patches(func() *http.Response {
				s.stop(ErrStopping)
				return refusal(http.StatusServiceUnavailable, "")
			})
		}, steps: []Step{StepHandedOver}, now: 1},
	} {
		t.Run(name, func(t *testing.T) {
			told := false
			join(t, func(t *testing.T, s *joined) {
				s.put("x")
				r := s.begin("x")
				out := r.call()
				s.events()
				c.prepare(s, r)
				r.settle(out)
				require.Equal(t, c.steps, s.steps())
				later, now := s.queued("x")
				require.Equal(t, []int{c.later, c.now}, []int{later, now})
				require.Equal(t, c.told, told)
				require.Equal(t, c.lost, r.ended)
			}, For("jobs", func(ctx context.Context, _ *apiclient.Object[job, job]) (Result, error) {
				WhenStored(ctx, func() { told = true })
				return Result{}, c.err
			}))
		})
	}
}

// A status that the API refuses stalls the object, and says so on it. What the API made of the record is what counts.
func TestRefusedStatusStallsTheObject(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		s.put("x")
		r := s.begin("x")
		out := r.call()
		s.events()
		s.patches(func() *http.Response { return refusal(http.StatusUnprocessableEntity, apiclient.TypeInvalid) }, nil)
		r.settle(out)
		seen := s.events()
		require.Equal(t, []any{StepPatched, apiclient.StateStalled}, []any{seen[0].Step, seen[0].State})
		o, err := s.jobs.Get(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, apiclient.StateStalled, o.Reconciliation.State)
		require.Contains(t, o.Reconciliation.LastError, "the API refuses the status: ")
		require.Nil(t, o.Reconciliation.NextAttempt)
		later, _ := s.queued("x")
		require.Zero(t, later, "what the function wanted is not stored")
	}, For("jobs", func(_ context.Context, o *apiclient.Object[job, job]) (Result, error) {
		o.Status = job{"made": 1}
		return Result{RequeueAfter: time.Hour}, nil
	}))
}

// A status is offered to an API that is away for half a minute after a call, without a worker from the first second on; before a
// call only as long as the worker may wait. Then the object is looked at again, by whoever claims it.
func TestStatusIsOfferedForAWhile(t *testing.T) {
	for name, c := range map[string]struct {
		called bool
		took   time.Duration
	}{"after the call": {true, patchFor}, "before the call": {false, workerFor}} {
		t.Run(name, func(t *testing.T) {
			join(t, func(t *testing.T, s *joined) {
				s.put("x")
				r := s.begin("x")
				if c.called {
					r.began = time.Now()
				}
				r.uncertain.Store(false)
				s.patches(func() *http.Response { return refusal(http.StatusServiceUnavailable, "") })
				began := time.Now()
				_, ok := r.patch(apiclient.StatusPatch{Reconciliation: &apiclient.Reconciliation{State: apiclient.StateReady}})
				require.False(t, ok)
				took := time.Since(began)
				require.GreaterOrEqual(t, took, c.took)
				require.Less(t, took, 2*c.took)
				require.True(t, r.uncertain.Load(), "it may still arrive")
				require.True(t, s.gate.closed())
				seen := s.events()
				last := seen[len(seen)-2:]
				require.Equal(t, []any{StepTrouble, "patch", StepRequeued}, []any{last[0].Step, last[0].Reason, last[1].Step})
				s.patches(nil)
				_, ok = r.patch(apiclient.StatusPatch{Reconciliation: &apiclient.Reconciliation{State: apiclient.StateReady}})
				require.True(t, ok)
				require.False(t, r.uncertain.Load(), "what was sent before says the same")
				require.False(t, s.gate.closed())
			})
		})
	}
}

// A write that must not be lost is repeated, ever more rarely, and said once. Its worker goes to others after a second, also if
// the first try is not answered.
func TestWriteThatMustNotBeLostIsRepeated(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		r := s.take("x")
		r.began = time.Now()
		var at []time.Duration
		began := time.Now()
		err := r.store(func(context.Context) error {
			at = append(at, time.Since(began))
			if len(at) < 12 {
				return errors.New("no")
			}
			return nil
		}, always)
		require.NoError(t, err)
		pause := storeFirst
		for i := range len(at) - 1 {
			require.Equal(t, pause, at[i+1]-at[i])
			pause = min(2*pause, storeMax)
		}
		require.Positive(t, s.detached.Swap(0))
		require.Equal(t, []Step{StepTrouble}, s.steps())

		require.NoError(t, r.store(func(context.Context) error {
			time.Sleep(workerFor + time.Millisecond)
			return nil
		}, always))
		require.Equal(t, int64(1), s.detached.Swap(0), "it hung")
		r.began = time.Time{}
		require.NoError(t, r.store(func(context.Context) error {
			time.Sleep(workerFor + time.Millisecond)
			return nil
		}, always))
		require.Zero(t, s.detached.Load(), "what comes before the call needs its worker")

		refused := errors.New("refused")
		require.Equal(t, refused, r.store(func(context.Context) error { return refused }, func(error) bool { return false }))
		require.Empty(t, s.steps())
	})
}

// When too many wait already, what is next is left to a search.
func TestWriteThatFindsNoRoomIsLeftToASearch(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		s.crowded = true
		r := s.take("x")
		began := time.Now()
		s.server.Answer(s.names.Schedule("jobs", "x"), script.Error(503, 10077, "no room"))
		r.sleepOn(time.Now().Add(time.Hour))
		require.GreaterOrEqual(t, time.Since(began), workerFor)
		require.Less(t, time.Since(began), 4*workerFor)
		seen := s.events()
		require.Len(t, seen, 1)
		require.Equal(t, []any{StepTrouble, "store what is next"}, []any{seen[0].Step, seen[0].Reason})
		require.ErrorIs(t, seen[0].Err, errCrowded)
		require.ErrorContains(t, seen[0].Err, "no room")
		require.Len(t, s.kinds[0].search, 1)
		require.False(t, r.ended, "the lock can be released")
	})
}

// What the broker does not take at once it takes later.
func TestWhatIsNextIsOfferedUntilTheBrokerTakesIt(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(r *run)
		steps []Step
		later int
		now   int
	}{
		"a requeue":   {do: func(r *run) { r.sleepOn(time.Now().Add(time.Hour)) }, steps: []Step{StepRequeued}, later: 1},
		"a hand-over": {do: func(r *run) { r.handOver("a reason") }, steps: []Step{StepHandedOver}, now: 1},
	} {
		t.Run(name, func(t *testing.T) {
			join(t, func(t *testing.T, s *joined) {
				r := s.take("x")
				away := script.Error(503, 10008, "temporarily unavailable")
				for _, subj := range []string{s.names.Schedule("jobs", "x"), s.names.Fresh("jobs", "x")} {
					s.server.Answer(subj, away)
				}
				go func() {
					time.Sleep(300 * time.Millisecond)
					for _, subj := range []string{s.names.Schedule("jobs", "x"), s.names.Fresh("jobs", "x")} {
						s.server.Answer(subj)
					}
				}()
				c.do(r)
				require.Equal(t, c.steps, s.steps())
				later, now := s.queued("x")
				require.Equal(t, []int{c.later, c.now}, []int{later, now})
			})
			join(t, func(t *testing.T, s *joined) {
				r := s.take("x")
				s.resign()
				c.do(r)
				require.Equal(t, []Step{StepLost}, s.steps())
				require.True(t, r.ended)
				require.ErrorIs(t, r.store(func(context.Context) error { return nil }, always), lock.ErrLost)
			})
		})
	}
}

// An object that is paused says so, once, and no more that it runs.
func TestPausedObjectSaysSo(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		s.put("x")
		r := s.begin("x")
		now := time.Now()
		r.object.Reconciliation.RunningSince = &now
		for range 2 {
			r.markPaused()
			o, err := s.jobs.Get(t.Context(), "x")
			require.NoError(t, err)
			require.Equal(t, apiclient.StatePaused, o.Reconciliation.State)
			require.Nil(t, o.Reconciliation.RunningSince)
			require.True(t, r.read())
		}
		require.Equal(t, 1, s.patched())
	})
}

// A replica without a session, or to which the API said no, is not ready.
func TestReplicaThatCannotWorkIsNotReady(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		s.running.Store(true)
		require.NoError(t, s.Ready())
		why := errors.New("its token is unknown")
		s.unknown.Store(&why)
		require.ErrorIs(t, s.Ready(), why)
		s.unknown.Store(nil)
		require.NoError(t, s.Ready())
		s.resign()
		synctest.Wait()
		require.ErrorIs(t, s.Ready(), lock.ErrNoSession)
	})
}
