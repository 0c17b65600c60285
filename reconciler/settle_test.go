package reconciler

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/requeue"
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

// The object decides what its turn does.
func TestObjectDecidesWhatItsTurnDoes(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) *time.Time { t := now.Add(d); return &t }
	type record = apiclient.Reconciliation
	for name, c := range map[string]struct {
		change func(*apiclient.Raw)
		asked  bool
		want   decision
		skips  string // the reason of the event
	}{
		"settled":                        {func(o *apiclient.Raw) {}, false, decideDone, "settled"},
		"asked for":                      {func(o *apiclient.Raw) {}, true, decideRun, ""},
		"new":                            {func(o *apiclient.Raw) { o.Reconciliation = record{} }, false, decideRun, ""},
		"changed":                        {func(o *apiclient.Raw) { o.Generation = 3 }, false, decideRun, ""},
		"changed and stalled":            {func(o *apiclient.Raw) { o.Generation, o.Reconciliation.State = 3, apiclient.StateStalled }, false, decideRun, ""},
		"to be retried":                  {func(o *apiclient.Raw) { o.RetryRequest = "r2" }, false, decideRun, ""},
		"to be retried and stalled":      {func(o *apiclient.Raw) { o.RetryRequest, o.Reconciliation.State = "r2", apiclient.StateStalled }, false, decideRun, ""},
		"paused":                         {func(o *apiclient.Raw) { o.Paused = true }, true, decidePause, ""},
		"paused and changed":             {func(o *apiclient.Raw) { o.Paused, o.Generation = true, 3 }, true, decidePause, ""},
		"resumed":                        {func(o *apiclient.Raw) { o.Reconciliation.State = apiclient.StatePaused }, false, decideRun, ""},
		"a run that died":                {func(o *apiclient.Raw) { o.Reconciliation.State = apiclient.StateReconciling }, false, decideRun, ""},
		"stalled":                        {func(o *apiclient.Raw) { o.Reconciliation.State = apiclient.StateStalled }, true, decideDone, "stalled"},
		"due":                            {func(o *apiclient.Raw) { o.Reconciliation.NextAttempt = at(-time.Minute) }, false, decideRun, ""},
		"due within the tolerance":       {func(o *apiclient.Raw) { o.Reconciliation.NextAttempt = at(early) }, false, decideRun, ""},
		"not due":                        {func(o *apiclient.Raw) { o.Reconciliation.NextAttempt = at(early + 1) }, false, decideSleep, "too early"},
		"not due, and asked for":         {func(o *apiclient.Raw) { o.Reconciliation.NextAttempt = at(time.Minute) }, true, decideRun, ""},
		"failed, and asked for":          {func(o *apiclient.Raw) { o.Reconciliation.NextAttempt, o.Reconciliation.Failures = at(time.Minute), 1 }, true, decideSleep, "too early"},
		"being deleted":                  {func(o *apiclient.Raw) { o.DeletedAt, o.Finalizers, o.Generation = at(0), []string{"x", "p"}, 3 }, false, decideRun, ""},
		"being deleted by others":        {func(o *apiclient.Raw) { o.DeletedAt, o.Finalizers, o.Generation = at(0), []string{"x"}, 3 }, false, decideDone, "being deleted by others"},
		"being deleted by others, asked": {func(o *apiclient.Raw) { o.DeletedAt, o.Finalizers = at(0), []string{"x"} }, true, decideDone, "being deleted by others"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newReplica(t, func(c *Config) { c.Prefix = "p" })
			r := &run{kind: s.kinds[0], turn: &turn{name: "x"}, fence: 9, asked: c.asked}
			r.object = &apiclient.Raw{Generation: 2, RetryRequest: "r1", Finalizers: []string{"p"}, Reconciliation: record{
				ObservedGeneration: 2, State: apiclient.StateReady, HandledRetry: "r1",
			}}
			c.change(r.object)
			require.Equal(t, c.want, r.decide(now))
			got := s.events()
			if c.skips == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			e := got[0]
			require.Equal(t, []any{StepSkipped, c.skips, "jobs", "x", uint64(9), r.object.Generation, r.object.DeletedAt != nil},
				[]any{e.Step, e.Reason, e.Kind, e.Name, e.Fence, e.Generation, e.Deleting})
		})
	}
}

