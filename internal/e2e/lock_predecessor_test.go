package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/e2e/wire"
	"github.com/evenkeel-io/evenkeel/lock"
)

func TestNextHolderLearnsHowThePreviousOneLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stopA := l.start("a")
		defer stopA()
		b, stopB := l.start("b")
		defer stopB()
		take := func(by *lock.Locker) *lock.Lock {
			synctest.Wait()
			lk, err := by.TryLock(t.Context(), "x")
			require.NoError(t, err)
			return lk
		}
		first := take(a)
		require.Nil(t, first.Predecessor(), "there was none")
		first.Unlock()
		clean := take(b)
		require.Nil(t, clean.Predecessor(), "it released the lock cleanly")
		clean.Abandon()
		clean.Unlock() // it is released already
		advance(14 * time.Minute)
		warned := take(a)
		require.Equal(t, &lock.Predecessor{Holder: "b"}, warned.Predecessor())
		warned.Abandon()
		again := take(b)
		require.Equal(t, &lock.Predecessor{Holder: "a"}, again.Predecessor())
		again.Unlock()
		settled := take(a)
		require.Nil(t, settled.Predecessor(), "b has dealt with it")
		settled.Abandon()
		advance(16 * time.Minute)
		late := take(b)
		require.Nil(t, late.Predecessor(), "nothing is under way for so long")
		late.Unlock()
	})
}

func TestNextHolderLearnsThatThePreviousOneDied(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		l.put("lock.x", `{"session":"gone","holder":"dead \"one\"\r\n"}`)
		b, stop := l.start("b")
		defer stop()
		advance(6 * time.Second)
		lk, err := b.TryLock(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, &lock.Predecessor{Holder: "dead \"one\"\r\n", Died: true}, lk.Predecessor())
		require.NoError(t, lk.Confirm(t.Context()))
		lk.Unlock()
	})
}

// A lock that nothing here knows of, and that replaced a marker, is freed by putting the marker back.
func TestWarningSurvivesAGhost(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stopA := l.start("a")
		defer stopA()
		var session string
		for subj := range l.keys("session.*") {
			session = strings.TrimPrefix(subj, "$KV.locks.session.")
		}
		ghost, err := json.Marshal(map[string]any{"session": session, "holder": "a", "nonce": 999, "predecessor": map[string]any{"holder": "dead", "died": true}})
		require.NoError(t, err)
		l.put("lock.x", string(ghost))
		require.NoError(t, l.nc.ForceReconnect())
		advance(8 * time.Second)
		lk, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, &lock.Predecessor{Holder: "dead", Died: true}, lk.Predecessor())
		lk.Unlock()
	})
}

// TestWarningSurvivesAnUncertainAcquisition: the try takes over the marker, and its answer comes when it has given up.
func TestWarningSurvivesAnUncertainAcquisition(t *testing.T) {
	withServer(t, nil, func(t *testing.T, s *server.Server, _ *nats.Conn, js jetstream.JetStream) {
		defer advance(time.Second) // what is on its way on the link arrives
		w, nc := wire.New(t, s, 2*time.Millisecond)
		defer nc.Close()
		require.NoError(t, lock.Ensure(t.Context(), js, "locks", 1, jetstream.MemoryStorage))
		a, stop := (&recovery{calls: map[string]int{}}).survivor(t, w, nc, "a")
		defer stop()
		lk, err := a.TryLock(t.Context(), "jobs.x")
		require.NoError(t, err)
		lk.Abandon()
		advance(5 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond) // refused after 4, read after 8, stored after 10
		defer cancel()
		_, err = a.TryLock(ctx, "jobs.x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		advance(10 * time.Millisecond)
		held, err := a.Held(t.Context(), "jobs.x")
		require.NoError(t, err)
		require.True(t, held, "it was stored")
		advance(5 * time.Second)
		next, err := a.TryLock(t.Context(), "jobs.x")
		require.NoError(t, err)
		require.Equal(t, &lock.Predecessor{Holder: "a"}, next.Predecessor())
		next.Unlock()
		advance(time.Second)
	})
}

func TestConfirmTellsALockFromOneThatIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stop := l.start("a")
		defer stop()
		lk, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		require.NoError(t, lk.Confirm(t.Context()))
		js, err := jetstream.New(l.nc)
		require.NoError(t, err)
		kv, err := js.KeyValue(t.Context(), "locks")
		require.NoError(t, err)
		e, err := kv.Get(t.Context(), "lock.x")
		require.NoError(t, err)
		l.put("lock.x", string(e.Value()))
		require.ErrorIs(t, lk.Confirm(t.Context()), lock.ErrLost, "the same value at another revision")
		l.put("lock.x", `{"session":"other","holder":"other"}`)
		require.ErrorContains(t, lk.Confirm(t.Context()), "held by other")
		require.NoError(t, kv.Delete(t.Context(), "lock.x"))
		require.ErrorIs(t, lk.Confirm(t.Context()), lock.ErrLost)
		require.NoError(t, js.DeleteStream(t.Context(), "KV_locks"))
		err = lk.Confirm(t.Context())
		require.Error(t, err)
		require.NotErrorIs(t, err, lock.ErrLost, "it is unknown")
	})
}

