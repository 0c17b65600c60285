package jsapi

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// page is what a server says of a stream, with some of its subjects.
func page(t *testing.T, total int, at string, subjects map[string]uint64) string {
	t.Helper()
	b, err := json.Marshal(map[string]any{
		"total": total, "ts": at, "config": map[string]any{"name": "W", "description": at}, "state": map[string]any{"subjects": subjects},
	})
	require.NoError(t, err)
	return string(b)
}

// A list that leaves out a page would leave out held locks.
func TestListReadsPageAfterPage(t *testing.T) {
	const info, first, later = "$JS.API.STREAM.INFO.W", "2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z"
	a, b, c := map[string]uint64{"w.a": 1}, map[string]uint64{"w.b": 1}, map[string]uint64{"w.c": 2}
	all := map[string]uint64{"w.a": 1, "w.b": 1, "w.c": 2}
	for name, tt := range map[string]struct {
		pages []string
		want  map[string]uint64
	}{
		"none":                       {[]string{page(t, 0, first, nil)}, map[string]uint64{}},
		"one":                        {[]string{page(t, 1, first, a)}, a},
		"three pages":                {[]string{page(t, 3, first, a), page(t, 3, later, b), page(t, 3, later, c)}, all},
		"one appears meanwhile":      {[]string{page(t, 2, first, a), page(t, 3, later, b), page(t, 3, later, c)}, all},
		"the last disappears":        {[]string{page(t, 2, first, a), page(t, 2, later, nil)}, a},
		"more than the server lists": {[]string{page(t, 1, first, all)}, all},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, func(t *testing.T, s *script.Server, nc *nats.Conn) {
				start := time.Now()
				s.Answer(info, append(tt.pages, noStream)...)
				l, err := List(t.Context(), nc, "W", "w.*")
				require.NoError(t, err)
				require.Equal(t, tt.want, l.Subjects)
				require.Equal(t, first, l.Time.Format(time.RFC3339))
				require.Equal(t, first, l.Config.Description)
				require.Equal(t, start, l.Sent)
				require.Equal(t, start, l.Answered)
				var want []string
				for offset := range tt.pages {
					b, err := json.Marshal(map[string]any{"subjects_filter": "w.*", "offset": offset})
					require.NoError(t, err)
					want = append(want, string(b))
				}
				require.Equal(t, want, bodies(s, info))
			})
		})
	}
}
