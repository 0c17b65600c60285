package api

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

func countEvents(t *testing.T, s *store) (n int) {
	t.Helper()
	require.NoError(t, s.read.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM events`).Scan(&n))
	return n
}

// TestEventsAreBounded: of an object that changes all the time not many more are stored than are told.
func TestEventsAreBounded(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	k := objects.Key{Kind: "widgets", Name: "w-0000"}
	create(t, a, 2)
	for i := range 600 {
		_, _, err := a.store.change(t.Context(), k, objects.SetPaused(i%2 == 0))
		require.NoError(t, err)
	}
	require.Less(t, countEvents(t, a.store), 400, "a sixteenth of the writes looks for surplus")
	all, err := a.store.events(t.Context(), k)
	require.NoError(t, err)
	require.Len(t, all, objects.KeptEvents)
	require.Equal(t, apiclient.HappenedResumed, all[0].Reason)
	other, err := a.store.events(t.Context(), objects.Key{Kind: "widgets", Name: "w-0001"})
	require.NoError(t, err)
	require.Len(t, other, 1)
}

// TestOldEventsAreForgotten, page by page, and an object whose events have all gone is still there.
func TestOldEventsAreForgotten(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	create(t, a, 3)
	more, err := a.store.forgetEvents(t.Context(), objects.Now().Add(-time.Hour))
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, 3, countEvents(t, a.store))
	_, err = a.store.forgetEvents(t.Context(), objects.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Zero(t, countEvents(t, a.store))
	all, err := a.store.events(t.Context(), objects.Key{Kind: "widgets", Name: "w-0000"})
	require.NoError(t, err)
	require.Empty(t, all)
	_, err = a.store.events(t.Context(), objects.Key{Kind: "widgets", Name: "nobody"})
	require.ErrorIs(t, err, apiclient.ErrNotFound)
}

// TestEventsSayWhoAsked, by the names of their tokens.
func TestEventsSayWhoAsked(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, editor := s.token(access.Editor)
	_, controller := s.token(access.Controller)
	require.Equal(t, 201, s.ask("POST", "/v1/objects/widgets", editor, `{"name":"blue","spec":{}}`).status)
	o, err := s.store.get(t.Context(), objects.Key{Kind: "widgets", Name: "blue"})
	require.NoError(t, err)
	patch, err := json.Marshal(apiclient.StatusPatch{UID: o.UID, Fence: 1, Reconciliation: &apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 1}})
	require.NoError(t, err)
	require.Equal(t, 200, s.ask("PATCH", "/v1/objects/widgets/blue/status", controller, string(patch)).status)
	var page struct{ Items []apiclient.Happening }
	require.NoError(t, json.Unmarshal([]byte(s.ask("GET", "/v1/objects/widgets/blue/events", editor, "").body), &page))
	require.Len(t, page.Items, 2)
	require.Equal(t, []string{"Ready", "the-controller"}, []string{page.Items[0].Reason, page.Items[0].By})
	require.Equal(t, []string{"Created", "the-editor"}, []string{page.Items[1].Reason, page.Items[1].By})
}
