package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// A refusal that comes from a proxy says nothing of the object: it neither stalls it nor drops what a run came to.
func TestRefusalsOfAProxyAreNotTheObjects(t *testing.T) {
	for _, status := range []int{301, 302, 400, 401, 403, 404, 405, 407, 408, 409, 412, 413, 415, 421, 422, 426, 451} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				s.Fail(reconcilertest.Fault{Method: http.MethodPatch, Path: "/status", Status: status, Times: 1})
				s.Start("a", reconciler.For("jobs", work))
				s.put("x", job{Value: 1})
				s.Advance(time.Minute)
				require.Equal(t, apiclient.StateReady, s.get("x").Reconciliation.State, s.get("x").Reconciliation.LastError)
				require.Equal(t, 1, s.get("x").Status.Value)
				s.Fail(reconcilertest.Fault{Method: http.MethodGet, Path: "/x", Status: status, Times: 1})
				s.put("x", job{Value: 2})
				s.Advance(time.Minute)
				require.Equal(t, 2, s.get("x").Status.Value)
				s.AssertConverged()
			})
		})
	}
}

// A login page in place of the API closes the gate, as its other answers do: objects are not read in turn for as long as it is
// there.
func TestPageOfAProxyClosesTheGate(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.Advance(2 * time.Second)
		gone := s.Fail(reconcilertest.Fault{Replica: "a", Status: http.StatusOK})
		for i := range 50 {
			s.put(fmt.Sprintf("o%d", i), job{Value: 1})
		}
		s.Advance(10 * time.Second)
		require.ErrorContains(t, a.Runner.Ready(), "the API is out of reach")
		gone()
		s.Advance(time.Minute)
		s.AssertConverged()
	})
}
