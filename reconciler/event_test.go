package reconciler

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// logsUpTo has a config log up to a verbosity, to lines.
func logsUpTo(verbosity int, lines *[]string) func(*Config) {
	return func(c *Config) {
		c.Logger = funcr.NewJSON(func(s string) { *lines = append(*lines, s) }, funcr.Options{Verbosity: verbosity})
	}
}

// fields are those of a line of the log that say something; funcr gives each line a logger.
func fields(t *testing.T, line string) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &m), line)
	delete(m, "logger")
	return m
}

// What operators must see is logged at the default level, once, and says of which object it is.
func TestLogSaysWhatOperatorsMustSee(t *testing.T) {
	broken := errors.New("no answer")
	of := `"kind":"jobs","name":"blue","attempt":2,"fence":7`
	for name, c := range map[string]struct {
		event Event
		want  string // empty: nothing at the default level
	}{
		"trouble of an object": {Event{Step: StepTrouble, Reason: "read", Err: broken}, `{"msg":"trouble, will be retried","error":"no answer",` + of + `,"doing":"read"}`},
		"overdue": {
			Event{Step: StepOverdue, Err: broken, Duration: time.Minute, Stack: "main.f"},
			`{"msg":"overdue","error":"no answer",` + of + `,"after":"1m0s","stack":"main.f"}`,
		},
		"fenced":      {Event{Step: StepFenced, Err: broken}, `{"level":0,"msg":"result dropped: a later run has written",` + of + `,"error":"no answer"}`},
		"lost":        {Event{Step: StepLost}, `{"level":0,"msg":"lock lost: another replica takes the object over",` + of + `}`},
		"handed over": {Event{Step: StepHandedOver, Reason: "stopping"}, `{"level":0,"msg":"handed over",` + of + `,"reason":"stopping"}`},
		"took over":   {Event{Step: StepTookOver, Holder: "b"}, `{"level":0,"msg":"took over","kind":"jobs","name":"blue","from":"b"}`},
		"running":     {Event{Step: StepRunning}, `{"level":0,"msg":"running","replica":"a","kinds":["jobs"],"prefix":"evenkeel"}`},
		"stopping":    {Event{Step: StepStopping, After: time.Minute}, `{"level":0,"msg":"stopping: running functions may finish","within":"1m0s"}`},
		"started":     {Event{Step: StepStarted}, ""},
		"released":    {Event{Step: StepReleased}, ""},
		"contended":   {Event{Step: StepContended}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newReplica(t, nil)
			e := c.event
			e.Kind, e.Name, e.Attempt, e.Fence = "jobs", "blue", 2, 7
			s.emit(e)
			lines := s.lines()
			if c.want == "" {
				require.Empty(t, lines)
				return
			}
			require.Len(t, lines, 1)
			require.Equal(t, fields(t, c.want), fields(t, lines[0]))
		})
	}
}

func TestLogSaysEachStepIfItIsAskedTo(t *testing.T) {
	var lines []string
	s := newReplica(t, logsUpTo(1, &lines))
	s.emit(Event{Step: StepPatched, Kind: "jobs", Name: "blue", Attempt: 2, Fence: 7, Reason: "why", State: apiclient.StateReady, After: time.Second})
	s.emit(Event{Step: StepFinished, Err: errors.New("no")})
	require.Len(t, lines, 2)
	require.Equal(t, fields(t, `{"level":1,"msg":"patched","kind":"jobs","name":"blue","attempt":2,"fence":7,"reason":"why","state":"Ready","after":"1s","error":""}`),
		fields(t, lines[0]))
	require.Equal(t, "no", fields(t, lines[1])["error"])
}

// Trouble of no object that goes on is said ever more rarely, with how often it was not.
func TestTroubleThatGoesOnIsLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newReplica(t, nil)
		for i := range 60 {
			s.trouble("connect", fmt.Errorf("session %d: no answer", i))
			time.Sleep(time.Second)
		}
		s.trouble("connect", errors.New("refused"))
		require.Len(t, s.events(), 61, "observers see all")
		lines := s.lines()
		require.Len(t, lines, 5, "after 0, 5, 15 and 35 s, and the other one")
		require.Equal(t, fields(t, `{"msg":"trouble, will be retried","error":"session 5: no answer","doing":"connect","kind":"","repeated":4}`), fields(t, lines[1]))
		require.Equal(t, "refused", fields(t, lines[4])["error"])
	})
}

// Troubles are the same if only numbers and ids differ, and never if the kind or the words do.
func TestTroublesAreToldApartByTheirWords(t *testing.T) {
	require.Equal(t, sameTrouble("jobs", "open session x1: timed out"), sameTrouble("jobs", "open  session y22: timed out"))
	require.NotEqual(t, sameTrouble("jobs", "timed out"), sameTrouble("jobs", "refused"))
	require.NotEqual(t, sameTrouble("jobs", "timed out"), sameTrouble("trees", "timed out"))
}

