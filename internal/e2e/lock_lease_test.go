package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// A renewal that is lost, or whose answer is, costs another try and nothing else.
func TestLostRenewalInterruptsNoRun(t *testing.T) {
	for name, fault := range map[string]reconcilertest.BrokerFault{
		"a message":      {Times: 1},
		"three messages": {Times: 3},
		"an answer":      {Times: 1, Lose: true},
		"three answers":  {Times: 3, Lose: true},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				s.Start("a", reconciler.For("jobs", work))
				s.put("x", job{Millis: 30_000, Value: 1})
				s.Advance(3 * time.Second)
				fault.Subject = "$KV.evenkeel_locks.session."
				s.FailBroker(fault)
				s.RunUntilSettled()
				require.Empty(t, s.Timeline().Only(reconciler.StepLost))
				require.Len(t, s.runs("x"), 1)
				s.AssertConverged()
			})
		})
	}
}

// TestUnansweredReadsDoNotKeepALockFromItsRenewal: uncertain acquisitions are looked for, and the looks are not answered.
// Neither renewing the session nor cancelling its locks waits for them.
func TestUnansweredReadsDoNotKeepALockFromItsRenewal(t *testing.T) {
	denied := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.MSG.GET.>", "$KV.locks.lock.y.>"}}}
	withServer(t, denied, func(t *testing.T, s *server.Server, nc *nats.Conn, js jetstream.JetStream) {
		require.NoError(t, lock.Ensure(t.Context(), js, "locks", 1, jetstream.MemoryStorage))
		deaf := asUser(t, s)
		defer deaf.Close()
		a, stopA := (&lockers{t: t, nc: deaf}).start("a")
		defer stopA()
		b, stopB := (&lockers{t: t, nc: nc}).start("b")
		defer stopB()
		held, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		var trying sync.WaitGroup
		for i := range 8 {
			trying.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := a.TryLock(ctx, fmt.Sprintf("y.%d", i))
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error("the rights deny no answer:", err)
				}
			})
		}
		trying.Wait()
		for range 120 {
			advance(500 * time.Millisecond)
			_, err := b.TryLock(t.Context(), "x")
			if held.Context().Err() == nil {
				require.ErrorIs(t, err, lock.ErrHeld, "two hold it")
			}
		}
		require.NoError(t, context.Cause(held.Context()), "it is renewed")
	})
}

// A holder whose Locker ends is told: its lock is not renewed any more.
func TestEndOfALockerCancelsTheLocksThatAreHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stop := l.start("a")
		held, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		stop()
		require.ErrorIs(t, context.Cause(held.Context()), lock.ErrLost)
		held.Unlock()
		b, stopB := l.start("b")
		defer stopB()
		l.free(b, "x", 15*time.Second)
		require.Equal(t, []string{"x"}, l.recovered, "what it left behind is unknown")
	})
}

// A bucket that was put back to an older copy may know nothing of the locks that were granted since.
func TestSessionEndsWhenTheBucketGoesBackInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stop := l.start("a")
		defer stop()
		advance(10 * time.Second)
		held, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		js, err := jetstream.New(l.nc)
		require.NoError(t, err)
		var session string
		for subj := range l.keys("session.*") {
			session = subj
		}
		require.NoError(t, js.DeleteStream(t.Context(), "KV_locks"))
		_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: "KV_locks", Subjects: []string{"$KV.locks.>"}, MaxMsgsPerSubject: 1, AllowMsgTTL: true,
			Storage: jetstream.MemoryStorage, FirstSeq: held.Fence() - 1000,
		})
		require.NoError(t, err)
		_, err = l.nc.Request(session, []byte(`{}`), time.Second)
		require.NoError(t, err)
		advance(3 * time.Second)
		require.ErrorIs(t, context.Cause(held.Context()), lock.ErrLost)
		require.ErrorIs(t, held.Confirm(t.Context()), lock.ErrLost)
		require.True(t, a.Ready(), "it has another session")
	})
}

// What a holder that lost its lock left behind is unknown, whatever it does then: the lock goes through Recover.
func TestLockThatWasLostIsRecoveredAlthoughItIsUnlocked(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		recovering, goOn := make(chan string, 10), make(chan struct{})
		a, err := lock.New(l.nc, lock.Config{Bucket: "locks", Keys: []string{">"}, Recover: func(_ context.Context, key, _ string) error {
			recovering <- key
			<-goOn
			return nil
		}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		defer func() { cancel(); require.NoError(t, <-done) }()
		synctest.Wait()
		lk, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		js, err := jetstream.New(l.nc)
		require.NoError(t, err)
		kv, err := js.KeyValue(t.Context(), "locks")
		require.NoError(t, err)
		for subj := range l.keys("session.*") {
			require.NoError(t, kv.Delete(t.Context(), strings.TrimPrefix(subj, "$KV.locks.")))
		}
		<-lk.Context().Done()
		lk.Unlock()
		require.Equal(t, "x", <-recovering)
		held, err := a.Held(t.Context(), "x")
		require.NoError(t, err)
		require.True(t, held)
		close(goOn)
		l.free(a, "x", time.Second)
	})
}

// What a holder does to clean up goes on when its own context has ended, and ends with the lock, whichever comes first.
func TestHeldEndsWithTheLockAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stop := l.start("a")
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		lk, err := a.TryLock(ctx, "x")
		require.NoError(t, err)
		cancel()
		require.ErrorIs(t, context.Cause(lk.Context()), context.Canceled)
		advance(time.Minute)
		require.NoError(t, lk.Held().Err())
		js, err := jetstream.New(l.nc)
		require.NoError(t, err)
		s, err := js.Stream(t.Context(), "KV_locks")
		require.NoError(t, err)
		require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSubject("$KV.locks.session.*")))
		<-lk.Held().Done()
		require.ErrorIs(t, context.Cause(lk.Held()), lock.ErrLost)
		require.True(t, lk.Lost())
	})
}
