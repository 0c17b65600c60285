package apitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/objects"
)

func decodeBody(t *testing.T, rec *httptest.ResponseRecorder, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), into), rec.Body)
}

// body is that of a request. It can break in its middle, and keeps whether it was closed.
type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error {
	b.closed = true
	return nil
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the line was cut") }

// A transport has to close what it is given (http.RoundTripper), and half a request is none.
func TestClientClosesTheBodyAndReadsAllOfIt(t *testing.T) {
	m := silent()
	send := func(b *body) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api"+widgetsPath, b)
		require.NoError(t, err)
		resp, err := m.Client().Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.True(t, b.closed)
		return resp.StatusCode, string(text)
	}
	status, text := send(&body{Reader: io.MultiReader(strings.NewReader(`{"name":"blue","spec":{}}`), broken{})})
	require.Equal(t, 400, status)
	require.Contains(t, text, "read: the line was cut")
	require.Empty(t, m.rows)
	status, _ = send(&body{Reader: strings.NewReader(`{"name":"blue","spec":{}}`)})
	require.Equal(t, 201, status)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api"+widgetsPath, nil)
	require.NoError(t, err)
	resp, err := m.Client().Do(r)
	require.NoError(t, err)
	require.Equal(t, 400, resp.StatusCode, "no body at all")
	require.NoError(t, resp.Body.Close())
}

func TestLargestBodyIsTaken(t *testing.T) {
	m := silent()
	const start, end = `{"name":"blue","spec":{}`, `}`
	text := start + strings.Repeat(" ", objects.MaxBody-len(start)-len(end)) + end
	require.Equal(t, 413, request(m, "POST", widgetsPath, text+" ").Code)
	require.Equal(t, 201, request(m, "POST", widgetsPath, text).Code)
}

func TestWrongMethodIsToldTheRightOnes(t *testing.T) {
	rec := request(silent(), "POST", bluePath, "")
	require.Equal(t, 405, rec.Code)
	require.Equal(t, "DELETE, GET, PATCH, PUT", rec.Result().Header.Get("Allow"))
}

func TestNoContentIsNone(t *testing.T) {
	m := silent()
	require.Equal(t, 201, request(m, "POST", widgetsPath, `{"name":"blue","spec":{}}`).Code)
	rec := request(m, "DELETE", bluePath, "")
	require.Equal(t, 204, rec.Code)
	require.Empty(t, rec.Body.String())
	require.Empty(t, rec.Result().Header)
}

// A batch that fails leaves nothing behind: no changed or deleted object, no watch event, no history event.
func TestBatchThatFailsIsNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := silent()
		for _, name := range []string{"a", "b", "c", "d"} {
			require.Equal(t, 201, request(m, "POST", widgetsPath, `{"name":"`+name+`","spec":{"a":1}}`).Code)
		}
		require.NoError(t, m.Flush(t.Context()))
		seen := func() (all []string) {
			for _, path := range []string{"", "/a", "/b", "/c", "/d", "/a/events", "/b/events", "/c/events"} {
				rec := request(m, "GET", widgetsPath+path, "")
				require.Equal(t, 200, rec.Code, path)
				all = append(all, rec.Body.String())
			}
			return all
		}
		before, events := seen(), m.Dirty()
		stream, stop := watching(t, m, "/v1/watch/widgets")
		require.Len(t, drained(stream), 6)
		// Items are applied in an order of their own, so each may be the one that fails.
		for _, wrong := range []string{"a", "b", "c", "d"} {
			var items bytes.Buffer
			for _, name := range []string{"a", "b", "c", "d"} {
				switch name {
				case wrong:
					items.WriteString(`,{"kind":"widgets","name":"` + name + `","spec":{},"revision":99}`)
				case "a", "d":
					items.WriteString(`,{"kind":"widgets","name":"` + name + `","delete":true}`)
				default:
					items.WriteString(`,{"kind":"widgets","name":"` + name + `","spec":{"a":2}}`)
				}
			}
			require.Equal(t, 409, request(m, "POST", "/v1/batch", `{"items":[`+items.String()[1:]+`]}`).Code)
			require.Equal(t, before, seen())
			require.Equal(t, events, m.Dirty())
			require.Empty(t, drained(stream))
		}
		stop()
	})
}

// Who comes back is told what there is now, and nothing of an object's earlier life.
func TestWatchTellsOfAnObjectMadeAnewOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := silent()
		for _, step := range [][2]string{{"PUT", `{"spec":{}}`}, {"DELETE", ""}, {"PUT", `{"spec":{}}`}} {
			require.Less(t, request(m, step[0], bluePath, step[1]).Code, 300)
		}
		for _, query := range []string{"?cursor=0", "?cursor=1", "?cursor=0&name=blue"} {
			stream, stop := watching(t, m, "/v1/watch/widgets"+query)
			require.Equal(t, []string{"put 0s"}, drained(stream), query)
			stop()
		}
		for _, query := range []string{"?cursor=3", "?cursor=0&name=red"} {
			stream, stop := watching(t, m, "/v1/watch/widgets"+query)
			require.Empty(t, drained(stream), query)
			stop()
		}
	})
}
