package apitest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// silent is an API whose notifications go nowhere.
func silent() *Memory {
	return NewMemory(func(context.Context, string, string, string) error { return nil })
}

// request is one request of the wire.
func request(m *Memory, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	m.ServeHTTP(rec, r)
	return rec
}

func TestEachRequestHasItsStatus(t *testing.T) {
	m := silent()
	const widgets, blue = "/v1/objects/widgets", "/v1/objects/widgets/blue"
	large := `{"name":"` + strings.Repeat(" ", objects.MaxBody) + `"}`
	for _, c := range []struct {
		method, path, body string
		header             []string
		want               int
	}{
		{method: "POST", path: widgets, body: `{"name":"blue","spec":{}}`, want: 201},
		{method: "POST", path: widgets, body: `{"name":"blue","spec":{}}`, want: 409},
		{method: "GET", path: widgets, want: 200},
		{method: "GET", path: blue, want: 200},
		{method: "PUT", path: blue, body: `{"spec":{"a":1}}`, want: 200},
		{method: "PUT", path: widgets + "/red", body: `{"spec":{}}`, want: 201},
		{method: "PATCH", path: blue, body: `{"spec":{"a":2}}`, header: []string{"Content-Type", mergeMedia}, want: 200},
		{method: "PATCH", path: blue, body: `{"spec":{"a":2}}`, header: []string{"If-Match", "x"}, want: 422},
		{method: "PATCH", path: blue, body: `{"spec":{"a":2}}`, header: []string{"Content-Type", "text/plain"}, want: 415},
		{method: "PATCH", path: blue, body: `{"spec":{"a":2}}`, header: []string{"Content-Type", "application/json; x"}, want: 415},
		{method: "POST", path: blue + "/retry", want: 202},
		{method: "POST", path: blue + "/pause", want: 200},
		{method: "POST", path: blue + "/resume", want: 200},
		{method: "GET", path: blue + "/events", want: 200},
		{method: "GET", path: widgets + "/none/events", want: 404},
		{method: "GET", path: "/v1/self", want: 200},
		{method: "POST", path: "/v1/batch", body: `{"items":[{"kind":"widgets","name":"green","spec":{}}]}`, want: 200},
		{method: "POST", path: "/v1/batch", body: `{"items":1}`, want: 422},
		{method: "POST", path: "/v1/batch", body: `{`, want: 400},
		{method: "DELETE", path: blue, want: 204},
		{method: "GET", path: blue, want: 404},
		{method: "DELETE", path: "/v1/self", want: 405},
		{method: "GET", path: "/v1/nothing", want: 404},
		{method: "GET", path: "/v1//self", want: 404},
		{method: "POST", path: widgets, body: "{\"name\":\"\xff\"}", want: 400},
		{method: "POST", path: widgets, body: `{"name":"a"} {}`, want: 400},
		{method: "POST", path: widgets, body: `{`, want: 400},
		{method: "POST", path: widgets, body: `1`, want: 400},
		{method: "POST", path: widgets, body: large, want: 413},
		{method: "GET", path: "/v1/watch/widgets?cursor=-1", want: 422},
		{method: "GET", path: "/v1/watch/Widgets", want: 422},
	} {
		got := request(m, c.method, c.path, c.body, c.header...)
		require.Equal(t, c.want, got.Code, "%s %s %.60s: %s", c.method, c.path, c.body, got.Body)
		if c.want < 400 {
			continue
		}
		var p apiclient.Problem
		require.NoError(t, json.Unmarshal(got.Body.Bytes(), &p))
		require.Equal(t, c.want, p.Status)
		require.Equal(t, "application/problem+json", got.Header().Get("Content-Type"))
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.URL.Path = ""
	rec := httptest.NewRecorder()
	m.ServeHTTP(rec, r)
	require.Equal(t, http.StatusNotFound, rec.Code)
	require.Equal(t, "application/problem+json", rec.Header().Get("Content-Type"))
}

func TestProblemsNameTheField(t *testing.T) {
	m := silent()
	for body, want := range map[string]string{
		`{"name":1}`:       `body.name`,
		`{"name":1} {}`:    `body.name`,
		`{"colour":"red"}`: `body.colour`,
		`1`:                `cannot unmarshal number`,
	} {
		require.Contains(t, request(m, "POST", "/v1/objects/widgets", body).Body.String(), want)
	}
}

func TestSetSelfChangesWhatEverybodyIsTold(t *testing.T) {
	m := silent()
	require.JSONEq(t, `{"name":"anonymous","role":"admin"}`, request(m, "GET", "/v1/self", "").Body.String())
	m.SetSelf(apiclient.Self{Name: "bob", Role: "viewer"})
	require.JSONEq(t, `{"name":"bob","role":"viewer"}`, request(m, "GET", "/v1/self", "").Body.String())
}

// A key whose create was refused is free: the next create with it makes the object.
func TestCreateThatWasRefusedLeavesItsKeyFree(t *testing.T) {
	m := silent()
	const widgets, body = "/v1/objects/widgets", `{"name":"blue","spec":{}}`
	require.Equal(t, 201, request(m, "POST", widgets, body).Code)
	require.Equal(t, 409, request(m, "POST", widgets, body, "Idempotency-Key", "k").Code)
	require.Equal(t, 204, request(m, "DELETE", widgets+"/blue", "").Code)
	require.Equal(t, 201, request(m, "POST", widgets, body, "Idempotency-Key", "k").Code)
}

// A batch that fails leaves nothing behind, whichever of its items comes first.
func TestBatchThatFailsLeavesNothing(t *testing.T) {
	m := silent()
	require.Equal(t, 201, request(m, "POST", "/v1/objects/widgets", `{"name":"there","spec":{"a":1}}`).Code)
	for i := range 20 {
		body := fmt.Sprintf(`{"items":[{"kind":"widgets","name":"n%d","spec":{}},{"kind":"widgets","name":"there","spec":{"a":2},"revision":99}]}`, i)
		require.Equal(t, 409, request(m, "POST", "/v1/batch", body).Code)
		require.Equal(t, 404, request(m, "GET", fmt.Sprintf("/v1/objects/widgets/n%d", i), "").Code)
	}
	require.Len(t, m.rows, 1)
	require.Contains(t, request(m, "GET", "/v1/objects/widgets/there", "").Body.String(), `"spec":{"a":1}`)
}

// Controllers hear of writes in the order of the writes, and of a notified deletion nothing is kept.
func TestFlushRelaysInTheOrderOfTheWrites(t *testing.T) {
	var heard []string
	m := NewMemory(func(_ context.Context, _, name, reason string) error {
		heard = append(heard, name+" "+reason)
		return nil
	})
	var want []string
	for _, i := range rand.Perm(30) {
		name := fmt.Sprintf("w%d", i)
		require.Equal(t, 201, request(m, "POST", "/v1/objects/widgets", `{"name":"`+name+`","spec":{}}`).Code)
		want = append(want, name+" created")
	}
	require.Equal(t, 30, m.Dirty())
	require.NoError(t, m.Flush(t.Context()))
	require.Equal(t, want, heard)
	require.Zero(t, m.Dirty())
	require.NoError(t, m.Flush(t.Context()))
	require.Len(t, heard, 30, "what is clean is not notified again")
	for i := range 30 {
		require.Equal(t, 204, request(m, "DELETE", fmt.Sprintf("/v1/objects/widgets/w%d", i), "").Code)
	}
	require.Len(t, m.rows, 30, "a deletion that is owed a notification is a row")
	require.NoError(t, m.Flush(t.Context()))
	require.Empty(t, m.rows)
}

// An outage of one object's notifications neither delays another's retry nor has others tried too soon.
func TestRetriesComeDueOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := map[string]int{}
		m := NewMemory(func(_ context.Context, _, name, _ string) error {
			if tries[name]++; name == "good" || name == "soon" && tries[name] > 1 {
				return nil
			}
			return errors.New("down")
		})
		go m.Run(t.Context())
		for i := range 10 {
			request(m, "POST", "/v1/objects/widgets", fmt.Sprintf(`{"name":"bad%d","spec":{}}`, i))
		}
		time.Sleep(10*time.Minute + 2500*time.Millisecond)
		synctest.Wait()
		request(m, "POST", "/v1/objects/widgets", `{"name":"soon","spec":{}}`)
		time.Sleep(firstRetry)
		synctest.Wait()
		require.Equal(t, 2, tries["soon"])
		before := tries["bad0"]
		for i := range 100 {
			request(m, "PUT", "/v1/objects/widgets/good", fmt.Sprintf(`{"spec":{"a":%d}}`, i))
			synctest.Wait()
		}
		require.Equal(t, 100, tries["good"])
		require.Equal(t, before, tries["bad0"], "its next try is not due")
	})
}

