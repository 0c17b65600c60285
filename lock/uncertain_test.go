package lock

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/script"
)

// A lock that was taken by a TryLock which never heard of it is freed, with what its next holder must know. It is looked for
// until it is found or was missing twice.
func TestUncertainLockIsFoundAndFreed(t *testing.T) {
	before := &Predecessor{Holder: "other", Died: true}
	for name, tt := range map[string]struct {
		answers func(own string) []string
		looks   int // until it is settled
		frees   bool
	}{
		"it stands":               {answers: func(own string) []string { return []string{lockedBy(5, own, 1, before)} }, looks: 1, frees: true},
		"it arrives late":         {answers: func(own string) []string { return []string{noMessage, lockedBy(5, own, 1, before)} }, looks: 2, frees: true},
		"it was never stored":     {answers: func(string) []string { return []string{noMessage} }, looks: 2},
		"another holds it":        {answers: func(string) []string { return []string{lockedBy(5, "other", 1, nil)} }, looks: 2},
		"a later one of ours":     {answers: func(own string) []string { return []string{lockedBy(5, own, 2, nil)} }, looks: 2},
		"it was released":         {answers: func(string) []string { return []string{released(5, nil)} }, looks: 2},
		"a look that fails is no": {answers: func(string) []string { return []string{noMessage, unavailable, unavailable, noMessage} }, looks: 4},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
				own := live(l)
				_, err := l.TryLock(t.Context(), "jobs.a") // nobody hears
				require.Error(t, err)
				s.Answer(reads("lock.jobs.a"), tt.answers(own.id)...)
				for range tt.looks {
					require.Len(t, own.openDoubts(), 1)
					l.settleDoubts(t.Context(), own)
				}
				require.Empty(t, own.openDoubts())
				if tt.frees {
					require.Equal(t, []release{{subject: anchor, fence: 5, predecessor: before}}, freed(l))
				} else {
					require.Empty(t, freed(l))
				}
				l.settleDoubts(t.Context(), own)
				require.Len(t, s.Sent("$JS.API.STREAM.MSG.GET."), tt.looks)
			})
		})
	}
}

func TestUncertainLocksAreLookedForSixteenAtOnce(t *testing.T) {
	for doubts, want := range map[int]time.Duration{16: jsapi.Timeout, 17: 2 * jsapi.Timeout} {
		scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
			s.Answer("$JS.API.STREAM.MSG.GET.", script.Silence)
			own := live(l)
			for i := range doubts {
				own.doubt(fmt.Sprint(i), uint64(i))
			}
			begun := time.Now()
			l.settleDoubts(t.Context(), own)
			require.Equal(t, want, time.Since(begun))
			require.Len(t, own.openDoubts(), doubts)
		})
	}
}

// The callback is a hint that the lock may be had now: a release is, and another holder is not.
func TestOnReleaseHearsOfReleases(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, l *Locker, _ *heard) {
		quit, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			l.watches.dispatch(quit)
		}()
		calls := map[string]int{}
		watch := func(key string) func() {
			stop, err := l.OnRelease(key, func() { calls[key]++ })
			require.NoError(t, err)
			return stop
		}
		tell := func(key string, h nats.Header) {
			s.Deliver("$KV.b.lock."+key, &nats.Msg{Subject: "$KV.b.lock." + key, Header: h})
			sleepFor(1)
		}
		gone := marker(nats.NewMsg(""), 5, nil).Header
		stop := watch("a")
		watch("b")
		require.NoError(t, l.nc.Flush())
		tell("a", nil)
		require.Empty(t, calls, "it was taken")
		tell("a", gone)
		tell("a", gone)
		require.Equal(t, map[string]int{"a": 2}, calls)
		tell("b", gone)
		require.Equal(t, map[string]int{"a": 2, "b": 1}, calls)

		for sub := range l.watches.calls {
			if sub.Subject == "$KV.b.lock.a" {
				stop()
				require.False(t, sub.IsValid())
				l.watches.came <- &nats.Msg{Sub: sub, Header: gone} // one that was on its way
			}
		}
		sleepFor(1)
		require.Equal(t, map[string]int{"a": 2, "b": 1}, calls)
		require.Len(t, l.watches.calls, 1)
		close(quit)
		<-done

		l.nc.Close()
		_, err := l.OnRelease("c", func() {})
		require.ErrorIs(t, err, nats.ErrConnectionClosed)
		require.ErrorContains(t, err, "watch lock c: ")
		require.Len(t, l.watches.calls, 1)
	})
}
