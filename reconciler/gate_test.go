package reconciler

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// TestGateIsOfTheAPI: what one kind's hook, schema or object does wrong keeps no other kind waiting.
func TestGateIsOfTheAPI(t *testing.T) {
	for err, want := range map[error]bool{
		&apiclient.Problem{Status: 503}:                               true,
		&apiclient.Problem{Status: 502}:                               true,
		&apiclient.Problem{Status: 401}:                               true,
		fmt.Errorf("get: %w", apiclient.ErrUnavailable):               true,
		&apiclient.Problem{Status: 503, Type: "/problems/conversion"}: false,
		&apiclient.Problem{Status: 502, Type: "/problems/conversion"}: false,
		&apiclient.Problem{Status: 422, Type: "/problems/invalid"}:    false,
		errors.New("something else"):                                  false,
	} {
		require.Equal(t, want, outOfReach(err), "%v", err)
	}
}
