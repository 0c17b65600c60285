package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/e2e/wire"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// recovery is what the survivors of a death did.
type recovery struct {
	mu    sync.Mutex
	calls map[string]int // by key
	last  time.Time
}

func (r *recovery) note(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[key]++
	r.last = time.Now()
}

// survivor runs a locker over a link of its own, of 2 ms each way. Its Recover costs a round trip.
func (r *recovery) survivor(t *testing.T, w *wire.Wire, nc *nats.Conn, name string) (l *lock.Locker, stop func()) {
	t.Helper()
	l, err := lock.New(nc, lock.Config{
		Bucket: "locks", Holder: name, Keys: []string{"jobs.>", subject.ResyncLockKey("jobs")},
		Recover: func(ctx context.Context, key, _ string) error {
			if _, err := nc.RequestWithContext(ctx, "$JS.API.INFO", nil); err != nil {
				return err
			}
			r.note(key)
			return nil
		},
		OnError: func(doing string, err error) { t.Log(name, doing, err) },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	advance(time.Second)
	require.True(t, l.Ready())
	return l, sync.OnceFunc(func() { cancel(); require.NoError(t, <-done) })
}

func TestTenThousandLocksAreRecoveredWithin15Seconds(t *testing.T) {
	const locks, oneWay = 10_000, 2 * time.Millisecond
	withServer(t, nil, func(t *testing.T, s *server.Server, _ *nats.Conn, js jetstream.JetStream) {
		require.NoError(t, lock.Ensure(t.Context(), js, "locks", 1, jetstream.MemoryStorage))
		defer advance(time.Second) // what is on its way on the links arrives
		r := &recovery{calls: map[string]int{}}
		for _, name := range []string{"a", "b", "c"} {
			w, nc := wire.New(t, s, oneWay)
			defer nc.Close()
			l, stop := r.survivor(t, w, nc, name)
			defer stop()
			for i := range 500 { // they hold locks of their own
				_, err := l.TryLock(t.Context(), fmt.Sprintf("jobs.%s.%d", name, i))
				require.NoError(t, err)
			}
		}
		w, nc := wire.New(t, s, oneWay)
		dead, stop := r.survivor(t, w, nc, "dead")
		var taking sync.WaitGroup
		for i := range locks {
			taking.Go(func() {
				if _, err := dead.TryLock(t.Context(), fmt.Sprintf("jobs.7.%d", i)); err != nil {
					t.Error(err)
				}
			})
		}
		taking.Wait()
		advance(15 * time.Second)
		nc.Close()
		died := time.Now()
		advance(15 * time.Second)
		r.mu.Lock()
		calls := 0
		for _, n := range r.calls {
			calls += n
		}
		t.Logf("%d of %d locks recovered by %d calls, the last %s after the death", len(r.calls), locks, calls, r.last.Sub(died))
		require.Len(t, r.calls, locks)
		require.LessOrEqual(t, calls, locks*101/100)
		r.mu.Unlock()
		advance(time.Minute)
		r.mu.Lock()
		require.LessOrEqual(t, len(r.calls), locks, "what the survivors hold is not recovered")
		r.mu.Unlock()
		stop()
	})
}

// reads counts the locks and sessions that are read.
func reads(t *testing.T, nc *nats.Conn) (since func() int) {
	t.Helper()
	sub, err := nc.SubscribeSync("$JS.API.STREAM.MSG.GET.KV_locks")
	require.NoError(t, err)
	require.NoError(t, sub.SetPendingLimits(-1, -1))
	before := 0
	return func() int {
		synctest.Wait()
		n, _, err := sub.Pending()
		require.NoError(t, err)
		defer func() { before = n }()
		return n - before
	}
}

// A replica that was stopped in good order leaves nothing to recover, so nothing is read for it; and in the steady state
// each replica reads what there is once a minute.
func TestCleanStopCostsTheOthersNoSweep(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stopA := l.start("a")
		defer stopA()
		_, stopB := l.start("b")
		defer stopB()
		for i := range 100 {
			_, err := a.TryLock(t.Context(), fmt.Sprint("x", i))
			require.NoError(t, err)
		}
		c, stopC := l.start("c")
		_, err := c.TryLock(t.Context(), "x1")
		require.ErrorIs(t, err, lock.ErrHeld, "a try that failed leaves nothing behind either")
		advance(31 * time.Second) // what a start brings about is over
		since := reads(t, l.nc)
		since()
		advance(5 * time.Minute)
		require.LessOrEqual(t, since(), 5*3*110)
		before := 0
		for before == 0 { // the routine of a minute has just been done
			advance(time.Second)
			before = since()
		}
		advance(5 * time.Second)
		since()
		stopC()
		advance(10 * time.Second)
		require.Less(t, since(), 10)
	})
}

