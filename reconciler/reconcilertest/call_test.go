package reconcilertest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

func TestCallSaysWhatWouldBeStored(t *testing.T) {
	fails := func(err error) reconciler.Func[spec, status] {
		return func(context.Context, *widget) (reconciler.Result, error) { return reconciler.Result{}, err }
	}
	for name, c := range map[string]struct {
		f       reconciler.Func[spec, status]
		state   apiclient.State
		message string
		next    bool
	}{
		"success":   {copySize, apiclient.StateReady, "", false},
		"error":     {fails(errors.New("no disk")), apiclient.StateRetrying, "no disk", true},
		"terminal":  {fails(reconciler.Terminal(errors.New("bad size"))), apiclient.StateStalled, "bad size", false},
		"throttled": {fails(reconciler.Throttled(errors.New("quota"), time.Minute)), apiclient.StateWaiting, "quota", true},
		"panic":     {func(context.Context, *widget) (reconciler.Result, error) { panic("bug") }, apiclient.StateRetrying, "panic: bug", true},
	} {
		t.Run(name, func(t *testing.T) {
			out := reconcilertest.Call(t, c.f, &widget{Spec: spec{Size: 3}})
			require.Equal(t, c.state, out.Object.Reconciliation.State)
			require.Equal(t, c.message, out.Object.Reconciliation.LastError)
			require.Equal(t, c.next, out.Object.Reconciliation.NextAttempt != nil)
			require.Equal(t, c.state == apiclient.StateReady, out.StatusChanged)
		})
	}
}

func TestCallSeesAnObjectAsItIs(t *testing.T) {
	now := time.Now()
	out := reconcilertest.Call(t, func(ctx context.Context, w *widget) (reconciler.Result, error) {
		require.Equal(t, "blue", w.Name)
		require.NotNil(t, w.DeletedAt)
		require.Equal(t, 4, reconciler.Current(ctx).Number)
		return reconciler.Result{}, errors.New("again")
	}, &widget{Name: "blue", Generation: 2, DeletedAt: &now, Reconciliation: apiclient.Reconciliation{ObservedGeneration: 2, Failures: 3}})
	require.Equal(t, 4, out.Object.Reconciliation.Failures)
}
