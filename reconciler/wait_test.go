package reconciler

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

// waits is a turn that waits for a lock that another replica holds, if there is one.
func (s *joined) waits(name string) *turn {
	t := &turn{name: name, deliveries: []*notify.Delivery{{Kind: "jobs", Name: name}}, unwatch: func() {}}
	s.kinds[0].waiting[name] = t
	return t
}

// Of the turns that wait those are found whose lock is free although no word of that came: what is not listed, and of what is
// listed some are read, because a lock that was given up is listed for a while.
func TestLocksThatWereReleasedWithoutAWordAreFound(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		k := s.kinds[0]
		rival, resign := s.rival()
		defer resign()
		held, err := rival.TryLock(t.Context(), k.lockKey("held"))
		require.NoError(t, err)
		defer held.Unlock()
		turns := []*turn{s.waits("held"), s.waits("never locked")}
		for i := range maxProbes + 5 {
			name := fmt.Sprint(i)
			lk, err := rival.TryLock(t.Context(), k.lockKey(name))
			require.NoError(t, err)
			lk.Abandon()
			turns = append(turns, s.waits(name))
		}
		time.Sleep(time.Second) // until the releases are confirmed
		turns = append(turns, s.waits("not locked either"))
		before := len(s.server.Sent("$JS.API.STREAM.MSG.GET.KV_"))
		var names []string
		for _, t := range k.freed(t.Context(), turns) {
			names = append(names, t.name)
		}
		want := []string{"never locked"}
		for i := range maxProbes - 1 { // the first look was for what is held
			want = append(want, fmt.Sprint(i))
		}
		require.Equal(t, append(want, "not locked either"), names)
		require.Equal(t, maxProbes, len(s.server.Sent("$JS.API.STREAM.MSG.GET.KV_"))-before)
		require.Empty(t, k.freed(t.Context(), nil))

		s.server.Answer("$JS.API.STREAM.MSG.GET.KV_", script.Error(503, 10008, "temporarily unavailable"))
		require.Empty(t, k.freed(t.Context(), turns[2:3]), "what nobody knows is not free")
		s.events()
		s.server.Answer("$JS.API.STREAM.INFO.KV_", script.Error(503, 10008, "temporarily unavailable"))
		require.Empty(t, k.freed(t.Context(), turns))
		seen := s.events()
		require.Equal(t, "list the locks that are held", seen[len(seen)-1].Reason)
		s.events()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Empty(t, k.freed(ctx, turns))
		require.Empty(t, s.events(), "a stop is no trouble")
	})
}

// What waits is told of that within a third of the ack wait: all of it, and nothing that has been told already.
func TestWaitingTurnsAreToldThatTheirLockIsFree(t *testing.T) {
	join(t, func(t *testing.T, s *joined) {
		k := s.kinds[0]
		k.busy = k.Workers // so that they are told, and do not begin
		rival, resign := s.rival()
		defer resign()
		var locks []*lock.Lock
		var turns []*turn
		for _, name := range []string{"a", "b"} {
			lk, err := rival.TryLock(t.Context(), k.lockKey(name))
			require.NoError(t, err)
			locks = append(locks, lk)
			w := s.waits(name)
			w.deliveries = nil
			turns = append(turns, w)
		}
		end := s.always(func(ctx context.Context) { k.holdAlways(ctx, s.working) })
		time.Sleep(2 * holdEvery)
		require.False(t, turns[0].hint || turns[1].hint)
		for _, lk := range locks {
			lk.Unlock()
		}
		time.Sleep(holdEvery)
		synctest.Wait()
		k.mu.Lock()
		require.True(t, turns[0].hint && turns[1].hint)
		require.Len(t, k.ready, 2)
		k.mu.Unlock()
		lists := len(s.server.Sent("$JS.API.STREAM.INFO.KV_"))
		time.Sleep(holdEvery / 2)
		require.LessOrEqual(t, len(s.server.Sent("$JS.API.STREAM.INFO.KV_"))-lists, 4, "now and then, not all the time")
		end()
	})
}
