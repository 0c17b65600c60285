package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/requeue"
)

type (
	spec   struct{ Size int }
	status struct{ Made int }
	object = apiclient.Object[spec, status]
)

// returns is a function that does nothing but return.
func returns(r Result, err error) Func[spec, status] {
	return func(context.Context, *object) (Result, error) { return r, err }
}

// What becomes of an object's record is what the function says, and how often it has said it.
func TestRecordSaysWhatCameOfTheCall(t *testing.T) {
	refused := errors.New("no such region")
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		result   Result
		err      error
		failures int // before
		want     apiclient.Reconciliation
		after    time.Duration // until the next attempt; 0 for none, -1 for the backoff of this attempt
	}{
		"success":               {want: apiclient.Reconciliation{State: apiclient.StateReady}},
		"success after failure": {failures: 4, want: apiclient.Reconciliation{State: apiclient.StateReady}},
		"success, and again":    {result: Result{RequeueAfter: day}, want: apiclient.Reconciliation{State: apiclient.StateReady}, after: day},
		"failure": {
			err: refused, want: apiclient.Reconciliation{State: apiclient.StateRetrying, Failures: 1, LastError: "no such region"}, after: -1,
		},
		"fifth failure": {
			err: refused, failures: 4, want: apiclient.Reconciliation{State: apiclient.StateRetrying, Failures: 5, LastError: "no such region"}, after: -1,
		},
		"failure, with its own delay": {
			err: refused, failures: 4, result: Result{RequeueAfter: day},
			want: apiclient.Reconciliation{State: apiclient.StateRetrying, Failures: 5, LastError: "no such region"}, after: day,
		},
		"terminal": {
			err: fmt.Errorf("make: %w", Terminal(refused)), failures: 2, result: Result{RequeueAfter: day},
			want: apiclient.Reconciliation{State: apiclient.StateStalled, Failures: 3, LastError: "make: no such region"},
		},
		"throttled": {
			err: fmt.Errorf("make: %w", Throttled(refused, time.Hour)), failures: 2, result: Result{RequeueAfter: day},
			want: apiclient.Reconciliation{State: apiclient.StateWaiting, Failures: 2, LastError: "make: no such region"}, after: time.Hour,
		},
		"throttled for no time": {
			err: Throttled(refused, 0), want: apiclient.Reconciliation{State: apiclient.StateWaiting, LastError: "no such region"}, after: requeue.Floor,
		},
		"throttled for less than none": {
			err: Throttled(refused, -time.Hour), want: apiclient.Reconciliation{State: apiclient.StateWaiting, LastError: "no such region"}, after: requeue.Floor,
		},
		"an error that says nothing": {
			err: errors.New(""), want: apiclient.Reconciliation{State: apiclient.StateRetrying, Failures: 1, LastError: "an error without a message, of type *errors.errorString"}, after: -1,
		},
		"a negative delay": {
			result: Result{RequeueAfter: -1},
			want:   apiclient.Reconciliation{State: apiclient.StateRetrying, Failures: 1, LastError: "the function returned RequeueAfter -1ns: want 0 or more"}, after: -1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &apiclient.Raw{Generation: 7, RetryRequest: "r", Reconciliation: apiclient.Reconciliation{ObservedGeneration: 7, Failures: c.failures, LastError: "earlier", HandledRetry: "q"}}
				controller := For("jobs", func(context.Context, *object) (Result, error) {
					time.Sleep(time.Minute)
					return c.result, c.err
				})
				began := time.Now()
				status, got, result, err := controller.Once(t.Context(), o)
				require.Nil(t, status, "it did not change")
				require.Equal(t, c.result, result)
				require.Equal(t, c.want.LastError == "", err == nil)

				next := got.NextAttempt
				got.NextAttempt = nil
				c.want.ObservedGeneration, c.want.HandledRetry, c.want.LastAttempt = 7, "r", &began
				require.Equal(t, c.want, got)
				switch {
				case c.after == 0:
					require.Nil(t, next)
				case c.after > 0:
					require.Equal(t, c.after, time.Until(*next))
				default:
					require.GreaterOrEqual(t, time.Until(*next), requeue.Floor)
					require.LessOrEqual(t, time.Until(*next), requeue.Backoff{}.Ceiling(c.failures+1))
				}
			})
		})
	}
}