func TestBackoffOfTheRelay(t *testing.T) {
	for failures, most := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 200 * time.Millisecond, 5: 3200 * time.Millisecond, 6: 5 * time.Second, 9: 5 * time.Second, 1000: 5 * time.Second,
	} {
		longest := time.Duration(0)
		for range 200 {
			d := backoff(failures)
			require.GreaterOrEqual(t, d, most/2)
			require.Less(t, d, most)
			longest = max(longest, d)
		}
		require.Greater(t, longest, most*9/10)
	}
}

func TestFlushEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		m := NewMemory(func(context.Context, string, string, string) error { <-hangs; return nil })
		request(m, "POST", "/v1/objects/widgets", `{"name":"blue","spec":{}}`)
		go m.Run(t.Context())
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, m.Flush(ctx), context.DeadlineExceeded)
		close(hangs)
	})
}

// watching reads the events of a watch, each with when it came.
func watching(t *testing.T, m *Memory, path string) (events <-chan string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api"+path, nil)
	require.NoError(t, err)
	resp, err := m.Client().Do(r)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	require.Equal(t, r.URL, resp.Request.URL)
	c, start := make(chan string, 100), time.Now()
	go func() {
		defer close(c)
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if kind, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				c <- fmt.Sprint(kind, " ", time.Since(start))
			}
		}
	}()
	return c, cancel
}

