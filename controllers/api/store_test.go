package api

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// TestQueriesUseTheirIndexes: what is asked for all the time must not cost more the more settled objects there are.
func TestQueriesUseTheirIndexes(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	queries := []indexed{
		{selectAll, []any{"widgets", "", 100}, "sqlite_autoindex_objects_1 (kind=? AND name>?)"},
		{selectDirty, []any{"", "", 100}, "objects_dirty ((kind,name)>(?,?))"},
		{selectDirtyOne, []any{"widgets", "blue"}, "(kind=? AND name=?)"},
		{selectOne, []any{"widgets", "blue"}, "sqlite_autoindex_objects_1 (kind=? AND name=?)"},
		{selectOld, []any{"widgets", "", "v2", "v2", 100}, "sqlite_autoindex_objects_1 (kind=? AND name>?)"},
		{a.store.feed.selectChanges, []any{1, "", "", 100}, "sqlite_autoindex_changes_1 ((change,kind,name)>(?,?,?) AND change<?)"},
	}
	for query, want := range map[objects.ListQuery][]string{
		{Unsettled: "0s"}:                 {"COVERING INDEX objects_owed (kind=? AND name>?)"},
		{Labels: "a=b,c=d"}:               {"found USING COVERING INDEX sqlite_autoindex_labels_1 (kind=? AND label=? AND value=? AND name>?)", "l USING COVERING INDEX sqlite_autoindex_labels_1 (kind=? AND label=? AND value=? AND name=?)"},
		{State: "Stalled"}:                {"INDEX objects_state (kind=? AND state=? AND name>?)"},
		{Sort: "-name"}:                   {"(kind=? AND name<?)"},
		{Sort: "created"}:                 {"INDEX objects_created (kind=? AND (created_at,name)>(?,?))"},
		{Sort: "-changed"}:                {"INDEX objects_changed (kind=? AND (changed_at,name)<(?,?))"},
		{Sort: "-created", Labels: "a=b"}: {"objects_created (kind=? AND (created_at,name)<(?,?))", "l USING COVERING INDEX"},
	} {
		text, args := behind(t, query).query()
		for _, w := range want {
			queries = append(queries, indexed{text, args, w})
		}
	}
	for _, q := range queries {
		plan := explain(t, a.store.read, q.text, q.args...)
		require.Contains(t, plan, q.want)
		require.NotContains(t, plan, "SCAN", q.text)
		require.NotContains(t, plan, "TEMP B-TREE", q.text)
	}
	plan := explain(t, a.store.read, selectStored, "widgets")
	require.Contains(t, plan, "INDEX objects_version (kind=?)")
	require.NotContains(t, plan, "SCAN objects")
}

// indexed is a statement and what its plan must have.
type indexed struct {
	text string
	args []any
	want string
}

// behind is a list of widgets that goes on behind some position.
func behind(t *testing.T, q objects.ListQuery) *selection {
	t.Helper()
	s, err := objects.ParseSelection(q)
	require.NoError(t, err)
	s.After = &objects.Position{At: 1, Name: "blue"}
	return &selection{kind: "widgets", Selection: s}
}

// TestPostgresQueriesUseTheirIndexes is the same, with a planner that scans small tables if it may.
func TestPostgresQueriesUseTheirIndexes(t *testing.T) {
	a := open(t, pgtest.Database(t), new(ear).notify)
	tx, err := a.store.read.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.ExecContext(t.Context(), `SET LOCAL enable_seqscan = off`)
	require.NoError(t, err)
	queries := []indexed{
		{selectAll, []any{"widgets", "", 100}, "using objects_pkey"},
		{selectDirty, []any{"", "", 100}, "objects_dirty"},
		{selectOne, []any{"widgets", "blue"}, "using objects_pkey"},
	}
	for query, want := range map[objects.ListQuery]string{
		{Unsettled: "0s"}:   "using objects_owed",
		{Labels: "a=b,c=d"}: "(name = found.name)",
		{State: "Stalled"}:  "using objects_state",
		{Sort: "created"}:   "using objects_created",
		{Sort: "-changed"}:  "using objects_changed",
	} {
		text, args := behind(t, query).query()
		queries = append(queries, indexed{text, args, want})
	}
	for _, q := range queries {
		rows, err := tx.QueryContext(t.Context(), "EXPLAIN "+q.text, q.args...)
		require.NoError(t, err)
		var plan strings.Builder
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			plan.WriteString(line + "\n")
		}
		require.NoError(t, rows.Err())
		require.Contains(t, plan.String(), q.want, q.text)
		require.NotContains(t, plan.String(), "Seq Scan", q.text)
	}
}

