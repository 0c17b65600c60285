package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/controllers/access"
)

// TestAuditLogSaysWhoDidWhat: a line for each write and each refusal, none for what was read, and nothing of bodies.
func TestAuditLogSaysWhoDidWhat(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	adminID, admin := s.token(access.Admin)
	viewerID, viewer := s.token(access.Viewer)
	const secretBody = `{"name":"blue","labels":{"hunter2":"hunter2"},"spec":{"password":"hunter2"}}`
	require.Equal(t, 201, s.ask("POST", "/v1/objects/widgets", admin, secretBody, "X-Secret", "hunter2").status)
	require.Equal(t, 409, s.ask("POST", "/v1/objects/widgets", admin, secretBody).status)
	require.Equal(t, 422, s.ask("POST", "/v1/objects/widgets", admin, `{"name":"hunter2 is no name","spec":{"password":"hunter2"}}`).status)
	require.Equal(t, 422, s.ask("PUT", "/v1/objects/widgets/blue?x=hunter2", admin, `{"spec":{},"hunter2":"hunter2"}`).status)
	require.Equal(t, 200, s.ask("GET", "/v1/objects/widgets/blue", viewer, "").status)
	require.Equal(t, 404, s.ask("GET", "/v1/objects/widgets/red", viewer, "").status)
	require.Equal(t, 403, s.ask("DELETE", "/v1/objects/widgets/blue", viewer, "").status)
	require.Equal(t, 401, s.ask("GET", "/v1/objects/widgets/blue", "hunter2", "").status)
	require.Equal(t, 422, s.ask("POST", "/v1/objects/hunter2%20%0A/x/retry", admin, "").status)
	require.Equal(t, 409, s.ask("PATCH", "/v1/objects/widgets/blue/status", admin, `{"uid":"other","fence":1}`).status)
	require.Equal(t, 204, s.ask("DELETE", "/v1/objects/widgets/blue", admin, "").status)
	made := s.ask("POST", "/v1/tokens", admin, `{"name":"hunter2","role":"viewer"}`)
	require.Equal(t, 201, made.status)
	var token struct{ ID, Token string }
	decode(t, made.body, &token)
	require.Equal(t, 204, s.ask("DELETE", "/v1/tokens/"+token.ID, admin, "").status)

	lines := s.entries()
	for i := range lines {
		require.WithinDuration(t, s.now, lines[i].Time, time.Second)
		require.Equal(t, time.UTC, lines[i].Time.Location())
		lines[i].Time = time.Time{}
	}
	byAdmin := func(method, operation, kind, name string, status int, problem string) entry {
		return entry{
			Principal: "the-admin", ID: "token:" + adminID, Role: access.Admin, Remote: "192.0.2.1:1234",
			Method: method, Operation: operation, Kind: kind, Name: name, Status: status, Problem: problem,
		}
	}
	require.Equal(t, []entry{
		byAdmin("POST", "create", "widgets", "blue", 201, ""),
		byAdmin("POST", "create", "widgets", "blue", 409, "exists"),
		byAdmin("POST", "create", "widgets", "", 422, "invalid"),
		byAdmin("PUT", "put", "widgets", "blue", 422, "invalid"),
		{
			Principal: "the-viewer", ID: "token:" + viewerID, Role: access.Viewer, Remote: "192.0.2.1:1234",
			Method: "DELETE", Operation: "delete", Kind: "widgets", Name: "blue", Status: 403, Problem: "forbidden",
		},
		{Remote: "192.0.2.1:1234", Method: "GET", Operation: "get", Kind: "widgets", Name: "blue", Status: 401, Problem: "unauthorized"},
		byAdmin("POST", "retry", "", "x", 422, "invalid"),
		byAdmin("PATCH", "patch-status", "widgets", "blue", 409, "conflict"),
		byAdmin("DELETE", "delete", "widgets", "blue", 204, ""),
		byAdmin("POST", "create-token", "", token.ID, 201, ""),
		byAdmin("DELETE", "revoke-token", "", token.ID, 204, ""),
	}, lines)
	require.NotContains(t, s.audit.String(), "hunter2")
	s.assertSecret(admin, viewer, token.Token)
}