// The times of a record are by the clock that is passed, which may be another host's.
func TestRecordIsByTheServersClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := jobs()
		began := time.Now()
		time.Sleep(3 * time.Second)
		ahead := time.Now().Add(time.Hour)
		rec := c.record(&apiclient.Raw{}, outcome{began: began, result: Result{RequeueAfter: time.Minute}}, ahead)
		require.Equal(t, ahead.Add(-3*time.Second), *rec.LastAttempt)
		require.Equal(t, ahead.Add(time.Minute), *rec.NextAttempt)
	})
}

func TestRecordOfADeletion(t *testing.T) {
	now := time.Now()
	c := jobs()
	rec := c.record(&apiclient.Raw{DeletedAt: &now}, outcome{result: Result{RequeueAfter: time.Minute}}, now)
	require.Equal(t, apiclient.StateDeleting, rec.State, "the cleanup is not done yet")
	rec = c.record(&apiclient.Raw{DeletedAt: &now}, outcome{err: errors.New("no"), attempt: 1}, now)
	require.Equal(t, apiclient.StateRetrying, rec.State)
}

// A new spec begins anew: what failed was another one.
func TestAttemptsCountTriesOfOneSpec(t *testing.T) {
	o := &apiclient.Raw{Generation: 2, Reconciliation: apiclient.Reconciliation{ObservedGeneration: 2, Failures: 3}}
	require.Equal(t, 4, attempt(o))
	o.Generation = 3
	require.Equal(t, 1, attempt(o))
}

func TestLongErrorsAreCut(t *testing.T) {
	whole := strings.Repeat("x", maxError)
	require.Equal(t, whole, message(errors.New(whole)))
	require.Equal(t, whole+" …", message(errors.New(whole+"y")))
	cut := message(errors.New(whole[1:] + "ü")) // in the middle of a character
	require.Equal(t, whole[1:]+" …", cut)
	require.True(t, utf8.ValidString(cut))
}

// A function knows which call it is in, and what it logs says so.
func TestFunctionKnowsItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var line string
		var got Attempt
		var left time.Duration
		c := For("jobs", func(ctx context.Context, _ *object) (Result, error) {
			got = Current(ctx)
			require.Equal(t, goroutineID(), checkpointOf(ctx).goroutine(), "so that a report of it finds its stack")
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			Log(ctx).Info("at work")
			time.Sleep(time.Minute)
			return Result{}, nil
		})
		c.Timeout = time.Hour
		o := &apiclient.Raw{Name: "blue", UID: "u", Generation: 12, Reconciliation: apiclient.Reconciliation{ObservedGeneration: 12, Failures: 1}}
		log := funcr.NewJSON(func(s string) { line = s }, funcr.Options{})
		out := c.invoke(t.Context(), log, o, 12, "changed", new(checkpoint))
		require.NoError(t, out.err)
		require.Equal(t, Attempt{Kind: "jobs", Name: "blue", Number: 2, Fence: 12, Reason: "changed", IdempotencyKey: "u-12"}, got)
		require.Equal(t, time.Hour, left)
		require.JSONEq(t, `{"logger":"","level":0,"msg":"at work","kind":"jobs","name":"blue","attempt":2,"fence":12}`, line)
		require.Equal(t, time.Minute, out.took)
		require.Equal(t, 2, out.attempt)
		require.Zero(t, Current(t.Context()))
		Log(t.Context()).Info("outside of a call, nothing is logged")
		require.Contains(t, line, "at work")

		_, _, _, err := c.Once(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, Attempt{Kind: "jobs", Name: "blue", Number: 2, Fence: 1, Reason: "once", IdempotencyKey: "u-12"}, got)
	})
}

