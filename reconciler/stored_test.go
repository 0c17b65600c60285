package reconciler

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// What waits for the outcome is called when the function has returned, in order, whatever it returned; what comes later than the
// call waits for nothing.
func TestOnceCallsWhatWaitsForTheOutcome(t *testing.T) {
	for _, result := range []error{nil, errors.New("fails")} {
		var told []string
		tell := func(what string) func() { return func() { told = append(told, what) } }
		var kept context.Context
		c := For("widgets", func(ctx context.Context, _ *object) (Result, error) {
			kept = ctx
			WhenStored(ctx, tell("first"))
			WhenStored(ctx, tell("second"))
			tell("returns")()
			return Result{}, result
		})
		_, _, _, err := c.Once(t.Context(), &apiclient.Raw{Kind: "widgets", Name: "a", Generation: 1})
		require.Equal(t, result, err)
		require.Equal(t, []string{"returns", "first", "second"}, told)
		WhenStored(kept, tell("late"))
		WhenStored(t.Context(), tell("outside"))
		require.Equal(t, []string{"late", "outside"}, told[3:])
	}
}
