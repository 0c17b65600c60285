package apitest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// told is, in a bubble, what a watch tells at once, with the id of each event: "12 put blue".
func told(t *testing.T, m *Memory, path string) (events []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	rec, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(done)
		m.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil).WithContext(ctx))
	}()
	synctest.Wait()
	cancel()
	<-done
	for text := range strings.SplitSeq(strings.TrimSuffix(rec.Body.String(), "\n\n"), "\n\n") {
		if text == "" {
			continue
		}
		fields := strings.NewReplacer("id: ", "", "event: ", "", "\n", " ").Replace(text)
		event, data, _ := strings.Cut(fields, " data: ")
		_, name, _ := strings.Cut(data, `"name":"`)
		name, _, _ = strings.Cut(name, `"`)
		events = append(events, strings.TrimSpace(event+" "+name))
	}
	return events
}

// TestWatchTellsWhatConcernsIt: what there is in the order of names, what has happened in the order in which it did, of its own kind,
// name and labels, with ids to go on from.
func TestWatchTellsWhatConcernsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := silent()
		put := func(name, labels string) {
			require.Less(t, request(m, "PUT", "/v1/objects/"+name, `{"spec":{},"labels":{`+labels+`}}`).Code, 300)
		}
		for _, name := range []string{"f", "b", "d", "a", "e", "c"} { // 1 to 6
			put("widgets/"+name, "")
		}
		put("gears/a", "")                             // 7
		put("widgets/a", `"a":"b"`)                    // 8
		put("widgets/g", `"a":"b"`)                    // 9
		for i, name := range []string{"f", "b", "d"} { // 10 to 12
			require.Equal(t, 204, request(m, "DELETE", "/v1/objects/widgets/"+name, "").Code, i)
		}
		require.Equal(t, 204, request(m, "DELETE", "/v1/objects/gears/a", "").Code) // 13
		put("widgets/c", `"a":"c"`)                                                 // 14
		for path, want := range map[string][]string{
			"":                     {"14 reset", "14 put a", "14 put c", "14 put e", "14 put g", "14 synced"},
			"?name=c":              {"14 reset", "14 put c", "14 synced"},
			"?labels=a=b":          {"14 reset", "14 put a", "14 put g", "14 synced"},
			"?cursor=6":            {"8 put a", "9 put g", "10 gone f", "11 gone b", "12 gone d", "14 put c"},
			"?cursor=11":           {"12 gone d", "14 put c"},
			"?cursor=12":           {"14 put c"},
			"?cursor=7&labels=a=b": {"8 put a", "9 put g", "10 gone f", "11 gone b", "12 gone d", "14 gone c"},
			"?cursor=7&name=b":     {"11 gone b"},
			"?cursor=14":           nil,
			"?cursor=15":           {"14 reset", "14 put a", "14 put c", "14 put e", "14 put g", "14 synced"},
		} {
			require.Equal(t, want, told(t, m, "/v1/watch/widgets"+path), path)
		}
		require.Equal(t, []string{"13 gone a"}, told(t, m, "/v1/watch/gears?cursor=6"))
		for _, wrong := range []string{"?cursor=x", "?cursor=1.5", "?cursor=-1", "?labels=a", "?name=/"} {
			require.Equal(t, 422, request(m, "GET", "/v1/watch/widgets"+wrong, "").Code, wrong)
		}
	})
}

// mute is a connection that takes nothing, and does not say so when it is flushed.
type mute struct{ *httptest.ResponseRecorder }

func (mute) Write([]byte) (int, error) { return 0, errors.New("gone") }

// TestReaderThatHasGoneEndsItsWatch, also if only a write shows it.
func TestReaderThatHasGoneEndsItsWatch(t *testing.T) {
	m := silent()
	m.ServeHTTP(mute{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/v1/watch/widgets", nil)) // it returns
}

// TestRelaysTakeTurns: one relay publishes at a time.
func TestRelaysTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		heard := 0
		m := NewMemory(func(context.Context, string, string, string) error {
			mu.Lock()
			heard++
			mu.Unlock()
			time.Sleep(time.Second)
			return nil
		})
		request(m, "POST", widgetsPath, `{"name":"blue","spec":{}}`)
		var relays sync.WaitGroup
		for range 5 {
			relays.Go(func() {
				if err := m.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		relays.Wait()
		require.Equal(t, 1, heard)
	})
}

// TestMadeAnewBesideItsTombstone: an object is deleted and created again before the deletion has been notified. One notification is
// sent, with the reason "created".
func TestMadeAnewBesideItsTombstone(t *testing.T) {
	var heard []string
	m := NewMemory(func(_ context.Context, _, name, reason string) error {
		heard = append(heard, fmt.Sprint(name, " ", reason))
		return nil
	})
	request(m, "POST", widgetsPath, `{"name":"blue","spec":{}}`)
	require.Equal(t, 204, request(m, "DELETE", bluePath, "").Code)
	require.Equal(t, 404, request(m, "GET", bluePath, "").Code)
	require.Equal(t, 201, request(m, "POST", widgetsPath, `{"name":"blue","spec":{}}`).Code)
	require.Equal(t, 409, request(m, "POST", widgetsPath, `{"name":"blue","spec":{}}`).Code)
	require.Equal(t, 200, request(m, "GET", bluePath, "").Code)
	require.Equal(t, 1, m.Dirty())
	require.NoError(t, m.Flush(t.Context()))
	require.Equal(t, []string{"blue created"}, heard)
	require.Zero(t, m.Dirty())
}