// What a function leaves running is told by its context that the call is over.
func TestContextOfACallEndsWithIt(t *testing.T) {
	var left context.Context
	_, _, _, err := For("jobs", func(ctx context.Context, _ *object) (Result, error) {
		left = ctx
		return Result{}, ctx.Err()
	}).Once(t.Context(), new(apiclient.Raw))
	require.NoError(t, err)
	require.ErrorIs(t, left.Err(), context.Canceled)
}

// An error of a call that ran into its deadline says that first: what the function makes of it may not.
func TestErrorsOfLateFunctionsNameTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("connection closed")
		late := func(err error) error {
			c := For("jobs", func(ctx context.Context, _ *object) (Result, error) {
				<-ctx.Done()
				return Result{}, err
			})
			c.Timeout = time.Minute
			_, _, _, err = c.Once(t.Context(), &apiclient.Raw{})
			return err
		}
		err := late(gone)
		require.EqualError(t, err, "deadline of 1m0s exceeded: context deadline exceeded\nconnection closed")
		require.ErrorIs(t, err, gone)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, late(nil), "it has done its work all the same")

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(ErrStopping)
		_, _, _, err = For("jobs", returns(Result{}, gone)).Once(ctx, &apiclient.Raw{})
		require.Equal(t, gone, err, "which has nothing to do with the deadline")
	})
}

type unwell struct{ text *string }

func (e *unwell) Error() string { return *e.text }

// Whatever a function does ends its call, and nothing else.
func TestCallSurvivesWhateverItsFunctionDoes(t *testing.T) {
	for name, c := range map[string]struct {
		f    func() error
		want string
	}{
		"panics":                 {func() error { panic("a bug") }, "panic: a bug"},
		"panics with nil":        {func() error { panic(nil) }, "panic: panic called with nil"}, //nolint:govet // on purpose
		"ends its goroutine":     {func() error { runtime.Goexit(); return nil }, "the function ended its goroutine"},
		"returns an empty error": {func() error { return (*unwell)(nil) }, "panic: runtime error: invalid memory address"},
	} {
		t.Run(name, func(t *testing.T) {
			controller := For("jobs", func(_ context.Context, o *object) (Result, error) {
				o.Status.Made = 7
				return Result{RequeueAfter: time.Hour}, c.f()
			})
			status, rec, result, err := controller.Once(t.Context(), &apiclient.Raw{})
			require.ErrorContains(t, err, c.want)
			require.Nil(t, status)
			require.Zero(t, result)
			require.Equal(t, apiclient.StateRetrying, rec.State)
		})
	}
}

// Deletion goes to the cleanup, and only to it.
func TestDeletedObjectsGoToTheCleanup(t *testing.T) {
	now, made, undone := time.Now(), errors.New("made"), errors.New("undone")
	both := ForWithCleanup("jobs", returns(Result{}, made), returns(Result{}, undone))
	_, _, _, err := both.Once(t.Context(), &apiclient.Raw{})
	require.ErrorIs(t, err, made)
	_, _, _, err = both.Once(t.Context(), &apiclient.Raw{DeletedAt: &now})
	require.ErrorIs(t, err, undone)
	_, rec, _, err := For("jobs", returns(Result{}, made)).Once(t.Context(), &apiclient.Raw{DeletedAt: &now})
	require.ErrorIs(t, err, errNoCleanup)
	require.Equal(t, apiclient.StateRetrying, rec.State, "the next replica may have a cleanup")
}

