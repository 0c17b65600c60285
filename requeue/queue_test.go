package requeue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

const (
	schedule = "evenkeel.s.widgets.2.a"
	stored   = `{"stream":"evenkeel_work","seq":7}`
)

func scripted(t *testing.T, test func(t *testing.T, s *script.Server, q *Queue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, nc := script.New(t)
		q, err := NewQueue(nc, "evenkeel")
		require.NoError(t, err)
		test(t, s, q)
	})
}

// The server wakes the object at that time in the lane behind the changes, with what the sender has it carry.
func TestAtAsksForALookAtThatTime(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, q *Queue) {
		s.Answer("evenkeel.", stored)
		header := nats.Header{"Traceparent": {"x"}, "Nats-Schedule": {"of the turn before"}}
		at := time.Now().Add(90*time.Second + 123*time.Millisecond).In(time.FixedZone("", 3600))
		require.NoError(t, q.At(t.Context(), "widgets", "a", at, header))
		sent := s.Sent("evenkeel.")
		require.Len(t, sent, 1)
		require.Equal(t, schedule, sent[0].Subject)
		require.Equal(t, nats.Header{
			"Nats-Schedule": {"@at 2000-01-01T00:01:30.123Z"}, "Nats-Schedule-Target": {"evenkeel.r.widgets.2.a"},
			"Nats-Expected-Last-Subject-Sequence": {"0"}, "Traceparent": {"x"},
		}, sent[0].Header)
		require.Equal(t, "of the turn before", header.Get("Nats-Schedule"), "the caller's stays as it is")
	})
}

// The server takes a time that is too far away for one that has passed.
func TestAtLooksWithinAYear(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, q *Queue) {
		s.Answer("evenkeel.", stored)
		year := time.Now().Add(365 * 24 * time.Hour)
		for _, after := range []time.Duration{-time.Hour, 0, time.Hour, 10 * 365 * 24 * time.Hour} {
			require.NoError(t, q.At(t.Context(), "widgets", "a", year.Add(after), nil))
			sent := s.Sent("evenkeel.")
			require.Equal(t, "@at "+year.Add(min(after, 0)).UTC().Format(time.RFC3339), sent[len(sent)-1].Header.Get("Nats-Schedule"))
		}
	})
}

// The request names the schedule that it replaces, so that one which arrives late replaces no newer one.
func TestAtReplacesTheScheduleThatIsThere(t *testing.T) {
	wrong := script.Error(400, 10071, "wrong last sequence: 7")
	for name, tt := range map[string]struct {
		answers []string
		sent    []string // the sequences that are expected
		err     string
		is      error
	}{
		"none":            {answers: []string{stored}, sent: []string{"0"}},
		"one":             {answers: []string{wrong, stored}, sent: []string{"0", "7"}},
		"a newer one":     {answers: []string{wrong, script.Error(400, 10071, "wrong last sequence: 9"), stored}, sent: []string{"0", "7", "9"}},
		"the last try":    {answers: []string{wrong, wrong, wrong, wrong, wrong, stored}, sent: []string{"0", "7", "7", "7", "7", "7"}},
		"again and again": {answers: []string{wrong}, sent: []string{"0", "7", "7", "7", "7", "7"}, err: "requeue widgets/a: replaced 5 times while it was stored"},
		"no room":         {answers: []string{wrong, script.Error(503, 10077, "maximum bytes exceeded")}, sent: []string{"0", "7"}, err: "requeue widgets/a: ", is: ErrNoRoom},
		"not known":       {answers: []string{script.Silence}, sent: []string{"0"}, err: "requeue widgets/a: ", is: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, q *Queue) {
				s.Answer("evenkeel.", tt.answers...)
				err := q.At(t.Context(), "widgets", "a", time.Now(), nil)
				if tt.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.err)
				}
				if tt.is != nil {
					require.ErrorIs(t, err, tt.is)
				}
				var expected []string
				for _, m := range s.Sent("evenkeel.") {
					expected = append(expected, m.Header.Values("Nats-Expected-Last-Subject-Sequence")...)
				}
				require.Equal(t, tt.sent, expected)
			})
		})
	}
}

// Only the holder of the lock may replace: once it is lost, a refusal is the end.
func TestAtReplacesNothingWhenTheLockIsLost(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, q *Queue) {
		s.Answer("evenkeel.", script.Silence)
		ctx, lose := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, lose)
		require.ErrorIs(t, q.At(ctx, "widgets", "a", time.Now(), nil), context.Canceled)
		require.Len(t, s.Sent("evenkeel."), 1)
	})
}

func TestQueueRefusesWhatIsNoName(t *testing.T) {
	scripted(t, func(t *testing.T, s *script.Server, q *Queue) {
		require.ErrorContains(t, q.At(t.Context(), "widgets", "a.b", time.Now(), nil), `requeue: name "a.b"`)
		require.Empty(t, s.Sent(""))
		_, err := NewQueue(nil, "a.b")
		require.ErrorContains(t, err, `requeue: prefix "a.b"`)
	})
}

// A ceiling below the floor is kept: whoever asks for less than the server's tick gets it as soon as it can be.
func TestJitterKeepsToFloorAndCeiling(t *testing.T) {
	for ceiling, least := range map[time.Duration]time.Duration{0: 0, 1: 1, Floor - 1: Floor - 1, Floor: Floor, Floor + 1: Floor, Floor + 3: Floor} {
		seen := map[time.Duration]bool{}
		for range 1000 {
			d := Jitter(ceiling)
			require.GreaterOrEqual(t, d, least)
			require.LessOrEqual(t, d, ceiling)
			seen[d] = true
		}
		require.Len(t, seen, int(ceiling-least)+1, "each of them, up to %s", ceiling)
	}
}
