package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// TestBatchNeedsPermissionForEachItem: one item that is not permitted refuses them all, whether its object is there or not;
// each item of one that is applied has its line in the audit log.
func TestBatchNeedsPermissionForEachItem(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, admin := s.token(access.Admin)
	_, editor := s.token(access.Editor, "jobs", "widgets")
	require.Equal(t, 201, s.ask("PUT", "/v1/objects/gadgets/there", admin, `{"spec":{}}`).status)
	s.entries()
	for _, forbidden := range []string{
		`{"kind":"gadgets","name":"there","spec":{"a":1}}`, `{"kind":"gadgets","name":"there","delete":true}`,
		`{"kind":"gadgets","name":"there","delete":true,"revision":99}`, `{"kind":"gadgets","name":"there","spec":{},"revision":99}`,
	} {
		body := `{"items":[{"kind":"jobs","name":"a","spec":{}},` + forbidden + `,{"kind":"widgets","name":"b","spec":{}}]}`
		got := s.ask("POST", "/v1/batch", editor, body)
		require.Equal(t, 403, got.status, got.body)
		require.Equal(t, "/problems/forbidden", got.problem.Type)
		require.Len(t, got.problem.Errors, 1)
		require.Equal(t, "body.items.1", got.problem.Errors[0].Location)
		verb := "put"
		if strings.Contains(forbidden, "delete") {
			verb = "delete"
		}
		require.Equal(t, "role editor may "+verb+" only jobs, widgets here, not gadgets", got.problem.Errors[0].Message)
		require.Equal(t, got.body, s.ask("POST", "/v1/batch", editor, strings.ReplaceAll(body, "there", "missing")).body)
		lines := s.entries()
		require.Len(t, lines, 2)
		require.Equal(t, []any{"batch-" + verb, "gadgets", "there", 403, "forbidden"},
			[]any{lines[0].Operation, lines[0].Kind, lines[0].Name, lines[0].Status, lines[0].Problem})
	}
	for _, path := range []string{"/v1/objects/jobs/a", "/v1/objects/widgets/b"} {
		require.Equal(t, 404, s.ask("GET", path, editor, "").status, "nothing was done")
	}
	got := s.ask("POST", "/v1/batch", editor, `{"items":[{"kind":"jobs","name":"a","spec":{"p":"hunter2"}},{"kind":"widgets","name":"b","delete":true}]}`)
	require.Equal(t, 200, got.status, got.body)
	done := map[string]int{}
	for _, e := range s.entries() {
		done[e.Operation+" "+e.Kind+"/"+e.Name] = e.Status
	}
	require.Equal(t, map[string]int{"batch-put jobs/a": 200, "batch-delete widgets/b": 200}, done)
	require.Equal(t, 422, s.ask("POST", "/v1/batch", editor, `{"items":[]}`).status)
	require.Equal(t, []int{422}, statuses(s.entries()))
	require.NotContains(t, s.audit.String(), "hunter2")
}

// TestNobodyIsPermittedBehindTheDoor: what did not come through it has no permission.
func TestNobodyIsPermittedBehindTheDoor(t *testing.T) {
	require.Error(t, permit(t.Context(), access.Put, objects.Key{Kind: "widgets", Name: "blue"}))
	require.False(t, stillWelcome(t.Context()))
	setName(t.Context(), "blue")
	setProblem(t.Context(), "/problems/x")
}

// TestWatchEndsWithItsToken: a token that is revoked, or expires, ends the watches that it began within a heartbeat. A store
// that does not answer does not.
func TestWatchEndsWithItsToken(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *secured, id string){
		"revoked": func(t *testing.T, s *secured, id string) { require.NoError(t, s.tokens.Revoke(t.Context(), id)) },
		"expired": func(_ *testing.T, s *secured, _ string) { s.advance(2 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := secure(t, "sqlite::memory:", Access{})
				ctx, stop := context.WithCancel(t.Context())
				running := make(chan error, 1)
				go func() { running <- s.Run(ctx) }()
				synctest.Wait()
				at := s.now.Add(time.Hour)
				token, text, err := s.tokens.Create(ctx, "watcher", access.Grant{Role: access.Viewer, Kinds: []string{"widgets"}}, &at)
				require.NoError(t, err)
				ended := make(chan struct{})
				rec := httptest.NewRecorder()
				go func() {
					defer close(ended)
					req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/watch/widgets", nil)
					req.Header.Set("Authorization", "Bearer "+text)
					s.Handler().ServeHTTP(rec, req)
				}()
				time.Sleep(5 * objects.Heartbeat)
				select {
				case <-ended:
					t.Fatal("it ended before its token: ", rec.Body.String())
				default:
				}
				end(t, s, token.ID)
				time.Sleep(objects.Heartbeat + time.Second)
				select {
				case <-ended:
				default:
					t.Fatal("it goes on without its token")
				}
				require.Equal(t, 200, rec.Code)
				require.Contains(t, rec.Body.String(), "heartbeat")
				stop()
				require.NoError(t, <-running)
				require.NoError(t, s.Close())
			})
		})
	}
}

// TestWatchSurvivesItsStore: as long as nobody can say that a token is wrong, it is not.
func TestWatchSurvivesItsStore(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, viewer := s.token(access.Viewer)
	s.door.declare("GET", "/v1/new", "new", access.Read)
	s.door.HandleFunc("GET /v1/new", func(_ http.ResponseWriter, req *http.Request) {
		require.True(t, stillWelcome(req.Context()))
		require.NoError(t, s.Close())
		require.True(t, stillWelcome(req.Context()))
	})
	require.Equal(t, 200, s.ask("GET", "/v1/new", viewer, "").status)
}
