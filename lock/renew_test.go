package lock

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

func times(s string, n int) (all []string) {
	for range n {
		all = append(all, s)
	}
	return all
}

// A renewal is tried until it succeeds or the lease is over. The lease counts from the request that was answered, and what
// the server refuses may be our own write.
func TestRenewalIsTriedUntilTheLeaseIsOver(t *testing.T) {
	const share = DefaultTTL / 10
	for name, tt := range map[string]struct {
		puts    []string
		reads   []string
		meet    func(s *script.Server, own *session) // while it is tried
		lives   bool
		from    time.Duration // the lease counts from then
		took    time.Duration
		expects []string
	}{
		"stored":           {puts: []string{storedAt(8)}, lives: true, expects: []string{"7"}},
		"not answered":     {puts: []string{script.Silence, storedAt(8)}, lives: true, from: share, took: share, expects: []string{"7", "7"}},
		"refused for once": {puts: []string{unavailable, storedAt(8)}, reads: []string{noMessage}, lives: true, from: DefaultTTL / 50, took: DefaultTTL / 50, expects: []string{"7", "7"}},
		"stored, and the answer was lost": {
			puts: []string{script.Silence, wrongSequence, storedAt(9)}, reads: []string{alive(8)},
			lives: true, from: share + DefaultTTL/50, took: share + DefaultTTL/50, expects: []string{"7", "7", "8"},
		},
		"answered late": {
			puts: []string{script.Silence}, lives: true, took: 1500 * time.Millisecond, expects: []string{"7", "7"},
			meet: func(s *script.Server, _ *session) {
				sleepFor(1500 * time.Millisecond)
				first := s.Sent(putSession)[0].Reply
				s.Deliver(first, &nats.Msg{Subject: first, Data: []byte(storedAt(8))})
			},
		},
		"the key is gone":       {puts: []string{wrongSequence}, reads: []string{noMessage}, expects: []string{"7"}},
		"the key was deleted":   {puts: []string{wrongSequence}, reads: []string{deleted(8)}, expects: []string{"7"}},
		"the key is an old one": {puts: []string{wrongSequence}, reads: []string{alive(6)}, expects: []string{"7"}},
		"the key is the same":   {puts: []string{wrongSequence, storedAt(8)}, reads: []string{alive(7)}, lives: true, from: DefaultTTL / 50, took: DefaultTTL / 50, expects: []string{"7", "7"}},
		"it is not known which": {
			puts: []string{wrongSequence, wrongSequence, storedAt(9)}, reads: []string{unavailable, alive(8)},
			lives: true, from: 2 * DefaultTTL / 50, took: 2 * DefaultTTL / 50, expects: []string{"7", "7", "8"},
		},
		"nor heard": {
			puts: []string{wrongSequence, storedAt(8)}, reads: []string{script.Silence},
			lives: true, from: share + DefaultTTL/50, took: share + DefaultTTL/50, expects: []string{"7", "7"},
		},
		"never answered": {puts: []string{script.Silence}, took: DefaultTTL * 2 / 3, expects: times("7", 8)},
		"always refused": {puts: []string{unavailable}, took: DefaultTTL * 2 / 3, expects: times("7", 34)},
		"lost meanwhile": {puts: []string{script.Silence}, took: share, meet: func(_ *script.Server, own *session) {
			sleepFor(share / 2)
			own.lose()
		}, expects: []string{"7"}},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, l *Locker, h *heard) {
				own := live(l)
				own.rev = 7
				s.Answer(putSession, tt.puts...)
				s.Answer("$JS.API.STREAM.MSG.GET.", tt.reads...)
				begun := time.Now()
				if tt.meet != nil {
					go tt.meet(s, own)
				}
				require.Equal(t, tt.lives, l.extend(own))
				require.Equal(t, tt.took, time.Since(begun))
				require.Equal(t, tt.expects, expected(s.Sent(putSession)))
				refusals := 0
				for _, answer := range tt.puts {
					if answer == wrongSequence {
						refusals++
					}
				}
				require.Len(t, s.Sent("$JS.API.STREAM.MSG.GET."), refusals, "nothing else asks for a look at the key")
				require.Equal(t, begun.Add(tt.from+DefaultTTL*2/3), own.deadline())
				require.Empty(t, h.drain())
			})
		})
	}
}
