package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

// A survivor says at INFO what it takes over: without it nobody could tell from the logs that a replica died.
func TestTakeoverIsLogged(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Millis: 60_000, Value: 1})
		s.Advance(time.Second)
		var log lines
		s.StartWith("b", log.sink, reconciler.For("jobs", work))
		s.Advance(time.Second)
		a.Kill()
		s.Advance(time.Minute)
		took := log.with("took over")
		require.Len(t, took, 1)
		require.EqualValues(t, 0, took[0]["level"])
		require.Equal(t, []any{"jobs", "x"}, []any{took[0]["kind"], took[0]["name"]})
	})
}
