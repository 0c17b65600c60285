package api

import (
	"encoding/json"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// TestForgetfulHooksLoseNothingThatWasNotWritten: what is there already, as the old version shows it, is not written, whatever a
// hook would make of it.
func TestForgetfulHooksLoseNothingThatWasNotWritten(t *testing.T) {
	v, h := hooked(t, newStore(t))
	h.setAnswer(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			To    string
			Items []struct{ Spec map[string]any }
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		for i, item := range asked.Items {
			spec := map[string]any{"count": 0}
			if asked.To == "v1" {
				spec = map[string]any{"size": item.Spec["count"]}
			}
			asked.Items[i].Spec = spec
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"items": asked.Items}); err != nil {
			t.Error(err)
		}
	})
	before, err := v.of("widgets").Get(t.Context(), "d")
	require.NoError(t, err)
	after, err := v.of("widgets").At("v1").Put(t.Context(), "d", doc{"size": 3}, apiclient.WithLabels(map[string]string{"a": "b"}))
	require.NoError(t, err)
	require.Equal(t, doc{"size": 3.0}, after.Spec)
	require.Equal(t, before.Generation, after.Generation, "only a label is new")
	after, err = v.of("widgets").Get(t.Context(), "d")
	require.NoError(t, err)
	require.Equal(t, before.Spec, after.Spec)
}

// TestWritesThroughOldVersionsSeeOthers: who writes while a write is converted is not overwritten with what was there before.
func TestWritesThroughOldVersionsSeeOthers(t *testing.T) {
	v, h := hooked(t, newStore(t))
	old, now := v.of("widgets").At("v1"), v.of("widgets")
	for name, write := range map[string]func() (*apiclient.Object[doc, doc], error){
		"put":   func() (*apiclient.Object[doc, doc], error) { return old.Put(t.Context(), "d", doc{"size": 5}) },
		"patch": func() (*apiclient.Object[doc, doc], error) { return old.Patch(t.Context(), "d", doc{"size": 6}) },
	} {
		var once sync.Once
		h.setAnswer(func(w http.ResponseWriter, r *http.Request) {
			once.Do(func() {
				if _, err := now.Put(t.Context(), "d", doc{"count": 4, "keep": name}); err != nil {
					t.Error(err)
				}
			})
			h.convert(w, r)
		})
		_, err := write()
		require.NoError(t, err)
		o, err := now.Get(t.Context(), "d")
		require.NoError(t, err)
		require.Equal(t, name, o.Spec["keep"])
		require.NotEqual(t, 4.0, o.Spec["count"])
	}
	h.setAnswer(nil)
	o, err := now.Get(t.Context(), "d")
	require.NoError(t, err)
	h.setAnswer(func(w http.ResponseWriter, r *http.Request) {
		if _, err := now.Put(t.Context(), "d", doc{"count": 4, "keep": "other"}); err != nil {
			t.Error(err)
		}
		h.convert(w, r)
	})
	_, err = old.Put(t.Context(), "d", doc{"size": 7}, apiclient.IfRevision(o.Revision))
	require.ErrorIs(t, err, apiclient.ErrConflict)
}

// TestVersionsAreCompared where a row is written: neither what was converted nor what was read before is written over it.
func TestVersionsAreCompared(t *testing.T) {
	v, _ := hooked(t, newStore(t))
	k := objects.Key{Kind: "widgets", Name: "a"}
	read, err := find(t.Context(), v.store.read, v.store.vault, k, "")
	require.NoError(t, err)
	asked := &ask{key: k, wanted: json.RawMessage(`{"count":1}`), readsSecrets: true}
	require.NoError(t, v.store.plan(t.Context(), []*ask{asked}))
	_, _, err = asked.admit(&read.object, asked.wanted)
	require.ErrorIs(t, err, errReplan, "the plan has brought it to the current version")
	again, err := find(t.Context(), v.store.read, v.store.vault, k, "")
	require.NoError(t, err)
	require.Equal(t, "v2", again.object.Version)
	require.Equal(t, read.object.Revision, again.object.Revision)
	_, version, err := asked.admit(&again.object, asked.wanted)
	require.NoError(t, err)
	require.Equal(t, "v2", version)
	err = v.store.transact(t.Context(), func(tx *transaction) error { return read.update(t.Context(), tx, &read.object, objects.Effect{}) })
	require.ErrorIs(t, err, errLostRace, "it would take back the upgrade")
	read, err = find(t.Context(), v.store.read, v.store.vault, k, "")
	require.NoError(t, err)
	require.JSONEq(t, `{"count":0}`, string(read.object.Spec))
}
