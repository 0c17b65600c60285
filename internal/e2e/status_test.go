package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// A look that finds nothing new writes nothing.
func TestNothingIsPatchedWhenNothingChanged(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		before := s.get("x")
		for range 3 {
			require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
			s.Advance(time.Second)
		}
		require.Len(t, s.runs("x"), 4)
		require.Equal(t, before, s.get("x"))
		require.Len(t, s.Timeline().Of("jobs", "x").Only(reconciler.StepPatched), 1)
	})
}

// What is throttled waits as long as it was told, by no fault of its own; what it waits for is shown.
func TestThrottledObjectsWait(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		answers := []error{
			errors.New("a passing fault"),
			reconciler.Throttled(errors.New("the quota is used up"), 7*time.Minute),
			fmt.Errorf("create: %w", reconciler.Throttled(errors.New("the quota is used up"), 7*time.Minute)),
			errors.New("a passing fault"),
		}
		var logs lines
		s.StartWith("a", logs.sink, reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if n := len(s.runs("x")); n <= len(answers) {
				return reconciler.Result{RequeueAfter: time.Minute}, answers[n-1]
			}
			return work(ctx, o)
		}))
		s.put("x", job{Value: 1})
		s.Advance(2 * time.Minute)
		x := s.get("x").Reconciliation
		require.Equal(t, apiclient.StateWaiting, x.State)
		require.Equal(t, 1, x.Failures)
		require.Equal(t, "the quota is used up", x.LastError)
		s.RunUntilSettled()
		runs := s.runs("x")
		require.Len(t, runs, 5)
		require.Len(t, logs.with("reconcile failed"), 2, "to wait is no failure")
		waits := logs.with("waiting")
		require.Len(t, waits, 2)
		require.Equal(t, "the quota is used up", waits[0]["for"])
		var attempts []int
		for _, r := range runs {
			attempts = append(attempts, r.Attempt)
		}
		require.Equal(t, []int{1, 2, 2, 2, 3}, attempts)
		for _, i := range []int{1, 2} {
			require.InDelta(t, 7*time.Minute, runs[i+1].Start.Sub(runs[i].End), float64(time.Second))
		}
	})
}

// refusing is the way to an API that refuses one status patch.
type refusing struct {
	next   http.RoundTripper
	status int
	done   atomic.Bool
}

func (r *refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPatch || r.done.Swap(true) {
		return r.next.RoundTrip(req)
	}
	return &http.Response{
		StatusCode: r.status, Header: http.Header{"Content-Type": {"application/problem+json"}}, Request: req,
		Body: io.NopCloser(strings.NewReader(`{"type":"/problems/invalid","detail":"not that one"}`)),
	}, nil
}

// A status that the API will not take is the function's fault: the object says so and is not tried again and again.
func TestStatusThatTheAPIRefusesStalls(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				refuse := func(cfg *reconciler.Config) { cfg.HTTP.Transport = &refusing{next: cfg.HTTP.Transport, status: status} }
				s.StartWith("a", refuse, reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
					_, err := work(ctx, o)
					return reconciler.Result{RequeueAfter: time.Minute}, err
				}))
				s.put("x", job{Value: 1})
				s.Advance(5 * time.Minute)
				require.Len(t, s.runs("x"), 1)
				x := s.get("x")
				require.Equal(t, apiclient.StateStalled, x.Reconciliation.State)
				require.Contains(t, x.Reconciliation.LastError, "the API refuses the status: ")
				require.Contains(t, x.Reconciliation.LastError, "not that one")
				require.Nil(t, x.Reconciliation.NextAttempt)
				require.Zero(t, x.Status)
				of := s.Timeline().Of("jobs", "x")
				require.Equal(t, apiclient.StateStalled, of.Only(reconciler.StepPatched)[0].State, "the timeline tells what was stored")
				require.Empty(t, of.Requeues())
			})
		})
	}
}

