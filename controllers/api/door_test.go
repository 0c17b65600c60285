package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/controllers/access"
)

// operationCase is a request of one operation that succeeds for those who may make it.
type operationCase struct {
	id     string
	verb   access.Verb
	method string
	path   string // %s is the name of an object that is there
	body   string
	status int
	roles  string // which of viewer, editor, controller, admin may: their first letters
}

const statusBody = `{"uid":"%UID%","fence":1,"reconciliation":{"state":"Ready"}}`

// operationCases has every operation of the API; TestEveryOperationIsInTheTable holds it to that.
var operationCases = []operationCase{
	{"list", access.Read, "GET", "/v1/objects/widgets", "", 200, "veca"},
	{"get", access.Read, "GET", "/v1/objects/widgets/%s", "", 200, "veca"},
	{"list-events", access.Read, "GET", "/v1/objects/widgets/%s/events", "", 200, "veca"},
	{"create", access.Create, "POST", "/v1/objects/widgets", `{"name":"new","spec":{}}`, 201, "ea"},
	{"put", access.Put, "PUT", "/v1/objects/widgets/%s", `{"spec":{"a":1}}`, 200, "ea"},
	{"patch", access.Patch, "PATCH", "/v1/objects/widgets/%s", `{"spec":{"b":1}}`, 200, "ea"},
	{"retry", access.Retry, "POST", "/v1/objects/widgets/%s/retry", "", 202, "ea"},
	{"pause", access.Pause, "POST", "/v1/objects/widgets/%s/pause", "", 200, "ea"},
	{"resume", access.Resume, "POST", "/v1/objects/widgets/%s/resume", "", 200, "ea"},
	{"patch-status", access.PatchStatus, "PATCH", "/v1/objects/widgets/%s/status", statusBody, 200, "ca"},
	{"delete", access.Delete, "DELETE", "/v1/objects/widgets/%s", "", 204, "ea"},
	{"batch", access.Batch, "POST", "/v1/batch", `{"items":[{"kind":"widgets","name":"batched","spec":{}}]}`, 200, "ea"},
	{"watch", access.Read, "GET", "/v1/watch/widgets", "", 503, "veca"}, // the API does not run, so it feeds no watches
	{"metrics", access.Read, "GET", "/metrics", "", 200, "veca"},
	{"get-self", access.ReadSelf, "GET", "/v1/self", "", 200, "veca"},
	{"list-kinds", access.Read, "GET", "/v1/kinds", "", 200, "veca"},
	{"get-kind", access.Read, "GET", "/v1/kinds/empties", "", 200, "veca"},
	{"put-kind", access.ManageKinds, "PUT", "/v1/kinds/empties", `{"schema":{"type":"object"}}`, 200, "a"},
	{"upgrade-kind", access.ManageKinds, "POST", "/v1/kinds/empties/upgrade", "", 200, "a"},
	{"delete-kind", access.ManageKinds, "DELETE", "/v1/kinds/empties", "", 204, "a"},
	{"create-token", access.ManageTokens, "POST", "/v1/tokens", `{"name":"x","role":"viewer"}`, 201, "a"},
	{"list-tokens", access.ManageTokens, "GET", "/v1/tokens", "", 200, "a"},
	{"revoke-token", access.ManageTokens, "DELETE", "/v1/tokens/%s", "", 204, "a"},
}

// kind is the kind in the path of a case, empty if there is none.
func (c operationCase) kind() string {
	if parts := strings.Split(c.path, "/"); len(parts) > 3 && parts[2] != "tokens" {
		return parts[3]
	}
	return ""
}

// on fills the name in, and the uid.
func (c operationCase) on(name, uid string) (path, body string) {
	path = c.path
	if strings.Contains(path, "%s") {
		path = fmt.Sprintf(path, name)
	}
	return path, strings.ReplaceAll(c.body, "%UID%", uid)
}

