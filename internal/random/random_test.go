package random

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func draws() (all []any) {
	for range 20 {
		all = append(all, N(time.Hour), N(1000), Text())
	}
	return all
}

// With a seed all values repeat, and without one they do not.
func TestSeedRepeats(t *testing.T) {
	end := Seed(7)
	first := draws()
	end()
	free := draws()
	end = Seed(7)
	require.Equal(t, first, draws())
	end()
	require.NotEqual(t, first, free)
	require.NotEqual(t, free, draws())
	for _, v := range append(first, free...) {
		switch v := v.(type) {
		case time.Duration:
			require.True(t, 0 <= v && v < time.Hour)
		case int:
			require.True(t, 0 <= v && v < 1000)
		case string:
			require.Regexp(t, `^[A-Z2-7]{26}$`, v)
		}
	}
}
