package reconciler

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// A function that goes on past its deadline is reported once, with where it is, and gives its worker to others after the grace
// period.
func TestFunctionThatIgnoresItsDeadlineIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnderWay(t, func(c *Controller) { c.Timeout = time.Minute })
		during := new(checkpoint)
		end := make(chan struct{})
		go func() {
			during.runsIn(goroutineID())
			<-end
		}()
		stop := u.watchDeadline(t.Context(), during)
		time.Sleep(time.Minute + overdueAfter - 1)
		synctest.Wait()
		require.Empty(t, u.s.events())
		time.Sleep(time.Nanosecond)
		synctest.Wait()

		const want = "still running 1s after its deadline of 1m0s: the function ignores its context"
		got := u.s.events()
		require.Len(t, got, 2)
		require.Equal(t, []any{StepOverdue, time.Minute + time.Second}, []any{got[0].Step, got[0].Duration})
		require.EqualError(t, got[0].Err, want)
		require.Contains(t, got[0].Stack, "TestFunctionThatIgnoresItsDeadlineIsReported.func1.2")
		require.NotContains(t, got[0].Stack, "overdue.go", "the stack is the function's, not the reporter's")
		o := u.stored().Reconciliation
		require.Equal(t, []any{apiclient.StateReconciling, want}, []any{o.State, o.LastError})
		happened, err := u.api.Events(t.Context(), "blue")
		require.NoError(t, err)
		require.Equal(t, []string{apiclient.HappenedOverdue, want}, []string{happened[0].Reason, happened[0].Message})

		require.Zero(t, u.detached.Load())
		time.Sleep(u.r.cfg.Grace)
		synctest.Wait()
		require.EqualValues(t, 1, u.detached.Load())
		close(end)
		require.True(t, stop(), "the object says so, and must be told otherwise")
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, u.detached.Load())
	})
}

func TestFunctionThatKeepsItsDeadlineIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnderWay(t, func(c *Controller) { c.Timeout = time.Minute })
		stop := u.watchDeadline(t.Context(), new(checkpoint))
		time.Sleep(time.Minute)
		require.False(t, stop())
		time.Sleep(time.Hour)
		require.Empty(t, u.s.events())
		require.Zero(t, u.detached.Load())
	})
}

// A report that is being stored when the function returns is given up, and waited for: it must not undo the outcome.
func TestReportUnderWayIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnderWay(t, func(c *Controller) { c.Timeout = time.Minute })
		u.before = func(r *http.Request) error {
			<-r.Context().Done()
			time.Sleep(time.Second)
			return context.Cause(r.Context())
		}
		stop := u.watchDeadline(t.Context(), new(checkpoint))
		time.Sleep(time.Minute + overdueAfter + time.Second)
		now := time.Now()
		require.True(t, stop())
		require.Equal(t, time.Second, time.Since(now))
		time.Sleep(time.Hour)
		require.Zero(t, u.detached.Load(), "its worker is its own again")
	})
}

// A report finds its place between the writes of others, unless they write all the time.
func TestReportBesideOtherWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnderWay(t, nil)
		u.before = func(r *http.Request) error {
			if r.Method == http.MethodPatch {
				u.writeBeside()
			}
			return nil
		}
		u.overdue(t.Context(), new(checkpoint))
		require.EqualValues(t, interimTries, u.patches.Load())
	})
}

// A busy replica has thousands of goroutines; that of the function is among them.
func TestStackIsFoundAmongThousands(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	var begun sync.WaitGroup
	for range 10_000 {
		begun.Add(1)
		go func() { begun.Done(); <-end }()
	}
	begun.Wait()
	ids := make(chan string)
	go func() { ids <- goroutineID(); <-end }()
	id := <-ids
	require.Contains(t, stackOf(id), "goroutine "+id+" [")
	require.Contains(t, stackOf(id), "TestStackIsFoundAmongThousands")
}

func TestStackOfAGoroutineThatHasEndedIsEmpty(t *testing.T) {
	ids := make(chan string)
	go func() { ids <- goroutineID() }()
	id := <-ids
	require.Regexp(t, `^\d+$`, id)
	require.Eventually(t, func() bool { return stackOf(id) == "" }, time.Minute, time.Millisecond)
	require.Contains(t, stackOf(goroutineID()), "TestStackOfAGoroutineThatHasEndedIsEmpty")
	require.NotContains(t, stackOf(goroutineID()), "\n\n", "one stack")
}