// target makes what a case is about and returns its name (or id) and uid.
func (s *secured) target(c operationCase, admin, name string) (string, string) {
	s.t.Helper()
	switch c.kind() {
	case "":
		id, _ := s.token(access.Viewer)
		return id, ""
	case "empties":
		require.Less(s.t, s.ask("PUT", "/v1/kinds/empties", admin, `{"schema":{"type":"object"}}`).status, 300)
		return "", ""
	}
	made := s.ask("POST", "/v1/objects/"+c.kind(), admin, fmt.Sprintf(`{"name":%q,"spec":{}}`, name))
	require.Equal(s.t, 201, made.status, made.body)
	var o struct{ UID string }
	require.NoError(s.t, json.Unmarshal([]byte(made.body), &o))
	return name, o.UID
}

// TestEachRoleMayDoWhatItMay asks for each operation as each role. Who is refused is told role, verb and kind, the same
// whether the object is there or not, and nothing happens.
func TestEachRoleMayDoWhatItMay(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, admin := s.token(access.Admin)
	for _, c := range operationCases {
		for _, role := range []access.Role{access.Viewer, access.Editor, access.Controller, access.Admin} {
			name, uid := s.target(c, admin, fmt.Sprintf("%s-%s", c.id, role))
			path, body := c.on(name, uid)
			if c.id == "create" {
				body = fmt.Sprintf(`{"name":"new-%s","spec":{}}`, role)
			}
			_, token := s.token(role)
			s.entries()
			got := s.ask(c.method, path, token, body)
			if strings.Contains(c.roles, string(role[:1])) {
				require.Equal(t, c.status, got.status, "%s %s: %s", role, c.id, got.body)
				continue
			}
			require.Equal(t, 403, got.status, "%s %s: %s", role, c.id, got.body)
			require.Equal(t, "/problems/forbidden", got.problem.Type)
			require.Equal(t, strings.TrimSpace(fmt.Sprintf("role %s may not %s %s", role, c.verb, c.kind())), got.problem.Detail)
			require.Equal(t, []int{403}, statuses(s.entries()))
			missing, _ := c.on("missing", "")
			require.Equal(t, got.body, s.ask(c.method, missing, token, body).body)
			require.Equal(t, got.body, s.ask(c.method, missing, token, "no JSON").body, "the body of who may not is not looked at")
		}
	}
}

func statuses(entries []entry) (all []int) {
	for _, e := range entries {
		all = append(all, e.Status)
	}
	return all
}

// TestKindsLimitEachOperation: a grant for some kinds is none for others, nor for what belongs to no kind.
func TestKindsLimitEachOperation(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	_, admin := s.token(access.Admin)
	_, inside := s.token(access.Admin, "other", "widgets", "empties")
	_, outside := s.token(access.Admin, "other", "widget")
	for _, c := range operationCases {
		name, uid := s.target(c, admin, "on-"+c.id)
		path, body := c.on(name, uid)
		got := s.ask(c.method, path, outside, body)
		if c.verb == access.ReadSelf {
			require.JSONEq(t, `{"name":"the-admin","role":"admin","kinds":["other","widget"]}`, got.body)
			continue
		}
		require.Equal(t, 403, got.status, c.id)
		if c.verb == access.Batch {
			continue // see TestBatchNeedsPermissionForEachItem
		}
		require.Contains(t, got.problem.Detail, fmt.Sprintf("role admin may %s only other, widget here, not ", c.verb))
		missing, _ := c.on("missing", "")
		require.Equal(t, got.body, s.ask(c.method, missing, outside, body).body)
		want := c.status
		if c.kind() == "" {
			want = 403
		}
		require.Equal(t, want, s.ask(c.method, path, inside, body).status, c.id)
	}
}

