package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// wide is what a newer version of the controller makes of a job: its users may write what the older one cannot decode.
type wide struct{ Value any }

type wideObject = apiclient.Object[wide, done]

func workWide(_ context.Context, o *wideObject) (reconciler.Result, error) {
	o.Status.By = "new"
	return reconciler.Result{}, nil
}

// While a version is rolled out, what the old replicas cannot decode is done by the new ones.
func TestObjectThatDoesNotFitIsTriedByOtherReplicas(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("old", reconciler.For("jobs", work))
		s.Start("new", reconciler.For("jobs", workWide))
		s.Advance(2 * time.Second)
		jobs := reconcilertest.Client[wide, done](s.World, "jobs")
		for i := range 10 {
			_, err := jobs.Create(t.Context(), fmt.Sprintf("x%d", i), wide{Value: "seven"})
			require.NoError(t, err)
		}
		began := time.Now()
		s.RunUntilSettled()
		require.Less(t, time.Since(began), time.Hour)
		for o, err := range jobs.All(t.Context()) {
			require.NoError(t, err)
			require.True(t, o.Ready(), "%s is %s: %s", o.Name, o.Reconciliation.State, o.Reconciliation.LastError)
		}
	})
}

// While a controller goes from For to ForWithCleanup, what is deleted is cleaned up by the new replicas.
func TestDeletionIsTriedByReplicasWithACleanup(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		var cleaned atomic.Int64
		cleanup := func(context.Context, *jobObject) (reconciler.Result, error) {
			cleaned.Add(1)
			return reconciler.Result{}, nil
		}
		s.Start("new", reconciler.ForWithCleanup("jobs", work, cleanup))
		for i := range 10 {
			s.put(fmt.Sprintf("x%d", i), job{Value: 1})
		}
		s.RunUntilSettled()
		s.Start("old", reconciler.For("jobs", work))
		s.Advance(2 * time.Second)
		for i := range 10 {
			_, err := s.jobs.Delete(t.Context(), fmt.Sprintf("x%d", i))
			require.NoError(t, err)
		}
		began := time.Now()
		s.RunUntilSettled()
		require.Less(t, time.Since(began), time.Hour)
		for o, err := range s.jobs.All(t.Context()) {
			require.NoError(t, err)
			require.Fail(t, "not deleted", "%s is %s: %s", o.Name, o.Reconciliation.State, o.Reconciliation.LastError)
		}
		require.EqualValues(t, 10, cleaned.Load())
	})
}

// fragile panics at some values.
type fragile struct{ Value string }

func (f *fragile) UnmarshalJSON(data []byte) error {
	if string(data) == `{"Value":"unreadable"}` {
		panic("cannot read that")
	}
	f.Value = string(data)
	return nil
}

func (f fragile) MarshalJSON() ([]byte, error) {
	if f.Value == "unwritable" {
		panic("cannot write that")
	}
	return []byte(`{"Value":"` + f.Value + `"}`), nil
}

// P4: a type that panics while it is decoded or encoded fails its object and nothing else.
func TestPanicWhileDecodingOrEncodingIsAnError(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		reconcile := func(ctx context.Context, o *apiclient.Object[fragile, fragile]) (reconciler.Result, error) {
			o.Status.Value = map[string]string{"writes": "unwritable", "checkpoints": "unwritable"}[o.Name]
			if o.Name == "checkpoints" {
				return reconciler.Result{}, reconciler.Checkpoint(ctx, o)
			}
			return reconciler.Result{}, nil
		}
		c := reconciler.ForWithCleanup("jobs", reconcile, reconcile)
		c.Workers = 1
		s.Start("a", c)
		jobs := reconcilertest.Client[map[string]string, map[string]string](s.World, "jobs")
		for _, name := range []string{"reads", "writes", "checkpoints", "healthy"} {
			spec := map[string]string{"Value": "fine"}
			if name == "reads" {
				spec["Value"] = "unreadable"
			}
			_, err := jobs.Create(t.Context(), name, spec)
			require.NoError(t, err)
		}
		s.Advance(time.Minute)
		for name, want := range map[string]string{
			"reads": "the spec does not fit the controller's type: panic: cannot read that", "writes": "encode status: panic: cannot write that",
			"checkpoints": "cannot write that", "healthy": "",
		} {
			o, err := jobs.Get(t.Context(), name)
			require.NoError(t, err)
			require.Contains(t, o.Reconciliation.LastError, want)
			require.Equal(t, name == "healthy", o.Ready(), name)
		}
	})
}