// An event is told with its time and by whom, and an observer that panics is called again.
func TestObserverIsToldOfEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []Event
		s := newReplica(t, func(c *Config) {
			c.Observer = func(e Event) {
				seen = append(seen, e)
				panic("a bug")
			}
		})
		s.emit(Event{Step: StepSkipped, Kind: "jobs", Name: "blue", Attempt: 2, Fence: 7})
		s.emit(Event{Step: StepReleased})
		require.Equal(t, Event{Time: time.Now(), Replica: "a", Step: StepSkipped, Kind: "jobs", Name: "blue", Attempt: 2, Fence: 7}, seen[0])
		require.Len(t, seen, 2)
		require.Equal(t, fields(t, `{"msg":"the observer panicked","error":"panic: a bug","kind":"jobs","name":"blue","attempt":2,"fence":7,"step":"skipped"}`),
			fields(t, s.lines()[0]))

		without := newReplica(t, func(c *Config) { c.Observer = nil })
		without.emit(Event{Step: StepReleased})
		require.Empty(t, without.lines())
	})
}

// The log says what came of each call. What an object waits for is said once: it is no news that it goes on.
func TestLogSaysWhatCameOfACall(t *testing.T) {
	quota := Throttled(errors.New("no quota"), time.Minute)
	type record = apiclient.Reconciliation
	for name, c := range map[string]struct {
		err      error
		deleting bool
		before   record
		after    record
		next     time.Duration
		want     string
	}{
		"success":        {after: record{State: apiclient.StateReady}, want: `{"level":0,"msg":"reconciled","state":"Ready"`},
		"cleaned up":     {deleting: true, after: record{State: apiclient.StateDeleting}, want: `{"level":0,"msg":"cleaned up","state":"Deleting"`},
		"again":          {after: record{State: apiclient.StateReady}, next: time.Minute + 1, want: `{"level":0,"msg":"reconciled","state":"Ready","retryIn":"1m0s"`},
		"due already":    {after: record{State: apiclient.StateReady}, next: -time.Minute, want: `{"level":0,"msg":"reconciled","state":"Ready","retryIn":"0s"`},
		"failure":        {err: errors.New("no"), after: record{State: apiclient.StateRetrying}, want: `{"msg":"reconcile failed","error":"no","state":"Retrying"`},
		"failed cleanup": {err: errors.New("no"), deleting: true, want: `{"msg":"cleanup failed","error":"no","state":""`},
		"panic": {
			err:  fmt.Errorf("call: %w", &PanicError{Value: "a bug", Stack: []byte("goroutine 7 [running]:\nmain.f(0x1)\n\t/src/main.go:3 +0x1d")}),
			want: `{"msg":"reconcile failed","error":"call: panic: a bug","state":"","stack":["main.f /src/main.go:3"]`,
		},
		"waiting":            {err: quota, after: record{State: apiclient.StateWaiting, LastError: "no quota"}, want: `{"level":0,"msg":"waiting","for":"no quota","state":"Waiting"`},
		"waiting since then": {err: quota, before: record{State: apiclient.StateWaiting, LastError: "no quota"}, after: record{State: apiclient.StateWaiting, LastError: "no quota"}, want: `{"level":1,"msg":"waiting","for":"no quota","state":"Waiting"`},
		"for something else": {err: quota, before: record{State: apiclient.StateWaiting, LastError: "no room"}, after: record{State: apiclient.StateWaiting, LastError: "no quota"}, want: `{"level":0,"msg":"waiting","for":"no quota","state":"Waiting"`},
		"failed before":      {err: quota, before: record{State: apiclient.StateRetrying, LastError: "no quota"}, after: record{State: apiclient.StateWaiting, LastError: "no quota"}, want: `{"level":0,"msg":"waiting","for":"no quota","state":"Waiting"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lines []string
				s := newReplica(t, logsUpTo(1, &lines))
				r := &run{kind: s.kinds[0], turn: &turn{name: "blue"}, fence: 7, attempt: 2, object: &apiclient.Raw{Generation: 3, Reconciliation: c.before}}
				if now := time.Now(); c.deleting {
					r.object.DeletedAt = &now
				}
				if at := time.Now().Add(c.next); c.next != 0 {
					c.after.NextAttempt = &at
				}
				r.logOutcome(outcome{err: c.err, took: time.Second}, c.after)
				require.Len(t, lines, 1)
				require.Equal(t, fields(t, c.want+`,"kind":"jobs","name":"blue","attempt":2,"fence":7,"generation":3,"took":"1s"}`), fields(t, lines[0]))
			})
		})
	}
}

// A log that leaves out what goes well hears of failures all the same.
func TestQuietLogHearsOfFailures(t *testing.T) {
	var lines []string
	sink := quiet{funcr.NewJSON(func(s string) { lines = append(lines, s) }, funcr.Options{}).GetSink()}
	s := newReplica(t, func(c *Config) { c.Logger = logr.New(sink) })
	r := &run{kind: s.kinds[0], turn: &turn{name: "blue"}, object: &apiclient.Raw{}}
	r.logOutcome(outcome{}, apiclient.Reconciliation{})
	require.Empty(t, lines)
	r.logOutcome(outcome{err: errors.New("no")}, apiclient.Reconciliation{})
	require.Len(t, lines, 1)
}

// quiet is a sink of errors alone.
type quiet struct{ logr.LogSink }

func (quiet) Enabled(int) bool                    { return false }
func (q quiet) WithValues(kv ...any) logr.LogSink { return quiet{q.LogSink.WithValues(kv...)} }
