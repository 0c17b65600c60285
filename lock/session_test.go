package lock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A lock that has said once that it is lost is not held again: its holder has left it behind.
func TestLostIsForGood(t *testing.T) {
	s := newSession("")
	k := &Lock{s: s}
	now := time.Now()
	require.True(t, s.extend(now.Add(-DefaultTTL), DefaultTTL))
	require.True(t, k.Lost())
	require.False(t, s.extend(now, DefaultTTL), "the answer to a renewal is handled late")
	require.True(t, k.Lost())
}
