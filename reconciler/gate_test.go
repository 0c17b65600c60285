package reconciler

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// TestGateIsOfTheAPI: what one kind's hook, schema or object does wrong keeps no other kind waiting.
func TestGateIsOfTheAPI(t *testing.T) {
	for err, want := range map[error]bool{
		&apiclient.Problem{Status: 503}:                               true,
		&apiclient.Problem{Status: 502}:                               true,
		&apiclient.Problem{Status: 504}:                               true,
		&apiclient.Problem{Status: 401}:                               true,
		&apiclient.Problem{Status: 429}:                               true,
		&apiclient.Problem{Status: 404}:                               true, // of a server at a wrong address
		fmt.Errorf("get: %w", apiclient.ErrUnavailable):               true,
		fmt.Errorf("get: %w", apiclient.ErrUnexpectedResponse):        true,
		&apiclient.Problem{Status: 500}:                               false, // of one object, perhaps
		&apiclient.Problem{Status: 403}:                               false,
		&apiclient.Problem{Status: 404, Type: "/problems/not-found"}:  false,
		&apiclient.Problem{Status: 503, Type: "/problems/conversion"}: false,
		&apiclient.Problem{Status: 502, Type: "/problems/conversion"}: false,
		&apiclient.Problem{Status: 422, Type: "/problems/invalid"}:    false,
		errors.New("something else"):                                  false,
	} {
		require.Equal(t, want, outOfReach(err), "%v", err)
	}
	require.False(t, outOfReach(nil))
}

// While the API is out of reach one probe at a time finds out when it is back; the rest of the work stays in its queue.
func TestGateLetsOneProbeThroughAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		away := fmt.Errorf("get: %w", apiclient.ErrUnavailable)
		g.note(away)
		g.note(away)
		require.False(t, g.closed())
		require.Equal(t, 7, g.limit(7, 3), "two failures may be of two objects")
		g.note(errors.New("refused"))
		g.note(away)
		g.note(away)
		require.False(t, g.closed(), "three in a row, not in all")
		g.note(away)
		require.True(t, g.closed())
		require.Equal(t, 0, g.limit(7, 0), "the first probe comes after a pause")

		time.Sleep(outage.Base)
		require.Equal(t, 0, g.limit(7, 1), "somebody is asking the API now")
		require.Equal(t, 1, g.limit(7, 0))
		require.Equal(t, 0, g.limit(0, 0), "no worker is free")
		require.True(t, g.closed())
		g.note(nil)
		require.False(t, g.closed())
		require.Equal(t, 7, g.limit(7, 3), "it is back: at once, for all")
		g.note(away)
		require.Equal(t, 7, g.limit(7, 0), "and the count begins again")
	})
}

// Each probe that fails doubles the pause, up to a quarter of a minute; calls that fail during a pause are old ones and count
// for no new pause.
func TestGateProbesEverMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		away := fmt.Errorf("get: %w", apiclient.ErrUnavailable)
		for range gateAfter - 1 {
			g.note(away)
		}
		for n := 1; n <= 20; n++ {
			g.note(away)
			pause := time.Until(g.until)
			require.Positive(t, pause)
			require.LessOrEqual(t, pause, min(outage.Base<<(n-1), outage.Cap), "pause %d", n)
			until := g.until
			for range 100 { // of as many workers
				g.note(away)
			}
			require.Equal(t, until, g.until)
			time.Sleep(pause - 1)
			require.Equal(t, 0, g.limit(1, 0))
			time.Sleep(time.Nanosecond)
			require.Equal(t, 1, g.limit(1, 0))
		}
		var longest [6]time.Duration
		for range 100 { // outages
			g.note(nil)
			for range gateAfter - 1 {
				g.note(away)
			}
			for n := range longest {
				g.note(away)
				longest[n] = max(longest[n], time.Until(g.until))
				time.Sleep(time.Until(g.until))
			}
		}
		for n, pause := range longest {
			require.Greater(t, pause, min(outage.Base<<n, outage.Cap)*2/3, "pause %d", n)
		}
	})
}