func drained(events <-chan string) (got []string) {
	synctest.Wait()
	for len(events) > 0 {
		got = append(got, <-events)
	}
	return got
}

// A watch reports each write at once, and every fifteen seconds without one that it is alive.
func TestWatchTellsOfWritesAndOfNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := silent()
		request(m, "POST", "/v1/objects/widgets", `{"name":"gone","spec":{}}`)
		request(m, "DELETE", "/v1/objects/widgets/gone", "")
		events, stop := watching(t, m, "/v1/watch/widgets")
		again, stopAgain := watching(t, m, "/v1/watch/widgets?cursor=0")
		require.Equal(t, []string{"reset 0s", "synced 0s"}, drained(events), "what is gone is not shown")
		require.Equal(t, []string{"gone 0s"}, drained(again))
		time.Sleep(15 * time.Second)
		require.Equal(t, []string{"heartbeat 15s"}, drained(events))
		time.Sleep(5 * time.Second)
		request(m, "PUT", "/v1/objects/widgets/blue", `{"spec":{}}`)
		require.Equal(t, []string{"put 20s"}, drained(events))
		time.Sleep(15*time.Second - 1)
		require.Empty(t, drained(events))
		time.Sleep(time.Nanosecond)
		require.Equal(t, []string{"heartbeat 35s"}, drained(events), "fifteen seconds after the last one")
		request(m, "PUT", "/v1/objects/gears/blue", `{"spec":{}}`)
		require.Empty(t, drained(events), "another kind")
		stop()
		stopAgain()
		synctest.Wait()
		_, open := <-events
		require.False(t, open)
	})
}

// Over a connection it is the same stream, sent as it comes.
func TestWatchOverAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := silent()
		ctx, cancel := context.WithCancel(t.Context())
		rec, done := httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(done)
			m.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/v1/watch/widgets", nil).WithContext(ctx))
		}()
		synctest.Wait()
		require.True(t, rec.Flushed)
		request(m, "PUT", "/v1/objects/widgets/blue", `{"spec":{"text":"`+strings.Repeat("x", 10_000)+`"}}`)
		synctest.Wait()
		cancel()
		<-done
		require.Equal(t, "text/event-stream", rec.Header().Get("Content-Type"))
		require.Contains(t, rec.Body.String(), "event: synced")
		require.Contains(t, rec.Body.String(), strings.Repeat("x", 10_000)+`"}`)
	})
}