// A bucket that was deleted and made again gives revisions twice, and sessions count their locks from one: only all of
// them together say that it is the same lock.
func TestConfirmTakesNoOtherLockAtTheSameRevisionForThis(t *testing.T) {
	for name, value := range map[string]func(session string) string{
		"of another session":          func(string) string { return `{"session":"other","holder":"other","nonce":1}` },
		"another one of this session": func(session string) string { return `{"session":"` + session + `","holder":"a","nonce":2}` },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, l *lockers) {
				a, stop := l.start("a")
				defer stop()
				lk, err := a.TryLock(t.Context(), "x")
				require.NoError(t, err)
				var session string
				for subj := range l.keys("session.*") {
					session = strings.TrimPrefix(subj, "$KV.locks.session.")
				}
				js, err := jetstream.New(l.nc)
				require.NoError(t, err)
				require.NoError(t, js.DeleteStream(t.Context(), "KV_locks"))
				_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
					Name: "KV_locks", Subjects: []string{"$KV.locks.>"}, MaxMsgsPerSubject: 1, AllowMsgTTL: true,
					Storage: jetstream.MemoryStorage, FirstSeq: lk.Fence(),
				})
				require.NoError(t, err)
				l.put("lock.x", value(session))
				require.ErrorIs(t, lk.Confirm(t.Context()), lock.ErrLost)
			})
		})
	}
}

// A process that takes a lock again right after it released it is not held off by its own release, which is on its way.
func TestLockIsTakenAgainRightAfterItsRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stop := l.start("a")
		defer stop()
		for range 500 {
			lk, err := a.TryLock(t.Context(), "x")
			require.NoError(t, err)
			lk.Unlock()
		}
	})
}

func TestRunTwiceAtOnceIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stop := l.start("a")
		require.ErrorContains(t, a.Run(t.Context()), "running already")
		stop()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		synctest.Wait()
		lk, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err, "one after the other is fine")
		lk.Unlock()
		cancel()
		require.NoError(t, <-done)
	})
}

// TestHeldKeysAreListedBeyondOnePage: the server lists 100,000 subjects in an answer.
func TestHeldKeysAreListedBeyondOnePage(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		const n = 100_100
		a, stop := l.start("a")
		defer stop()
		for i := range n {
			require.NoError(t, l.nc.Publish(fmt.Sprintf("$KV.locks.lock.many.%d", i), []byte(`{}`)))
		}
		require.NoError(t, l.nc.Flush())
		one, err := a.TryLock(t.Context(), "few.1")
		require.NoError(t, err)
		two, err := a.TryLock(t.Context(), "few.2")
		require.NoError(t, err)
		two.Unlock()
		advance(5 * time.Second)
		keys, err := a.HeldKeys(t.Context(), "few.*")
		require.NoError(t, err)
		require.Equal(t, map[string]struct{}{"few.1": {}}, keys)
		keys, err = a.HeldKeys(t.Context(), "many.>")
		require.NoError(t, err)
		require.Len(t, keys, n)
		one.Unlock()
	})
}

// TestReleaseIsHeardByThousandsWhoWait, and each waits for its own key.
func TestReleaseIsHeardByThousandsWhoWait(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stopA := l.start("a")
		defer stopA()
		b, stopB := l.start("b")
		defer stopB()
		const n = 5000
		heard := make(chan int, 2*n)
		var locks []*lock.Lock
		for i := range n {
			lk, err := a.TryLock(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			locks = append(locks, lk)
			stop, err := b.OnRelease(fmt.Sprint(i), func() { heard <- i })
			require.NoError(t, err)
			if i%2 == 1 {
				stop()
			}
		}
		for _, lk := range locks {
			lk.Unlock()
		}
		advance(time.Second)
		require.Len(t, heard, n/2)
		for range n / 2 {
			require.Zero(t, <-heard%2)
		}
	})
}
