package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// What a function stores before it goes on is there when its replica dies, and whoever takes over sees it.
func TestCheckpointsOutliveTheirReplica(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var found []int
		c := reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			found = append(found, o.Status.Value)
			if o.Status.Value == 0 {
				o.Status.Value = 7
				if err := reconciler.Checkpoint(ctx, o); err != nil {
					return reconciler.Result{}, err
				}
				<-ctx.Done()
				return reconciler.Result{}, context.Cause(ctx)
			}
			o.Status.Value = 8
			return reconciler.Result{}, nil
		})
		a := s.Start("a", c)
		s.put("x", job{Value: 1})
		s.Advance(time.Second)
		require.Equal(t, 7, s.get("x").Status.Value)
		require.Equal(t, apiclient.StateReconciling, s.get("x").Reconciliation.State)
		a.Kill()
		s.Start("b", c)
		s.RunUntilSettled()
		require.Equal(t, []int{0, 7}, found)
		require.Equal(t, 8, s.get("x").Status.Value)
		require.Equal(t, apiclient.StateReady, s.get("x").Reconciliation.State)
		s.AssertOneWriter()
	})
}

// What counts at the end of a call is what is stored, not what was read: a status that is as it was before the checkpoint is
// written, and so is a record.
func TestStatusAfterACheckpointIsStored(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var after int
		a := s.Start("a", reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			before := o.Status.Value
			o.Status.Value = 7
			if err := reconciler.Checkpoint(ctx, o); err != nil {
				return reconciler.Result{}, err
			}
			o.Status.Value = before + after
			return reconciler.Result{}, nil
		}))
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		require.Zero(t, s.get("x").Status.Value)
		require.Equal(t, apiclient.StateReady, s.get("x").Reconciliation.State)
		after = 7
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "again"))
		s.Advance(time.Second)
		require.Equal(t, 7, s.get("x").Status.Value)
		require.Equal(t, apiclient.StateReady, s.get("x").Reconciliation.State, "also if the status is what was stored already")
	})
}

// A checkpoint that may or may not have been stored fails, and what the call ends with is stored in any case.
func TestDoubtfulCheckpointFails(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Fail(reconcilertest.Fault{Method: http.MethodPatch, Path: "/x/status", Lose: true, Times: 1})
		var failed error
		s.Start("a", reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			o.Status.Value = 7
			failed = reconciler.Checkpoint(ctx, o)
			o.Status.Value = 0
			return reconciler.Result{}, nil
		}))
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		require.ErrorIs(t, failed, apiclient.ErrUnavailable)
		require.Zero(t, s.get("x").Status.Value)
		require.Equal(t, apiclient.StateReady, s.get("x").Reconciliation.State)
	})
}

// Whoever has lost the lock is told so, and whose call is over stores nothing.
func TestLateCheckpointsAreRefused(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var late, over error
		calls := 0
		a := s.Start("a", reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if calls++; calls > 1 {
				return work(ctx, o)
			}
			<-ctx.Done()
			time.Sleep(time.Minute) // until somebody else has been here
			o.Status.Value = 7
			late = reconciler.Checkpoint(context.WithoutCancel(ctx), o)
			go func() {
				time.Sleep(time.Minute)
				over = reconciler.Checkpoint(context.WithoutCancel(ctx), o)
			}()
			return reconciler.Result{}, nil
		}))
		s.put("x", job{Value: 1})
		s.Advance(time.Second)
		a.CutNATS()
		s.Start("b", reconciler.For("jobs", work))
		s.Advance(5 * time.Minute)
		require.ErrorIs(t, late, apiclient.ErrFenced)
		require.ErrorContains(t, over, "the call is over")
		require.Equal(t, 1, s.get("x").Status.Value)
		require.ErrorContains(t, reconciler.Checkpoint(t.Context(), new(jobObject)), "not that of a function's call")
	})
}

// Without an API a checkpoint has nowhere to go, and succeeds.
func TestCheckpointInACallOfAFunction(t *testing.T) {
	out := reconcilertest.Call(t, func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
		o.Status.Value = 7
		err := reconciler.Checkpoint(ctx, o)
		return reconciler.Result{}, errors.Join(err, errors.New("and then"))
	}, &jobObject{})
	require.EqualError(t, out.Err, "and then")
	require.Equal(t, 7, out.Object.Status.Value)
}

// Somebody else's writes do not keep a checkpoint from being stored.
func TestCheckpointBesideOtherWrites(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		calls := 0
		s.Start("a", reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if calls++; calls > 1 {
				return reconciler.Result{}, nil
			}
			for value := range 3 {
				s.put("x", job{Value: 1, Millis: 1 + value})
				o.Status.Value = 10 + value
				if err := reconciler.Checkpoint(ctx, o); err != nil {
					return reconciler.Result{}, reconciler.Terminal(err)
				}
			}
			return reconciler.Result{}, nil
		}))
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		require.Equal(t, 2, calls)
		require.Equal(t, 12, s.get("x").Status.Value)
		require.NotEqual(t, apiclient.StateStalled, s.get("x").Reconciliation.State)
	})
}

// spy keeps the body of the first status patch.
type spy struct {
	http.RoundTripper
	url  string
	body []byte
}

func (s *spy) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.body == nil && strings.HasSuffix(r.URL.Path, "/status") {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		s.url, s.body, r.Body = r.URL.String(), data, io.NopCloser(bytes.NewReader(data))
	}
	return s.RoundTripper.RoundTrip(r)
}

// A checkpoint that arrives when its call is over changes nothing: the outcome stands.
func TestCheckpointThatArrivesLateIsRefused(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		spy := new(spy)
		s.StartWith("a", func(cfg *reconciler.Config) {
			spy.RoundTripper = cfg.HTTP.Transport
			cfg.HTTP = &http.Client{Transport: spy}
		}, reconciler.For("jobs", func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			o.Status.Value = 7
			err := reconciler.Checkpoint(ctx, o)
			o.Status.Value = 8
			return reconciler.Result{}, err
		}))
		s.put("x", job{Value: 1})
		s.RunUntilSettled()
		require.Contains(t, string(spy.body), `"Value":7`)
		answer := httptest.NewRecorder()
		s.API().ServeHTTP(answer, httptest.NewRequest(http.MethodPatch, spy.url, bytes.NewReader(spy.body))) // as the network would
		require.Equal(t, http.StatusConflict, answer.Code, answer.Body)
		require.Equal(t, 8, s.get("x").Status.Value)
	})
}