func explain(t *testing.T, db *sql.DB, query string, args ...any) string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
	require.NoError(t, err)
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var step string
		require.NoError(t, rows.Scan(&id, &parent, &unused, &step))
		plan = append(plan, step)
	}
	require.NoError(t, rows.Err())
	return strings.Join(plan, "\n")
}

func TestTransactionsBeginAnewAfterALostRace(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	tries := 0
	err := a.store.transact(t.Context(), func(*transaction) error {
		if tries++; tries < 3 {
			return errLostRace
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 3, tries)

	tries = 0
	err = a.store.transact(t.Context(), func(*transaction) error {
		tries++
		return errLostRace
	})
	require.ErrorIs(t, err, errLostRace)
	require.Equal(t, maxTries, tries, "bounded")

	tries = 0
	wrong := errors.New("wrong")
	err = a.store.transact(t.Context(), func(*transaction) error {
		tries++
		return wrong
	})
	require.ErrorIs(t, err, wrong)
	require.Equal(t, 1, tries)
}

// TestFailedTransactionLeavesNothing is R34: what is written goes through the transaction that is rolled back.
func TestFailedTransactionLeavesNothing(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	wrong := errors.New("wrong")
	err := a.store.transact(t.Context(), func(tx *transaction) error {
		o, err := objects.New(objects.Key{Kind: "widgets", Name: "blue"}, objects.Wanted{Spec: []byte(`{}`)})
		require.NoError(t, err)
		require.NoError(t, insert(t.Context(), tx, &o))
		return wrong
	})
	require.ErrorIs(t, err, wrong)
	all, _ := rows(t, a)
	require.Zero(t, all)
}

// TestLostRacesAreRecognized: the error of a database that another process has locked, and of a write based on a row that
// has changed since.
func TestLostRacesAreRecognized(t *testing.T) {
	store := newStore(t)
	a := open(t, store, new(ear).notify)
	other, err := sql.Open("sqlite", "file:"+strings.TrimPrefix(store, "sqlite:")+"?_txlock=immediate&_pragma=busy_timeout(0)")
	require.NoError(t, err)
	defer other.Close()
	err = a.store.transact(t.Context(), func(*transaction) error {
		_, err := other.BeginTx(t.Context(), nil)
		return errors.Join(errors.New("seen"), err)
	})
	require.ErrorContains(t, err, "database is locked")
	require.True(t, a.store.lostRace(err))

	create(t, a, 1)
	err = a.store.transact(t.Context(), func(tx *transaction) error {
		r, err := find(t.Context(), tx, tx.vault, objects.Key{Kind: "widgets", Name: "w-0000"}, tx.rowLock)
		require.NoError(t, err)
		before := r.object
		before.Revision += 5
		return r.update(t.Context(), tx, &before, objects.Effect{})
	})
	require.ErrorIs(t, err, errLostRace)
	require.False(t, a.store.lostRace(errors.New("wrong")))
	require.False(t, a.store.lostRace(nil))
}

func TestReadersCannotWrite(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	_, err := a.store.read.ExecContext(t.Context(), `DELETE FROM objects`)
	require.ErrorContains(t, err, "readonly")
}

// TestManyWritersOfOneObjectAllWrite: however many writers an object has at once, none of them loses every race.
func TestManyWritersOfOneObjectAllWrite(t *testing.T) {
	const writers, each = 32, 15
	store := newStore(t)
	replicas := []*API{open(t, store, new(ear).notify), open(t, store, new(ear).notify)}
	k := objects.Key{Kind: "widgets", Name: "blue"}
	o, err := replicas[0].store.create(t.Context(), k, objects.Wanted{Spec: []byte(`{}`)}, requestKey{})
	require.NoError(t, err)
	var writing errgroup.Group
	for w := range writers {
		writing.Go(func() error {
			for range each {
				if _, _, err := replicas[w%2].store.change(t.Context(), k, objects.RequestRetry); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, writing.Wait())
	last, err := replicas[1].store.get(t.Context(), k)
	require.NoError(t, err)
	require.Equal(t, o.Revision+writers*each, last.Revision)
}
