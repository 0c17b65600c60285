package api

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// everything is all that a store holds, as text, but for the times.
func everything(t *testing.T, a *API) (all []string) {
	t.Helper()
	for _, query := range []string{
		`SELECT kind || name || revision || spec || labels || gone || notify_revision || notified_revision || finalizers FROM objects`,
		`SELECT kind || name || label || value FROM labels`, `SELECT kind || name || change FROM changes`,
		`SELECT kind || name || revision || reason FROM events`, `SELECT shard || ' ' || revision FROM floors`,
	} {
		rows, err := a.store.read.QueryContext(t.Context(), query+` ORDER BY 1`)
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			all = append(all, line)
		}
		require.NoError(t, rows.Err())
	}
	return all
}

// TestWriteThatFailsHalfwayLeavesNothing: whichever of its statements fails, the write is an error, and the store is as it was. The
// object, its labels, what watches and controllers are told and its events do not come apart.
func TestWriteThatFailsHalfwayLeavesNothing(t *testing.T) {
	labels := map[string]string{"a": "b", "c": "d"}
	k := objects.Key{Kind: "widgets", Name: "there"}
	for name, write := range map[string]struct {
		do    func(s *store) error
		fails []string // statements
	}{
		"create": {func(s *store) error {
			_, err := s.create(t.Context(), objects.Key{Kind: "widgets", Name: "new"}, objects.Wanted{Spec: []byte(`{}`), Labels: labels}, requestKey{})
			return err
		}, []string{"INSERT ON floors", "INSERT ON objects", "INSERT ON changes", "INSERT ON events", "INSERT ON labels"}},
		"label": {func(s *store) error {
			_, _, err := s.put(t.Context(), k, objects.Wanted{Spec: []byte(`{"size":1}`), Labels: map[string]string{"e": "f"}})
			return err
		}, []string{"UPDATE ON objects", "INSERT ON changes", "INSERT ON events", "INSERT ON labels", "DELETE ON labels"}},
		"remove": {func(s *store) error {
			_, _, err := s.change(t.Context(), k, objects.RequestDeletion)
			return err
		}, []string{"UPDATE ON floors", "UPDATE ON objects", "INSERT ON changes", "INSERT ON events", "DELETE ON labels"}},
		"remove what was heard of": {func(s *store) error {
			return s.transact(t.Context(), func(tx *transaction) error {
				_, err := tx.ExecContext(t.Context(), `UPDATE objects SET gone = true, notified_revision = notify_revision WHERE name = 'there'`)
				require.NoError(t, err)
				return dropTombstone(t.Context(), tx, k)
			})
		}, []string{"DELETE ON objects"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := open(t, "sqlite::memory:", new(ear).notify)
			_, err := a.store.create(t.Context(), k, objects.Wanted{Spec: []byte(`{}`), Labels: labels}, requestKey{})
			require.NoError(t, err)
			_, err = a.store.write.ExecContext(t.Context(), `INSERT INTO floors SELECT n.value, 1 FROM json_each('[`+shards()+`]') AS n WHERE true ON CONFLICT DO NOTHING`)
			require.NoError(t, err)
			before := everything(t, a)
			for _, statement := range write.fails {
				_, err := a.store.write.ExecContext(t.Context(), `CREATE TRIGGER full BEFORE `+statement+` BEGIN SELECT RAISE(ABORT, 'the disk is full'); END`)
				require.NoError(t, err)
				require.ErrorContains(t, write.do(a.store), "the disk is full", statement)
				require.Equal(t, before, everything(t, a), statement)
				_, err = a.store.write.ExecContext(t.Context(), `DROP TRIGGER full`)
				require.NoError(t, err)
			}
			require.NoError(t, write.do(a.store), "nothing but these statements failed")
			require.NotEqual(t, before, everything(t, a))
		})
	}
}

// shards are the numbers of those that objects may be in.
func shards() (all string) {
	for n := range 4096 {
		if n > 0 {
			all += ","
		}
		all += fmt.Sprint(n)
	}
	return all
}

// TestLabelsAreStoredForLists: all of them, of a new object and of one that is labeled anew.
func TestLabelsAreStoredForLists(t *testing.T) {
	a := open(t, "sqlite::memory:", new(ear).notify)
	k := objects.Key{Kind: "widgets", Name: "blue"}
	names := func(labels map[string]string) (all []string) {
		items, _, err := a.store.list(t.Context(), selection{kind: "widgets", Selection: objects.Everything(labels, "")})
		require.NoError(t, err)
		for i := range items {
			all = append(all, items[i].Name)
		}
		return all
	}
	_, _, err := a.store.put(t.Context(), k, objects.Wanted{Spec: []byte(`{}`), Labels: map[string]string{"a": "b", "c": "d"}})
	require.NoError(t, err)
	for _, labels := range []map[string]string{{"a": "b"}, {"c": "d"}, {"a": "b", "c": "d"}} {
		require.Equal(t, []string{"blue"}, names(labels))
	}
	_, _, err = a.store.put(t.Context(), k, objects.Wanted{Spec: []byte(`{}`), Labels: map[string]string{"c": "e", "f": "g"}})
	require.NoError(t, err)
	require.Equal(t, []string{"blue"}, names(map[string]string{"c": "e", "f": "g"}))
	for _, labels := range []map[string]string{{"a": "b"}, {"c": "d"}} {
		require.Empty(t, names(labels))
	}
}