// TestEveryOperationIsInTheTable: what is served is what the tests above ask for, and each has declared its verb.
func TestEveryOperationIsInTheTable(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	require.Empty(t, s.door.undeclared(), "these operations declare no verb, so they are refused to everybody: use router.operation")
	cases := map[string]operationCase{}
	for _, c := range operationCases {
		cases[c.id] = c
	}
	seen := map[string]bool{}
	for pattern, r := range s.door.routes {
		require.Contains(t, cases, r.operation, "%s: who may do this? add it to operationCases", pattern)
		require.Equal(t, cases[r.operation].verb, r.verb, pattern)
		require.False(t, seen[r.operation], "two operations are called %s", r.operation)
		seen[r.operation] = true
	}
	require.Len(t, seen, len(cases))

	got := s.ask("GET", "/openapi.json", "", "")
	require.Equal(t, 200, got.status)
	var description struct {
		Paths map[string]map[string]struct {
			OperationID string                `json:"operationId"`
			Security    []map[string][]string `json:"security"`
		} `json:"paths"`
	}
	require.NoError(t, json.Unmarshal([]byte(got.body), &description))
	for path, methods := range description.Paths {
		for method, o := range methods {
			require.Equal(t, o.OperationID, s.door.routes[strings.ToUpper(method)+" "+path].operation)
			require.Equal(t, []map[string][]string{{"bearer": {}}}, o.Security)
		}
	}
}

// TestUndeclaredOperationIsRefused to everybody, also where nobody is asked who they are.
func TestUndeclaredOperationIsRefused(t *testing.T) {
	for _, cfg := range []Access{{}, {Insecure: true}} {
		s := secure(t, newStore(t), cfg)
		s.door.HandleFunc("POST /v1/new", func(http.ResponseWriter, *http.Request) { t.Error("it was called") })
		_, admin := s.token(access.Admin)
		got := s.ask("POST", "/v1/new", admin, "")
		require.Equal(t, 403, got.status)
		require.Contains(t, got.problem.Detail, "declares no permission")
		require.Equal(t, []string{"POST /v1/new"}, s.door.undeclared())
	}
}

// TestWhatIsOpen: answers that say nothing of what is stored, and nothing else.
func TestWhatIsOpen(t *testing.T) {
	s := secure(t, newStore(t), Access{})
	for request, want := range map[string]int{
		"GET /openapi.json": 200, "GET /openapi.yaml": 200, "GET /nothing": 404, "PUT /v1/objects/widgets": 405, "GET /v1/../v1/tokens": 404,
		"GET /v1/objects/widgets": 401, "GET /v1/watch/widgets": 401, "POST /v1/batch": 401, "GET /v1/kinds": 401, "HEAD /v1/objects/widgets/x": 401, "POST /v1/objects/widgets": 401, "GET /v1/tokens": 401, "GET /v1/self": 401,
		"DELETE /v1/tokens/x": 401, "POST /v1/objects/widgets/x/retry": 401,
	} {
		method, path, _ := strings.Cut(request, " ")
		require.Equal(t, want, s.ask(method, path, "", "").status, request)
	}
}

// TestManyAskAtOnce is for the race detector.
func TestManyAskAtOnce(t *testing.T) {
	s := secure(t, newStore(t), Access{Rate: 1000, Burst: 1000})
	_, editor := s.token(access.Editor)
	_, viewer := s.token(access.Viewer)
	var asking sync.WaitGroup
	for i := range 8 {
		asking.Go(func() {
			for j := range 10 {
				name := fmt.Sprintf("w-%d-%d", i, j)
				require.Equal(t, 200, s.ask("GET", "/v1/objects/widgets", viewer, "").status)
				require.Equal(t, 201, s.ask("PUT", "/v1/objects/widgets/"+name, editor, `{"spec":{}}`).status)
				require.Equal(t, 403, s.ask("DELETE", "/v1/objects/widgets/"+name, viewer, "").status)
				s.ask("GET", "/v1/objects/widgets", "ek_wrong", "")
				s.advance(time.Second)
			}
		})
	}
	asking.Wait()
	lines := s.entries()
	require.Len(t, lines, 8*10*3)
}