// A survivor that does not do its share leaves it to the others.
func TestLocksOfADeadHolderDoNotHangOnTheSurvivorsThatAreStuck(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		for range 4 {
			stuck, err := lock.New(l.nc, lock.Config{
				Bucket: "locks", Holder: "stuck", Keys: []string{">"},
				Recover: func(ctx context.Context, _, _ string) error { <-ctx.Done(); return ctx.Err() },
			})
			require.NoError(t, err)
			running.Go(func() { _ = stuck.Run(ctx) }) // nil at a clean end
		}
		b, stop := l.start("b")
		defer stop()
		advance(40 * time.Second)
		for i := range 20 {
			l.put(fmt.Sprint("lock.x", i), `{"session":"gone","holder":"dead"}`)
		}
		m := nats.NewMsg("$KV.locks.session.gone") // it dies in eleven seconds
		m.Header.Set("Nats-TTL", "11s")
		_, err := l.nc.RequestMsg(m, time.Second)
		require.NoError(t, err)
		advance(11 * time.Second)
		for i := range 20 {
			l.free(b, fmt.Sprint("x", i), 8*time.Second)
		}
	})
}

// P3: a lock that stands in the name of a session which no replica has seen (the request of a replica that has died took
// longer than its lease) is found when it is waited for, not by the search of every minute.
func TestLockThatArrivesAfterTheDeathOfItsSessionIsFreed(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		s.Start("a", reconciler.For("jobs", work))
		s.Start("b", reconciler.For("jobs", work))
		nc, _ := s.broker()
		s.Advance(70 * time.Second) // just after the search
		for i := range 20 {
			m := nats.NewMsg("$KV.evenkeel_locks.lock." + subject.LockKey("jobs", fmt.Sprintf("o%d", i)))
			m.Data = []byte(`{"session":"DEAD","holder":"c","nonce":1}`)
			_, err := nc.RequestMsgWithContext(t.Context(), m)
			require.NoError(t, err)
			s.put(fmt.Sprintf("o%d", i), job{Value: 1})
		}
		s.Advance(10 * time.Second)
		s.AssertConverged()
		s.AssertOneWriter()
		require.Empty(t, s.Timeline().Only(reconciler.StepTrouble))
	})
}

// P2: the lease of a renewal counts from when it was sent: its answer may take most of the lease, and the server counts from
// when it stored it. The holder must have stopped before its session ends there.
func TestLeaseCountsFromTheRequestNotFromItsAnswer(t *testing.T) {
	withServer(t, nil, func(t *testing.T, s *server.Server, _ *nats.Conn, js jetstream.JetStream) {
		require.NoError(t, lock.Ensure(t.Context(), js, "locks", 1, jetstream.MemoryStorage))
		bucket, err := js.Stream(t.Context(), "KV_locks")
		require.NoError(t, err)
		r := &recovery{calls: map[string]int{}}
		w, nc := wire.New(t, s, 0)
		defer nc.Close()
		holder, stop := r.survivor(t, w, nc, "a")
		defer stop()
		lk, err := holder.TryLock(t.Context(), "jobs.1.x")
		require.NoError(t, err)
		renewed := func() (uint64, time.Time) {
			info, err := bucket.Info(t.Context(), jetstream.WithSubjectFilter("$KV.locks.session.*"))
			require.NoError(t, err)
			for subj := range info.State.Subjects {
				m, err := bucket.GetLastMsgForSubject(t.Context(), subj)
				require.NoError(t, err)
				return m.Sequence, m.Time
			}
			return 0, time.Time{}
		}
		before, _ := renewed()
		w.Slow(0, 4*time.Second) // answers only, which still come before the lease of the renewal before is over
		var stored time.Time
		for seq := before; seq == before; seq, stored = renewed() {
			advance(10 * time.Millisecond)
		}
		w.Slow(time.Minute, 4*time.Second) // and no later renewal arrives
		<-lk.Context().Done()
		require.ErrorIs(t, context.Cause(lk.Context()), lock.ErrLost)
		require.Less(t, time.Since(stored), lock.DefaultTTL, "the server may let the next one in")
		w.Slow(0, 0)
		w.MoveTo(s)
		stop()
		advance(2 * time.Minute) // what is on its way on the link arrives
	})
}
