package apiclient_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

func TestOwedSince(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	hours := func(n int) *time.Time {
		at := now.Add(time.Duration(n) * time.Hour)
		return &at
	}
	settled := apiclient.Reconciliation{ObservedGeneration: 2, State: apiclient.StateReady}
	type object = apiclient.Raw
	for name, c := range map[string]struct {
		change func(o *object)
		want   *time.Time // nil: owed none
	}{
		"settled":                        {func(*object) {}, nil},
		"never observed":                 {func(o *object) { o.Reconciliation = apiclient.Reconciliation{} }, hours(-5)},
		"older generation":               {func(o *object) { o.Reconciliation.ObservedGeneration = 1 }, hours(-5)},
		"next attempt to come":           {func(o *object) { o.Reconciliation.NextAttempt = hours(1) }, nil},
		"next attempt due":               {func(o *object) { o.Reconciliation.NextAttempt = hours(0) }, hours(0)},
		"next attempt overdue":           {func(o *object) { o.Reconciliation.NextAttempt = hours(-1) }, hours(-1)},
		"retry asked for":                {func(o *object) { o.RetryRequest, o.RetryRequestedAt = "r", hours(-1) }, hours(-1)},
		"retry asked for, no time":       {func(o *object) { o.RetryRequest = "r" }, hours(-5)},
		"a reconcile that has not ended": {func(o *object) { o.Reconciliation.State = apiclient.StateReconciling }, hours(-5)},
		"a reconcile that has been running for an hour": {func(o *object) {
			o.Reconciliation.State, o.Reconciliation.RunningSince = apiclient.StateReconciling, hours(-1)
		}, hours(-1)},
		"resumed and not looked at since": {func(o *object) { o.Reconciliation.State = apiclient.StatePaused }, hours(-5)},
		"retry handled": {func(o *object) {
			o.RetryRequest, o.RetryRequestedAt, o.Reconciliation.HandledRetry = "r", hours(-1), "r"
		}, nil},
		"deletion observed":          {func(o *object) { o.DeletedAt, o.Reconciliation.NextAttempt = hours(-2), hours(1) }, hours(-2)},
		"several reasons: the first": {func(o *object) { o.DeletedAt, o.Reconciliation.NextAttempt = hours(-2), hours(-3) }, hours(-3)},
		"paused":                     {func(o *object) { o.Paused, o.DeletedAt, o.Reconciliation.ObservedGeneration = true, hours(-2), 1 }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := &object{Generation: 2, ChangedAt: *hours(-5), Reconciliation: settled}
			c.change(o)
			since, owed := o.OwedSince(now)
			require.Equal(t, c.want != nil, owed)
			if owed {
				require.Equal(t, *c.want, since)
			}
		})
	}
}