// An outcome is stored unless the object says the same already. Each field that people or later runs go by counts.
func TestOutcomeIsStoredUnlessItIsThereAlready(t *testing.T) {
	now := time.Now()
	have := apiclient.Reconciliation{ObservedGeneration: 2, State: apiclient.StateReady, LastAttempt: &now, HandledRetry: "r", Fence: 4}
	for name, c := range map[string]struct {
		change func(have, next *apiclient.Reconciliation)
		want   bool
	}{
		"the same":             {func(_, _ *apiclient.Reconciliation) {}, true},
		"another time":         {func(_, next *apiclient.Reconciliation) { next.LastAttempt = nil }, true},
		"another generation":   {func(_, next *apiclient.Reconciliation) { next.ObservedGeneration = 3 }, false},
		"another state":        {func(_, next *apiclient.Reconciliation) { next.State = apiclient.StateStalled }, false},
		"a failure":            {func(_, next *apiclient.Reconciliation) { next.Failures = 1 }, false},
		"an error":             {func(_, next *apiclient.Reconciliation) { next.LastError = "no" }, false},
		"a retry":              {func(_, next *apiclient.Reconciliation) { next.HandledRetry = "r2" }, false},
		"a next attempt":       {func(_, next *apiclient.Reconciliation) { next.NextAttempt = &now }, false},
		"no next attempt":      {func(have, _ *apiclient.Reconciliation) { have.NextAttempt = &now }, false},
		"another next attempt": {func(have, next *apiclient.Reconciliation) { have.NextAttempt, next.NextAttempt = &now, &now }, false},
	} {
		have, next := have, have
		c.change(&have, &next)
		require.Equal(t, c.want, settled(have, next), name)
	}
}

// A status that the API will not take would be refused for ever: the object says so and rests.
func TestRefusedStatusStalls(t *testing.T) {
	next := time.Now()
	p := apiclient.StatusPatch{UID: "u", Fence: 7, Revision: 3, Status: []byte("{}"), RemoveFinalizers: []string{"p"}, Reconciliation: &apiclient.Reconciliation{
		ObservedGeneration: 4, State: apiclient.StateReady, NextAttempt: &next, HandledRetry: "r",
	}}
	got := refused(p, 3, errors.New("status.size: too large"))
	require.Equal(t, apiclient.StatusPatch{Reconciliation: &apiclient.Reconciliation{
		ObservedGeneration: 4, State: apiclient.StateStalled, Failures: 3, HandledRetry: "r", LastError: "the API refuses the status: status.size: too large",
	}}, got)
	require.Equal(t, apiclient.StateReady, p.Reconciliation.State, "the patch itself is left alone")
}

// A look that could not be carried out is made again: later with each turn that could not, but within the pace at which an
// outage is asked after, for which the object can do nothing.
func TestLookIsMadeAgainLaterEachTime(t *testing.T) {
	away := fmt.Errorf("read: %w", apiclient.ErrUnavailable)
	for name, c := range map[string]struct {
		attempt, givenUp int
		err              error
		most             time.Duration
	}{
		"the first":              {0, 0, errors.New("refused"), time.Second},
		"the first, of a call":   {1, 0, errors.New("refused"), time.Second},
		"after a failed attempt": {3, 0, errors.New("refused"), 4 * time.Second},
		"after turns without":    {0, 3, errors.New("refused"), 8 * time.Second},
		"after both":             {2, 3, errors.New("refused"), 16 * time.Second},
		"at the cap":             {9, 9, errors.New("refused"), time.Hour},
		"the API is away":        {9, 9, away, outage.Cap},
		"away for a moment":      {0, 0, away, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			k := jobs()
			k.Backoff = requeue.Backoff{Base: time.Second, Cap: time.Hour}
			r := &run{kind: &kind{Controller: k}, attempt: c.attempt, givenUp: c.givenUp}
			longest := time.Duration(0)
			for range 1000 {
				d := r.againIn(c.err)
				require.GreaterOrEqual(t, d, requeue.Floor)
				longest = max(longest, d)
			}
			require.LessOrEqual(t, longest, c.most)
			require.Greater(t, longest, c.most*9/10, "the jitter is full")
		})
	}
}

// A deletion is done when its cleanup has returned without an error and asks for no further look.
func TestFinalizerGoesWithTheFinishedCleanup(t *testing.T) {
	now := time.Now()
	record := apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 2}
	for name, c := range map[string]struct {
		deleting      bool
		out           outcome
		gone, changes bool
	}{
		"reconciled again":         {},
		"with another status":      {out: outcome{status: []byte(`{}`)}, changes: true},
		"and failed":               {out: outcome{attempt: 1, err: errors.New("no")}, changes: true},
		"cleaned up":               {deleting: true, gone: true, changes: true},
		"cleaned up, with status":  {deleting: true, out: outcome{status: []byte(`{}`)}, gone: true, changes: true},
		"cleanup failed":           {deleting: true, out: outcome{attempt: 1, err: errors.New("no")}, changes: true},
		"cleanup is not done":      {deleting: true, out: outcome{result: Result{RequeueAfter: 1}}, changes: true},
		"cleanup is not done, too": {deleting: true, out: outcome{result: Result{RequeueAfter: 1}, status: []byte(`{}`)}, changes: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newReplica(t, func(c *Config) { c.Prefix = "p" })
			r := &run{kind: s.kinds[0], turn: &turn{name: "x"}, object: &apiclient.Raw{Generation: 2, Reconciliation: record}}
			if c.deleting {
				r.object.DeletedAt = &now
			}
			p, changes := r.outcomePatch(c.out)
			require.Equal(t, c.changes, changes)
			require.Equal(t, c.out.status, p.Status)
			require.Equal(t, int64(2), p.Reconciliation.ObservedGeneration)
			var removed []string
			if c.gone {
				removed = []string{"p"}
			}
			require.Equal(t, removed, p.RemoveFinalizers)
		})
	}
}