// TestTombstonesHoldNoSpec: what was deleted is not kept until the broker comes back.
func TestTombstonesHoldNoSpec(t *testing.T) {
	a := open(t, "sqlite::memory:", new(ear).notify)
	k := objects.Key{Kind: "widgets", Name: "blue"}
	_, err := a.store.create(t.Context(), k, objects.Wanted{Spec: []byte(`{"host":"marker"}`)}, requestKey{})
	require.NoError(t, err)
	_, _, err = a.store.change(t.Context(), k, objects.RequestDeletion)
	require.NoError(t, err)
	var gone bool
	var spec string
	require.NoError(t, a.store.read.QueryRowContext(t.Context(), `SELECT gone, spec FROM objects`).Scan(&gone, &spec))
	require.True(t, gone)
	require.Equal(t, "{}", spec)
	_, err = a.store.get(t.Context(), k)
	require.ErrorIs(t, err, apiclient.ErrNotFound)
}

// TestBrokenRowIsAnError: an object without what could not be read of it would be taken for one that never had it.
func TestBrokenRowIsAnError(t *testing.T) {
	a := open(t, "sqlite::memory:", new(ear).notify)
	k := objects.Key{Kind: "widgets", Name: "w-0000"}
	create(t, a, 1)
	for _, column := range []string{"labels", "finalizers", "reconciliation"} {
		var was string
		require.NoError(t, a.store.read.QueryRowContext(t.Context(), `SELECT `+column+` FROM objects`).Scan(&was))
		_, err := a.store.write.ExecContext(t.Context(), `UPDATE objects SET `+column+` = '{'`)
		require.NoError(t, err)
		_, err = a.store.get(t.Context(), k)
		require.ErrorContains(t, err, "read widgets/w-0000")
		_, _, err = a.store.change(t.Context(), k, objects.RequestRetry)
		require.ErrorContains(t, err, "read widgets/w-0000")
		_, err = a.store.write.ExecContext(t.Context(), `UPDATE objects SET `+column+` = $1`, was)
		require.NoError(t, err)
	}
	_, err := a.store.get(t.Context(), k)
	require.NoError(t, err)
}

// TestOnlyObjectsThatAreThereAreOwedAReconcile, and not those that are settled.
func TestOnlyObjectsThatAreThereAreOwedAReconcile(t *testing.T) {
	at := time.Now()
	pending := apiclient.Raw{Generation: 1, CreatedAt: at, ChangedAt: at, Reconciliation: apiclient.Reconciliation{State: apiclient.StatePending}}
	settled := pending
	settled.Reconciliation = apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 1}
	require.True(t, (&row{object: pending}).owedSince().Valid)
	require.False(t, (&row{object: pending, gone: true}).owedSince().Valid)
	require.False(t, (&row{object: settled}).owedSince().Valid)
}

// TestEveryWriteUsesTheFirstKey, also one that leaves the spec alone: so what is written from now on needs no old key. What cannot
// be sealed is not written.
func TestEveryWriteUsesTheFirstKey(t *testing.T) {
	a := open(t, "sqlite::memory:", new(ear).notify)
	v := widgetVault(t, "one")
	v.refresh = func(context.Context) error { return nil }
	a.store.vault = v
	k := objects.Key{Kind: "widgets", Name: "blue"}
	wanted := objects.Wanted{Spec: []byte(`{"password":"hunter2"}`), Admit: func(_ *apiclient.Raw, wanted json.RawMessage) (json.RawMessage, string, error) {
		return wanted, "v1", nil
	}}
	stored := func() (spec, key string) {
		require.NoError(t, a.store.read.QueryRowContext(t.Context(), `SELECT spec, sealed_key FROM objects`).Scan(&spec, &key))
		require.NotContains(t, spec, hunter2)
		return spec, key
	}
	_, err := a.store.create(t.Context(), k, wanted, requestKey{})
	require.NoError(t, err)
	_, key := stored()
	require.Equal(t, "one", key)
	v.keys = keyring(t, "two", "one")
	_, _, err = a.store.change(t.Context(), k, objects.RequestRetry)
	require.NoError(t, err)
	_, key = stored()
	require.Equal(t, "two", key)
	o, err := a.store.get(t.Context(), k)
	require.NoError(t, err)
	require.JSONEq(t, `{"password":"hunter2"}`, string(o.Spec))

	spec, _ := stored()
	v.keys = keyring(t, "one") // it cannot be read here, and keeps its ciphertexts
	_, _, err = a.store.change(t.Context(), k, objects.RequestRetry)
	require.NoError(t, err)
	kept, key := stored()
	require.Equal(t, []string{spec, "two"}, []string{kept, key})
	v.keys = nil
	before := everything(t, a)
	_, _, err = a.store.put(t.Context(), k, objects.Wanted{Spec: []byte(`{"password":"hunter2-new"}`), Admit: wanted.Admit})
	require.ErrorIs(t, err, errSealed)
	_, err = a.store.create(t.Context(), objects.Key{Kind: "widgets", Name: "red"}, wanted, requestKey{})
	require.ErrorIs(t, err, errSealed)
	require.Equal(t, before, everything(t, a))
}
