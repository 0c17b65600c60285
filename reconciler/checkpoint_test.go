package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// checkpointed calls f as a runner does, with checkpoints stored by write.
func checkpointed(t *testing.T, write func(json.RawMessage) error, f Func[spec, status]) outcome {
	t.Helper()
	c := For("jobs", f).withDefaults()
	during := &checkpoint{}
	if write != nil {
		during.write = func(_ context.Context, status json.RawMessage) error { return write(status) }
	}
	s := newReplica(t, nil)
	return c.invoke(t.Context(), s.cfg.Logger, &apiclient.Raw{Status: json.RawMessage(`{"Made":1}`)}, 1, "", during)
}

// What is stored at the end is compared with the latest checkpoint: it may have to be taken back.
func TestStatusIsComparedWithTheLatestCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		fails   bool // the checkpoint
		then    int  // the status that the function leaves, after a checkpoint of 2
		changed bool
	}{
		"as the checkpoint":            {then: 2},
		"more than the checkpoint":     {then: 3, changed: true},
		"as before the checkpoint":     {then: 1, changed: true},
		"as a checkpoint that may be":  {fails: true, then: 2, changed: true},
		"as before one that may be so": {fails: true, then: 1, changed: true},
	} {
		t.Run(name, func(t *testing.T) {
			var stored []string
			away := errors.New("no answer")
			out := checkpointed(t, func(status json.RawMessage) error {
				stored = append(stored, string(status))
				if c.fails {
					return away
				}
				return nil
			}, func(ctx context.Context, o *object) (Result, error) {
				o.Status.Made = 2
				err := Checkpoint(ctx, o)
				require.Equal(t, c.fails, errors.Is(err, away))
				if err != nil {
					require.EqualError(t, err, "checkpoint: no answer")
				}
				o.Status.Made = c.then
				return Result{}, nil
			})
			require.NoError(t, out.err)
			require.Equal(t, []string{`{"Made":2}`}, stored)
			require.Equal(t, c.changed, out.status != nil)
		})
	}
}

// A checkpoint counts only during the call: what outlives it has no lock any more.
func TestCheckpointOutsideOfACallFails(t *testing.T) {
	o := &object{}
	require.ErrorContains(t, Checkpoint(t.Context(), o), "checkpoint: ctx is not that of a function's call")

	for name, end := range map[string]func(){"returned": func() {}, "panicked": func() { panic("a bug") }} {
		var left context.Context
		checkpointed(t, func(json.RawMessage) error {
			t.Error("stored")
			return nil
		}, func(ctx context.Context, _ *object) (Result, error) {
			left = ctx
			end()
			return Result{}, nil
		})
		require.EqualError(t, Checkpoint(left, o), "checkpoint: the call is over", name)
	}
}

func TestCheckpointOfAStatusWithoutAForm(t *testing.T) {
	ctx := context.WithValue(t.Context(), checkpointKey{}, &checkpoint{write: func(context.Context, json.RawMessage) error {
		t.Error("stored")
		return nil
	}})
	err := Checkpoint(ctx, &apiclient.Object[spec, chan int]{Status: make(chan int)})
	require.ErrorContains(t, err, "checkpoint: encode status: json: unsupported type")
}

// Without an API, in a test of a function, it succeeds, and the outcome is that of the whole call.
func TestCheckpointWithoutAnAPISucceeds(t *testing.T) {
	status, _, _, err := For("jobs", func(ctx context.Context, o *object) (Result, error) {
		o.Status.Made = 2
		return Result{}, Checkpoint(ctx, o)
	}).Once(t.Context(), &apiclient.Raw{})
	require.NoError(t, err)
	require.JSONEq(t, `{"Made":2}`, string(status))
}