// TestAnswerComesAfterItsLine: whoever has an answer finds it in the log.
func TestAnswerComesAfterItsLine(t *testing.T) {
	s := secure(t, newStore(t), Access{Insecure: true})
	began := 0
	s.door.declare("POST", "/v1/new", "new", access.Create)
	s.door.HandleFunc("POST /v1/new", func(w http.ResponseWriter, _ *http.Request) {
		require.Empty(t, s.entries())
		w.WriteHeader(http.StatusEarlyHints)
		require.Empty(t, s.entries(), "no answer yet")
		_, err := w.Write([]byte("x"))
		require.NoError(t, err)
		require.Equal(t, []int{200}, statuses(s.entries()))
		require.NoError(t, http.NewResponseController(w).Flush())
		began++
	})
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	resp, err := srv.Client().Post(srv.URL+"/v1/new", "", nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, "x", string(body))
	require.Equal(t, 1, began)
	require.Empty(t, s.entries(), "one line")
}

// TestPanicIsInTheAuditLog as a request without an answer.
func TestPanicIsInTheAuditLog(t *testing.T) {
	s := secure(t, newStore(t), Access{Insecure: true})
	s.door.declare("POST", "/v1/new", "new", access.Create)
	s.door.HandleFunc("POST /v1/new", func(http.ResponseWriter, *http.Request) { panic("boom") })
	require.Panics(t, func() { s.ask("POST", "/v1/new", "", "") })
	lines := s.entries()
	require.Equal(t, []int{0}, statuses(lines))
	require.Equal(t, "anonymous", lines[0].Principal)
}

// TestAuditLogThatFailsIsReported in the log and by the probe, until it is written again; the line that was cut off does not
// spoil the next one.
func TestAuditLogThatFailsIsReported(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, admin := s.token(access.Admin)
	require.NoError(t, s.Ready(t.Context()))
	put := func(name string) {
		require.Equal(t, 201, s.ask("PUT", "/v1/objects/widgets/"+name, admin, `{"spec":{"password":"hunter2"}}`).status)
	}
	s.audit.setFail(errors.New("disk full"), 0)
	put("a")
	require.ErrorContains(t, s.Ready(t.Context()), "the audit log cannot be written")
	require.NotContains(t, s.Ready(t.Context()).Error(), "disk full", "that is for the log")
	require.Contains(t, s.logs.String(), "disk full")
	s.audit.setFail(errors.New("disk full"), 10)
	put("b")
	s.audit.setFail(errors.New("disk full"), 0)
	put("c")
	s.audit.setFail(nil, 0)
	put("d")
	require.NoError(t, s.Ready(t.Context()))
	put("e")
	lines := strings.Split(strings.TrimSuffix(s.audit.String(), "\n"), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, `{"time":"2`, lines[0])
	for i, name := range []string{"d", "e"} {
		var e entry
		decode(t, lines[i+1], &e)
		require.Equal(t, name, e.Name)
	}
	require.NotContains(t, s.logs.String(), "hunter2")
	s.assertSecret(admin)
}

func TestNoAuditLogIsNoFailure(t *testing.T) {
	a := open(t, "sqlite::memory:", new(ear).notify)
	c := widgets(t, a)
	_, err := c.Create(t.Context(), "blue", doc{})
	require.NoError(t, err)
	require.True(t, a.door.audit.ready())
}

// TestLinesAreBounded: what a caller makes up is not written.
func TestLinesAreBounded(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, viewer := s.token(access.Viewer)
	long := strings.Repeat("x", 100_000)
	for _, request := range []string{"PUT /v1/objects/%[1]s/%[1]s", "POST /v1/objects/widgets/%s/retry", "DELETE /v1/tokens/%s"} {
		method, path, _ := strings.Cut(fmt.Sprintf(request, long), " ")
		require.Equal(t, 403, s.ask(method, path, viewer, "").status)
	}
	require.Len(t, s.entries(), 3)
	require.Less(t, len(s.audit.String()), 1000)
}
