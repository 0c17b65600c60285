package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/lock"
)

// A requeue that fired is due by the server's clock, though this replica's is behind it; a look that was asked for does not
// make a retry come early.
func TestRequeueThatFiredIsDue(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		asked bool
		ahead time.Duration // of the next attempt, before now
		sent  time.Duration // of the server's time of the message, before now
		want  decision
	}{
		"due":                               {want: decideRun},
		"early":                             {ahead: 30 * time.Second, want: decideSleep},
		"fired, and the clock is behind":    {ahead: 3 * time.Minute, sent: 3 * time.Minute, want: decideRun},
		"early, and the clock is behind":    {ahead: 4 * time.Minute, sent: 3 * time.Minute, want: decideSleep},
		"fired long ago":                    {ahead: -time.Hour, sent: -time.Hour, want: decideRun},
		"asked for within the tolerance":    {asked: true, ahead: 500 * time.Millisecond, want: decideRun},
		"asked for before the next attempt": {asked: true, ahead: 30 * time.Second, want: decideSleep},
	} {
		next := now.Add(c.ahead)
		o := &apiclient.Raw{Generation: 1, Reconciliation: apiclient.Reconciliation{
			ObservedGeneration: 1, State: apiclient.StateRetrying, Failures: 2, NextAttempt: &next,
		}}
		r := &run{
			kind: &kind{r: &Runner{cfg: Config{Prefix: "p"}.withDefaults()}}, turn: &turn{name: "x"}, lock: new(lock.Lock),
			object: o, asked: c.asked, sent: now.Add(c.sent),
		}
		require.Equal(t, c.want, r.decide(now), name)
	}
}

// A panic's stack is logged as its frames, from the panic outwards.
func TestFramesOfAPanicAreReadable(t *testing.T) {
	_, _, err := guarded(t.Context(), new(checkpoint), func(context.Context, *apiclient.Raw) (json.RawMessage, Result, error) {
		panic("a bug")
	}, &apiclient.Raw{Name: "x"})
	var p *PanicError
	require.ErrorAs(t, err, &p)
	frames := p.frames()
	require.Regexp(t, `^github.com/evenkeel-io/evenkeel/reconciler.TestFramesOfAPanicAreReadable.func1 .*settle_test.go:\d+$`, frames[0])
	require.LessOrEqual(t, len(frames), maxFrames)
}

// A write is over only if the API itself has answered: what a proxy says for it may not be the last word.
func TestUnansweredWritesMayStillArrive(t *testing.T) {
	problem := func(status int) error { return fmt.Errorf("patch: %w", &apiclient.Problem{Status: status}) }
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"stored":                  {nil, false},
		"refused":                 {problem(400), false},
		"fenced":                  {problem(409), false},
		"too many requests":       {problem(429), false},
		"a proxy's timeout":       {problem(408), true},
		"internal error":          {problem(500), true},
		"a gateway's timeout":     {problem(504), true},
		"no answer":               {fmt.Errorf("patch: %w", apiclient.ErrUnavailable), true},
		"an answer of a stranger": {fmt.Errorf("patch: %w", apiclient.ErrUnexpectedResponse), true},
		"another error":           {errors.New("encode"), false},
	} {
		if got := unanswered(c.err); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
