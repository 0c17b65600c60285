package reconciler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/lock"
)

// A requeue that fired is due even if this replica's clock is behind the server's; a look that somebody asked for does not
// make a retry come early.
func TestRequeueThatFiredIsDue(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		asked bool
		ahead time.Duration
		want  decision
	}{
		{false, 0, decideRun},
		{false, 30 * time.Second, decideRun},
		{false, 2 * time.Minute, decideSleep},
		{true, 500 * time.Millisecond, decideRun},
		{true, 30 * time.Second, decideSleep},
	} {
		next := now.Add(c.ahead)
		o := &apiclient.Raw{Generation: 1, Reconciliation: apiclient.Reconciliation{
			ObservedGeneration: 1, State: apiclient.StateRetrying, Failures: 2, NextAttempt: &next,
		}}
		r := &run{
			kind: &kind{r: &Runner{cfg: Config{Prefix: "p"}.withDefaults()}}, turn: &turn{name: "x"}, lock: new(lock.Lock),
			object: o, asked: c.asked,
		}
		require.Equal(t, c.want, r.decide(now), "%+v", c)
	}
}
