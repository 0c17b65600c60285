package api

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// TestKindWithoutAControllerIsLogged, rarely, and not any more when one has run.
func TestKindWithoutAControllerIsLogged(t *testing.T) {
	var logged []string
	log := funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	var heard bool
	var failed error
	asked := 0
	a, err := Open(t.Context(), Config{
		Store: newStore(t), Notify: new(ear).notify, Prefix: "ours", Logger: log, Access: Access{Insecure: true},
		HasController: func(_ context.Context, kind string) (bool, error) {
			asked++
			require.Equal(t, "widgets", kind)
			return heard, failed
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	now := time.Now()
	look := func(times int) {
		for range times {
			a.unheard.look(t.Context(), now)
			now = now.Add(lookEvery)
		}
	}
	look(10)
	create(t, a, 3)
	require.NoError(t, a.Flush(t.Context()))
	require.Zero(t, asked, "nobody asks the broker in the path of a write")
	look(1)
	require.Len(t, logged, 1)
	for _, part := range []string{"no controller of the kind has ever run", `"kind"="widgets"`, `"prefix"="ours"`, `"waiting"=3`} {
		require.Contains(t, logged[0], part)
	}
	look(5)
	require.Len(t, logged, 1)
	look(int(24 * time.Hour / lookEvery))
	require.Greater(t, len(logged), 20)
	require.Less(t, len(logged), 35)
	before := len(logged)
	failed = errors.New("the broker is away")
	look(int(2 * time.Hour / lookEvery))
	failed, heard = nil, true
	look(int(2 * time.Hour / lookEvery))
	require.Len(t, logged, before, strings.Join(logged[before:], "\n"))
	asked = 0
	_, _, err = a.store.change(t.Context(), objects.Key{Kind: "widgets", Name: "w-0000"}, objects.RequestRetry)
	require.NoError(t, err)
	require.NoError(t, a.Flush(t.Context()))
	look(1000)
	require.Zero(t, asked, "that one has run stays true")
}
