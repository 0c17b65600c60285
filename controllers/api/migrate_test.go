package api

import (
	"strings"
	"testing"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/objects"

	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
)

// TestMigrationKeepsWhatIsThere: a store of the first version is brought up to date with its objects, and lists select by
// the labels that they had.
func TestMigrationKeepsWhatIsThere(t *testing.T) {
	for name, newStore := range map[string]func(t *testing.T) string{
		"sqlite": newStore, "postgres": func(t *testing.T) string { return pgtest.Database(t) },
	} {
		t.Run(name, func(t *testing.T) {
			where := newStore(t)
			var s *store
			var err error
			if path, ok := strings.CutPrefix(where, "sqlite:"); ok {
				s, err = openSQLite(path)
			} else {
				s, err = openPostgres(t.Context(), where)
			}
			require.NoError(t, err)
			p, err := goose.NewProvider(s.dialect, s.write, s.migrations)
			require.NoError(t, err)
			_, err = p.UpTo(t.Context(), 1)
			require.NoError(t, err)
			for object, labels := range map[string]string{"blue": `{"a":"1","b":"2"}`, "red": `null`, "green": `{}`} {
				record := `{"state":"Stalled"}`
				if object != "red" {
					record = `{}`
				}
				_, err = s.write.ExecContext(t.Context(), `INSERT INTO objects (`+strings.TrimSuffix(columns, ", sealed, sealed_key")+`, notified_revision) VALUES
					('widgets', $1, 'u', $2, 1, 1, 1, 1, NULL, '[]', $3, '', NULL, '{}', '{}', $4, $3, '', 0, 0)`, object, labels, false, record)
				require.NoError(t, err)
			}
			require.NoError(t, s.close())

			a := open(t, where, new(ear).notify)
			items, _, err := a.store.list(t.Context(), selection{kind: "widgets", Selection: objects.Everything(map[string]string{"a": "1"}, "")})
			require.NoError(t, err)
			require.Len(t, items, 1)
			require.Equal(t, map[string]string{"a": "1", "b": "2"}, items[0].Labels)
			items, _, err = a.store.list(t.Context(), selection{kind: "widgets", Selection: objects.Everything(nil, "")})
			require.NoError(t, err)
			require.Len(t, items, 3)
			stalled, err := objects.ParseSelection(objects.ListQuery{State: "Stalled"})
			require.NoError(t, err)
			items, _, err = a.store.list(t.Context(), selection{kind: "widgets", Selection: stalled})
			require.NoError(t, err)
			require.Len(t, items, 1)
		})
	}
}