// A spec, or a status, that the Go type cannot hold is no call; the object says what does not fit, and is tried again.
func TestSpecThatDoesNotFitIsTriedAgain(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		called := 0
		a := s.Start("a", reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			called++
			return work(ctx, o)
		}))
		untyped := reconcilertest.Client[map[string]any, done](s.World, "jobs")
		_, err := untyped.Create(t.Context(), "x", map[string]any{"Value": "seven"})
		require.NoError(t, err)
		s.Advance(5 * time.Minute)
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
		s.Advance(5 * time.Minute)
		x, err := untyped.Get(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, apiclient.StateRetrying, x.Reconciliation.State)
		require.Contains(t, x.Reconciliation.LastError, "the spec does not fit the controller's type: ")
		require.Contains(t, x.Reconciliation.LastError, "Value")
		require.Greater(t, len(s.runs("x")), 2)
		require.Zero(t, called)

		s.put("x", job{Value: 7})
		s.RunUntilSettled()
		s.AssertConverged()
		require.Equal(t, 7, s.get("x").Status.Value)
	})
}

// Paused objects rest, and show it; what was changed meanwhile is done once when they are resumed.
func TestPausedObjectsRestUntilTheyAreResumed(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		_, err := s.jobs.Pause(t.Context(), "x")
		require.NoError(t, err)
		s.Advance(time.Second)
		require.Equal(t, apiclient.StatePaused, s.get("x").Reconciliation.State)
		for i := range 5 {
			s.put("x", job{Value: 2 + i})
			require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
			s.Advance(time.Minute)
		}
		require.Len(t, s.runs("x"), 1)
		require.Equal(t, apiclient.StatePaused, s.get("x").Reconciliation.State, "also after a change")
		_, err = s.jobs.Resume(t.Context(), "x")
		require.NoError(t, err)
		s.Advance(time.Second)
		require.Equal(t, 6, s.get("x").Status.Value)
		s.AssertConverged()
		s.Advance(10 * time.Minute)
		require.Len(t, s.runs("x"), 2)
	})
}

// Whatever an object was before it was paused, it is looked at when it is resumed, and does not go on showing the pause.
func TestResumedObjectIsLookedAt(t *testing.T) {
	for before, err := range map[apiclient.State]error{
		apiclient.StateReady:    nil,
		apiclient.StateRetrying: errors.New("fails"),
		apiclient.StateStalled:  reconciler.Terminal(errors.New("no such region")),
	} {
		c := reconciler.For("jobs", func(context.Context, *jobObject) (reconciler.Result, error) {
			return reconciler.Result{RequeueAfter: time.Hour}, err
		})
		rest := func(t *testing.T, s scenario) {
			s.put("x", job{})
			s.Advance(time.Second)
			require.Equal(t, before, s.get("x").Reconciliation.State)
			_, err := s.jobs.Pause(t.Context(), "x")
			require.NoError(t, err)
			s.Advance(time.Minute)
			require.Equal(t, apiclient.StatePaused, s.get("x").Reconciliation.State)
		}
		resume := func(t *testing.T, s scenario) {
			_, err := s.jobs.Resume(t.Context(), "x")
			require.NoError(t, err)
			s.Advance(time.Second)
		}
		looked := func(t *testing.T, s scenario) {
			require.Len(t, s.runs("x"), 2)
			require.Equal(t, before, s.get("x").Reconciliation.State)
		}
		t.Run(string(before), func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				s.Start("a", c)
				rest(t, s)
				resume(t, s)
				looked(t, s)
			})
		})
		t.Run(string(before)+" and the broker forgets", func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				a := s.Start("a", c)
				rest(t, s)
				require.NoError(t, a.Stop())
				resume(t, s)
				s.StopBroker()
				s.StartBroker()
				s.Start("b", c)
				s.Advance(2 * time.Minute)
				looked(t, s)
			})
		})
	}
}

// R18: a run that began before a change does not make the changed object Ready.
func TestObjectThatChangedDuringARunIsNotReady(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Millis: 1900, Value: 1})
		s.Advance(time.Second)
		s.put("x", job{Millis: 1900, Value: 2})
		s.Advance(time.Second)
		x := s.get("x")
		require.Equal(t, 1, x.Status.Value, "the first run has ended")
		require.Equal(t, apiclient.StatePending, x.Reconciliation.State)
		require.EqualValues(t, 1, x.Reconciliation.ObservedGeneration)
		s.RunUntilSettled()
		s.AssertConverged()
	})
}

