package e2e

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// Who is told that an outcome is stored sees it: of a success, a failure and a cleanup, and in the order of telling.
func TestTellsWhenTheOutcomeIsStored(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Fail(reconcilertest.Fault{Method: http.MethodPatch, Delay: time.Second})
		var told []string
		f := func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			o.Status.Value = o.Spec.Value
			for _, who := range []string{"a ", "b "} {
				reconciler.WhenStored(ctx, func() {
					now, err := s.jobs.Get(t.Context(), "x")
					if errors.Is(err, apiclient.ErrNotFound) {
						told = append(told, who+"gone")
						return
					}
					told = append(told, who+string(now.Reconciliation.State))
				})
			}
			if o.Spec.Value == 2 {
				return reconciler.Result{}, errors.New("a passing fault")
			}
			return reconciler.Result{}, nil
		}
		s.Start("a", reconciler.ForWithCleanup("jobs", f, f))
		s.put("x", job{Value: 1})
		s.Advance(time.Minute)
		require.Equal(t, []string{"a Ready", "b Ready"}, told)
		s.put("x", job{Value: 2})
		s.Advance(1500 * time.Millisecond)
		require.Equal(t, []string{"a Retrying", "b Retrying"}, told[2:])
		s.put("x", job{Value: 3})
		s.Advance(time.Minute)
		told = nil
		_, err := s.jobs.Delete(t.Context(), "x")
		require.NoError(t, err)
		s.RunUntilSettled()
		require.Equal(t, []string{"a gone", "b gone"}, told)
	})
}

// Nobody is told of what is not stored: here the lock was lost.
func TestTellsNothingOfWhatIsNotStored(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var told []string
		c := reconciler.For("jobs", func(ctx context.Context, _ *jobObject) (reconciler.Result, error) {
			a := reconciler.Current(ctx)
			reconciler.WhenStored(ctx, func() { told = append(told, a.Reason) })
			if len(s.runs("x")) == 1 {
				<-ctx.Done()
			}
			return reconciler.Result{}, nil
		})
		a := s.Start("a", c)
		s.put("x", job{Value: 1})
		s.Advance(time.Second)
		s.Start("b", c)
		a.Cut()
		s.RunUntilSettled()
		require.Equal(t, []string{"its holder a died"}, told)
	})
}

// A function that panics when the outcome is stored is logged, and ends neither the turn nor the replica.
func TestPanicWhenTheOutcomeIsStored(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		told := false
		var logs lines
		s.StartWith("a", logs.sink, reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			reconciler.WhenStored(ctx, func() { panic("on purpose") })
			reconciler.WhenStored(ctx, func() { told = true })
			return work(ctx, o)
		}))
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		require.True(t, told)
		require.Len(t, logs.with("a function for when the outcome is stored panicked"), 1)
		require.Len(t, s.Timeline().Of("jobs", "x").Only(reconciler.StepReleased), 1)
	})
}