// Functions get the whole object, in their types, and the status that they leave is stored if it is another one.
func TestFunctionGetsTheWholeObject(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2030, 1, 1, 0, 0, s, 0, time.UTC) }
	deleted := at(3)
	raw := &apiclient.Raw{
		Kind: "jobs", Name: "blue", UID: "u", Labels: map[string]string{"a": "b"}, Generation: 2, Revision: 9, CreatedAt: at(1), ChangedAt: at(2),
		DeletedAt: &deleted, Finalizers: []string{"p"}, Paused: true, RetryRequest: "r", RetryRequestedAt: &deleted, Version: "v2",
		Spec: json.RawMessage(`{"Size":3}`), Status: json.RawMessage(`{"Made":2}`), Reconciliation: apiclient.Reconciliation{Fence: 4, Failures: 1},
	}
	var got object
	c := ForWithCleanup("jobs", nil, func(_ context.Context, o *object) (Result, error) {
		got = *o
		o.Status.Made++
		return Result{}, nil
	})
	status, _, err := c.cleanup(context.WithValue(t.Context(), checkpointKey{}, new(checkpoint)), raw)
	require.NoError(t, err)
	require.JSONEq(t, `{"Made":3}`, string(status))

	for field, value := range reflect.ValueOf(*raw).Fields() {
		require.True(t, field.Name == "Sealed" || !value.IsZero(), "give %s a value here", field.Name)
	}
	want, err := json.Marshal(raw)
	require.NoError(t, err)
	have, err := json.Marshal(got)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(have))
}

// An object that does not fit the function's types is not passed to it: what it would leave out would be lost.
func TestObjectThatDoesNotFitIsNotPassedOn(t *testing.T) {
	c := For("jobs", func(context.Context, *object) (Result, error) { panic("called") })
	for _, tt := range []struct{ spec, status, want string }{
		{`{"Size":"big"}`, `{}`, "the spec does not fit the controller's type: json: "},
		{`{}`, `{"Made":"many"}`, "the status does not fit the controller's type: json: "},
	} {
		o := &apiclient.Raw{Spec: json.RawMessage(tt.spec), Status: json.RawMessage(tt.status)}
		_, rec, _, err := c.Once(t.Context(), o)
		require.ErrorContains(t, err, tt.want)
		require.Equal(t, apiclient.StateRetrying, rec.State, "another version of the controller may be on its way")
		require.ErrorContains(t, c.fits(o), tt.want)
	}
	require.NoError(t, c.fits(&apiclient.Raw{Spec: json.RawMessage(`{"Size":3}`)}), "no status yet")
}

// Codecs are of users, and may panic or fail.
type picky struct{ Decode, Encode string }

func (p *picky) UnmarshalJSON(data []byte) error {
	type plain picky
	if err := json.Unmarshal(data, (*plain)(p)); err != nil {
		return err
	}
	if p.Decode != "" {
		panic(p.Decode)
	}
	return nil
}

func (p picky) MarshalJSON() ([]byte, error) {
	switch p.Encode {
	case "":
		return []byte(`{}`), nil
	case "fail":
		return nil, errors.New("cannot encode")
	}
	panic(p.Encode)
}

func TestCodecsThatPanicAreErrorsOfTheirObject(t *testing.T) {
	unhappy := errors.New("and the call failed")
	for name, tt := range map[string]struct {
		spec, status string
		leave        string // what the function leaves in the status
		want         []string
	}{
		"spec":                    {spec: `{"Decode":"a bad spec"}`, want: []string{"the spec does not fit", "panic: a bad spec"}},
		"status":                  {status: `{"Encode":"a bad status"}`, want: []string{"encode status: panic: a bad status"}},
		"status that was left":    {leave: "left behind", want: []string{"encode status: panic: left behind", "and the call failed"}},
		"status that has no form": {leave: "fail", want: []string{"encode status: json: ", "cannot encode", "and the call failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := For("jobs", func(_ context.Context, o *apiclient.Object[picky, picky]) (Result, error) {
				o.Status.Encode = tt.leave
				return Result{}, unhappy
			})
			_, _, _, err := c.Once(t.Context(), &apiclient.Raw{Spec: json.RawMessage(tt.spec), Status: json.RawMessage(tt.status)})
			for _, want := range tt.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}