// R18: a run that was interrupted is not the end of the work, even if its function says so.
func TestInterruptedRunIsNotReady(t *testing.T) {
	hasty := func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
		r, _ := work(ctx, o)
		return r, nil
	}
	pending := func(t *testing.T, s scenario) {
		x := s.get("x").Reconciliation
		require.Equal(t, apiclient.StateReconciling, x.State)
		require.Zero(t, x.ObservedGeneration)
		require.Empty(t, x.LastError)
	}
	t.Run("by a stop", func(t *testing.T) {
		play(t, func(t *testing.T, s scenario) {
			a := s.StartWith("a", func(cfg *reconciler.Config) { cfg.Grace = time.Second }, reconciler.For("jobs", work))
			s.put("x", job{Millis: 60_000, Value: 1})
			s.Advance(5 * time.Second)
			require.NoError(t, a.Stop())
			pending(t, s)
		})
	})
	t.Run("by the loss of its lock", func(t *testing.T) {
		play(t, func(t *testing.T, s scenario) {
			a := s.Start("a", reconciler.For("jobs", hasty))
			s.put("x", job{Millis: 60_000, Value: 1})
			s.Advance(5 * time.Second)
			a.CutNATS()
			s.Advance(30 * time.Second)
			require.Zero(t, s.runs("x")[0].Err)
			pending(t, s)
			a.Heal()
			s.RunUntilSettled()
			s.AssertConverged()
			require.Len(t, s.runs("x"), 2)
		})
	})
}

// R15, R19: what a function left running can commit nothing once its call is over and another has had the object.
func TestWorkThatOutlivesItsCallCannotCommit(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var late error
		a := s.Start("a", reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if len(s.runs("x")) > 1 {
				return work(ctx, o)
			}
			go func() {
				<-ctx.Done()
				time.Sleep(time.Minute)
				o.Status.Value = 666
				status, _ := json.Marshal(o.Status)
				_, late = s.jobs.PatchStatus(context.WithoutCancel(ctx), o.Name, apiclient.StatusPatch{
					UID: o.UID, Fence: reconciler.Current(ctx).Fence, Status: status,
				})
			}()
			return reconciler.Result{RequeueAfter: 10 * time.Second}, errors.New("gave up")
		}))
		s.put("x", job{Value: 1})
		s.Advance(2 * time.Minute)
		require.ErrorIs(t, late, apiclient.ErrFenced)
		require.Equal(t, 1, s.get("x").Status.Value)
		s.AssertConverged()
		require.NoError(t, a.Stop())
	})
}

// The context of a call ends with it, however it ends.
func TestContextEndsWithTheCall(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var calls []context.Context
		s.Start("a", reconciler.For("jobs", func(ctx context.Context, _ *jobObject) (reconciler.Result, error) {
			require.NoError(t, ctx.Err())
			switch calls = append(calls, ctx); len(calls) {
			case 1:
				return reconciler.Result{}, errors.New("fails")
			case 2:
				panic("a bug")
			}
			return reconciler.Result{}, nil
		}))
		s.put("x", job{})
		s.RunUntilSettled()
		require.Len(t, calls, 3)
		for _, ctx := range calls {
			require.Error(t, ctx.Err())
		}
	})
}

// R21: an error of any make shows on the object and in the log.
func TestErrorsOfAnyKindAreRecordedAndLogged(t *testing.T) {
	fault := errors.New("a fault")
	var none *apiclient.Problem
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"plain":             {fault, "a fault"},
		"wrapped":           {fmt.Errorf("create: %w", fault), "create: a fault"},
		"joined":            {errors.Join(fault, errors.New("another")), "a fault\nanother"},
		"terminal":          {fmt.Errorf("create: %w", reconciler.Terminal(fault)), "create: a fault"},
		"a cancelled call":  {context.Canceled, "context canceled"},
		"a call of its own": {fmt.Errorf("dial: %w", context.DeadlineExceeded), "dial: context deadline exceeded"},
		"what a stop says":  {reconciler.ErrStopping, "the controller is stopping"},
		"what the API says": {apiclient.ErrFenced, "fenced"},
		"a pointer to none": {none, "panic: runtime error: invalid memory address or nil pointer dereference"},
		"a wrapper of none": {badChain{}, "panic: nothing to unwrap"},
		"without a message": {errors.New(""), "an error without a message, of type *errors.errorString"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				var logs lines
				s.StartWith("a", logs.sink, reconciler.For("jobs", func(context.Context, *jobObject) (reconciler.Result, error) {
					return reconciler.Result{RequeueAfter: time.Hour}, c.err
				}))
				s.put("x", job{})
				s.Advance(200 * time.Millisecond) // a panic has no Result: it is tried again soon
				x := s.get("x").Reconciliation
				require.Equal(t, c.want, x.LastError)
				require.Equal(t, 1, x.Failures)
				require.Contains(t, []apiclient.State{apiclient.StateRetrying, apiclient.StateStalled}, x.State)
				failed := logs.with("reconcile failed")
				require.Len(t, failed, 1)
				require.NotNil(t, failed[0]["error"])
			})
		})
	}
}

// badChain is an error that cannot be looked into.
type badChain struct{}

func (badChain) Error() string { return "a chain" }
func (badChain) Unwrap() error { panic("nothing to unwrap") }

// An object that the function's types do not fit gets no finalizer, and so can be deleted; one that came to misfit later
// can be repaired by who has seen that it is being deleted.
func TestObjectThatDoesNotFitCanBeDeleted(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.ForWithCleanup("jobs", work, work))
		raw := reconcilertest.Client[map[string]any, map[string]any](s.World, "jobs")
		misfit, fit := map[string]any{"Value": "big"}, map[string]any{"Value": 3}
		_, err := raw.Put(t.Context(), "never-fitted", misfit)
		require.NoError(t, err)
		_, err = raw.Put(t.Context(), "fitted", fit)
		require.NoError(t, err)
		s.Advance(time.Minute)
		_, err = raw.Put(t.Context(), "fitted", misfit)
		require.NoError(t, err)
		s.Advance(time.Minute)
		for _, name := range []string{"never-fitted", "fitted"} {
			_, err = raw.Delete(t.Context(), name)
			require.NoError(t, err)
		}
		s.Advance(time.Minute)
		_, err = raw.Get(t.Context(), "never-fitted")
		require.ErrorIs(t, err, apiclient.ErrNotFound)
		o, err := raw.Get(t.Context(), "fitted")
		require.NoError(t, err)
		require.Equal(t, apiclient.StateRetrying, o.Reconciliation.State)
		_, err = raw.Put(t.Context(), "fitted", fit, apiclient.IfRevision(o.Revision))
		require.NoError(t, err)
		s.Advance(time.Minute)
		_, err = raw.Get(t.Context(), "fitted")
		require.ErrorIs(t, err, apiclient.ErrNotFound)
	})
}

// An object that waits for a cleanup which its controller no longer has says so, and is tried again.
func TestDeletionWithoutTheCleanupSaysSo(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.ForWithCleanup("jobs", work, work))
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		require.NoError(t, a.Stop())
		b := s.Start("b", reconciler.For("jobs", work))
		_, err := s.jobs.Delete(t.Context(), "x")
		require.NoError(t, err)
		s.Advance(2 * reconciler.DefaultResync)
		require.Equal(t, apiclient.StateRetrying, s.get("x").Reconciliation.State)
		require.Contains(t, s.get("x").Reconciliation.LastError, "use ForWithCleanup")
		require.NoError(t, b.Stop())
		s.Start("c", reconciler.ForWithCleanup("jobs", work, work))
		_, err = s.jobs.Retry(t.Context(), "x")
		require.NoError(t, err)
		s.Advance(time.Minute)
		_, err = s.jobs.Get(t.Context(), "x")
		require.ErrorIs(t, err, apiclient.ErrNotFound)
	})
}

// A function that ends its goroutine, as t.FailNow does, keeps no worker and no lock.
func TestFunctionThatEndsItsGoroutineFails(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		c := reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if o.Name == "x" {
				runtime.Goexit()
			}
			return work(ctx, o)
		})
		c.Workers = 1
		s.Start("a", c)
		s.put("x", job{Value: 1})
		s.Advance(time.Second)
		s.put("y", job{Value: 1})
		s.Advance(time.Second)
		require.Equal(t, apiclient.StateRetrying, s.get("x").Reconciliation.State)
		require.Contains(t, s.get("x").Reconciliation.LastError, "t.FailNow")
		require.Equal(t, apiclient.StateReady, s.get("y").Reconciliation.State)
	})
}
