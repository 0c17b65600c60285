package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/controllers/access"
)

// TestEditorsSendBackWhatTheyWereShown: it changes no secret, in none of the ways to write an object.
func TestEditorsSendBackWhatTheyWereShown(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	v.want(201, "POST", listPath, v.editor, `{"name":"blue","spec":{"host":"x","password":"hunter2","map":{"k":"v"},"users":[{"name":"ann","password":"hunter2-a"},{"name":"bob","password":"hunter2-b"}]}}`)
	revision := func() float64 {
		var o struct{ Revision float64 }
		decode(t, v.want(200, "GET", listPath+"/blue", v.viewer, "").body, &o)
		return o.Revision
	}
	var shown struct{ Spec any }
	before := revision()
	decode(t, v.want(200, "GET", listPath+"/blue", v.editor, "").body, &shown)
	same := encode(t, doc{"spec": shown.Spec})
	require.Contains(t, same, `"map":"REDACTED"`)
	v.want(200, "PUT", listPath+"/blue", v.editor, same)
	v.want(200, "PATCH", listPath+"/blue", v.editor, same)
	v.want(200, "PUT", listPath+"/blue", v.admin, same)
	v.want(200, "POST", "/v1/batch", v.editor, encode(t, doc{"items": []doc{{"kind": "widgets", "name": "blue", "spec": shown.Spec}}}))
	require.InDelta(t, before, revision(), 0, "nothing has changed, so nothing was written")

	v.want(200, "PUT", listPath+"/blue", v.editor, `{"spec":{"host":"y","password":"REDACTED","users":[{"name":"bob","password":"REDACTED"}]}}`)
	require.Equal(t, "map[host:y password:hunter2 users:[map[name:bob password:hunter2-b]]]", v.spec("blue"))
	v.want(200, "PATCH", listPath+"/blue", v.editor, `{"spec":{"host":"z","users":[{"name":"cid","password":"hunter2-c"},{"name":"bob","password":"REDACTED"}]}}`)
	require.Equal(t, "map[host:z password:hunter2 users:[map[name:cid password:hunter2-c] map[name:bob password:hunter2-b]]]", v.spec("blue"))
	v.want(200, "PATCH", listPath+"/blue", v.editor, `{"labels":{"a":"b"}}`)
	require.Contains(t, v.spec("blue"), "hunter2-c")

	for _, c := range []struct{ method, path, body, field string }{
		{"POST", "", `{"name":"red","spec":{"password":"REDACTED"}}`, "body.spec.password"},
		{"PUT", "/red", `{"spec":{"password":"REDACTED"}}`, "body.spec.password"},
		{"PATCH", "/blue", `{"spec":{"map":"REDACTED"}}`, "body.spec.map"},
		{"PATCH", "/blue", `{"spec":{"users":[{"name":"eve","password":"REDACTED"}]}}`, "body.spec.users.0.password"},
	} {
		got := v.want(422, c.method, listPath+c.path, v.editor, c.body)
		require.Equal(t, c.field, got.problem.Errors[0].Location)
		require.Contains(t, got.body, "there is no earlier value")
	}
}

// TestEditorsReplaceSecretsWhole: a patch of what they are not shown would tell them what is in it.
func TestEditorsReplaceSecretsWhole(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	v.want(201, "POST", listPath, v.admin, `{"name":"blue","spec":{"map":{"old":"hunter2","more":"x"}}}`)
	v.want(200, "PATCH", listPath+"/blue", v.admin, `{"spec":{"map":{"more":null,"new":"y"}}}`)
	require.Equal(t, "map[map:map[new:y old:hunter2]]", v.spec("blue"))
	v.want(200, "PATCH", listPath+"/blue", v.editor, `{"spec":{"map":{"mine":"z"}}}`)
	require.Equal(t, "map[map:map[mine:z]]", v.spec("blue"))
}

// TestEditorsCannotTryOutSecrets: of a guess that is refused, nobody learns whether it was right, or they would have as many as
// they want. (A guess that is taken replaces the secret, unless it was right.)
func TestEditorsCannotTryOutSecrets(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	v.want(201, "POST", listPath, v.admin, `{"name":"blue","spec":{"pin":"1234","password":"hunter2","host":"x"}}`)
	refused := func(guess string) string {
		got := v.want(422, "PUT", listPath+"/blue", v.editor, `{"spec":{"pin":"`+guess+`","password":"REDACTED","host":"x"}}`)
		require.Equal(t, "body.spec.pin", got.problem.Errors[0].Location)
		patched := v.want(422, "PATCH", listPath+"/blue", v.editor, `{"spec":{"pin":"`+guess+`"}}`)
		require.Equal(t, got.body, patched.body)
		return got.body
	}
	require.Equal(t, refused("0000"), refused("1234"), "what cannot be changed")
	v.want(200, "PUT", listPath+"/blue", v.editor, `{"spec":{"pin":"REDACTED","password":"REDACTED","host":"y"}}`)
	v.want(200, "PUT", listPath+"/blue", v.admin, `{"spec":{"pin":"1234","password":"hunter2","host":"z"}}`)
	v.want(422, "PUT", listPath+"/blue", v.admin, `{"spec":{"pin":"0000","password":"hunter2","host":"z"}}`)

	stricter := strings.Replace(secretSchema, `"host":{"type":"string"}`, `"host":{"type":"integer"}`, 1)
	v.want(200, "PUT", "/v1/kinds/widgets", v.admin, `{"schema":`+stricter+`}`)
	refused = func(guess string) string {
		return v.want(422, "PUT", listPath+"/blue", v.editor, `{"spec":{"pin":"REDACTED","password":"`+guess+`","host":"z"}}`).body
	}
	require.Equal(t, refused("wrong"), refused("hunter2"), "what is wrong by a schema that came later")
	v.want(200, "PUT", listPath+"/blue", v.editor, `{"labels":{"a":"b"},"spec":{"pin":"REDACTED","password":"REDACTED","host":"z"}}`)
}

// TestErrorsQuoteNoSecrets: neither to who sent them, nor to who did not, nor to the log.
func TestErrorsQuoteNoSecrets(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	v.want(201, "POST", listPath, v.admin, `{"name":"blue","spec":{"password":"hunter2","map":{"hunter2":"hunter2"},"pin":"hunter2","users":[{"password":"hunter2"}]}}`)
	for _, request := range []string{
		`PUT /blue {"spec":{"password":{"hunter2":"hunter2"}}}`,
		`PUT /blue {"spec":{"password":"hunter2","map":{"hunter2":7}}}`,
		`PUT /blue {"spec":{"map":{"hunter2":{"hunter2":"hunter2"}}}}`,
		`PATCH /blue {"spec":{"pin":{"hunter2":null}}}`,
		`PATCH /blue {"spec":{"password":7}}`,
		`PATCH /blue {"spec":{"users":"hunter2"}}`,
		`PATCH /blue {"spec":["hunter2"]}`,
		`PUT /blue {"spec":"hunter2"}`,
		`POST  {"name":"red","spec":{"map":{"hunter2":{}}}}`,
		`POST  {"name":"blue","spec":{"password":"hunter2"}}`,
		`POST  {"name":"red","spec":{"password":"hunter2"`,
		`PUT /blue {"spec":{"password":"hunter2"},"labels":{"a":"hunter2"}}x`,
	} {
		parts := strings.SplitN(request, " ", 3)
		for _, token := range []string{v.editor, v.admin} {
			got := v.ask(parts[0], listPath+parts[1], token, parts[2])
			require.GreaterOrEqual(t, got.status, 400, "%s: %s", request, got.body)
			require.NotContains(t, got.body, hunter2, request)
			if parts[0] == "PUT" {
				got = v.ask("POST", "/v1/batch", token, fmt.Sprintf(`{"items":[{"kind":"widgets","name":"blue",%s]}`, strings.TrimPrefix(parts[2], "{")))
				require.GreaterOrEqual(t, got.status, 400, "%s: %s", request, got.body)
				require.NotContains(t, got.body, hunter2, request)
			}
		}
	}
	for _, query := range []string{"spec.password=hunter2", "password=hunter2", "spec.map.x!=hunter2"} {
		require.NotContains(t, v.want(422, "GET", listPath+"?fields="+url.QueryEscape(query), v.admin, "").body, hunter2)
	}
	require.NotContains(t, v.logs.String()+v.audit.String(), hunter2)
}

// TestReportedErrorsQuoteNoSecrets: what a controller reports is shown to everybody, as the last error and in the events.
func TestReportedErrorsQuoteNoSecrets(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	v.want(201, "POST", listPath, v.admin, `{"name":"blue","spec":{"host":"x","password":"hunter2","pin":123456,"map":{"a":"hunter2-longer","b":"x"}}}`)
	v.want(200, "PATCH", listPath+"/blue/status", v.controller,
		`{"uid":"`+v.uid("blue")+`","fence":1,"reconciliation":{"state":"Retrying","observedGeneration":1,"lastError":"dial x: user:hunter2@x, hunter2-longer, pin 123456"}}`)
	for _, path := range []string{"/blue", "/blue/events", ""} {
		got := v.want(200, "GET", listPath+path, v.viewer, "").body
		require.Contains(t, got, "dial x: user:REDACTED@x, REDACTED, pin REDACTED")
		require.NotContains(t, got, hunter2)
	}
	require.NotContains(t, v.stored(), hunter2)
	v.want(200, "PATCH", listPath+"/blue/status", v.controller,
		`{"uid":"`+v.uid("blue")+`","fence":1,"note":{"reason":"Overdue","message":"it hangs in hunter2"}}`)
	require.Contains(t, v.want(200, "GET", listPath+"/blue/events", v.viewer, "").body, "it hangs in REDACTED")
	v.want(200, "PUT", listPath+"/blue", v.admin, `{"spec":{"password":"another","pin":123456}}`)
	events := v.want(200, "GET", listPath+"/blue/events", v.viewer, "").body
	v.want(200, "PATCH", listPath+"/blue/status", v.controller, `{"uid":"`+v.uid("blue")+`","fence":1}`)
	require.Equal(t, events, v.want(200, "GET", listPath+"/blue/events", v.viewer, "").body, "a claim reports no error")
	v.want(200, "PATCH", listPath+"/blue/status", v.controller,
		`{"uid":"`+v.uid("blue")+`","fence":1,"reconciliation":{"state":"Retrying","observedGeneration":1,"lastError":"hunter2 is refused"}}`)
	for _, path := range []string{"/blue", "/blue/events"} {
		require.NotContains(t, v.want(200, "GET", listPath+path, v.admin, "").body, hunter2, "it was the secret of an earlier generation")
	}
}

// TestFieldsMayBeCalledLikePlacesOfItems, and numbers that are none.
func TestFieldsMayBeCalledLikePlacesOfItems(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	v.want(201, "POST", listPath, v.admin, `{"name":"blue","spec":{}}`)
	for _, name := range []string{"-1", "0", "99999999999999999999", "-0", "1e3"} {
		v.want(200, "PUT", listPath+"/blue", v.admin, `{"spec":{"map":{"`+name+`":"hunter2"}}}`)
	}
	v.want(200, "PUT", listPath+"/blue", v.admin, `{"spec":{"map":{"-1":"hunter2"}}}`)
	require.Contains(t, v.want(200, "GET", listPath+"/blue", v.admin, "").body, hunter2)
	require.NotContains(t, v.want(200, "GET", listPath, v.viewer, "").body, hunter2)
	v.want(422, "GET", listPath+"?fields=spec.map.-1=x", v.viewer, "")
	v.want(200, "GET", listPath+"?fields=spec.users.-1.name=x", v.viewer, "")
	require.GreaterOrEqual(t, v.want(422, "PUT", listPath+"/blue", v.editor, `{"spec":{"-1":1}}`).status, 400)
}

// TestKindIsHeldWhileSecretsAreWritten: a kind that goes takes with it what is a secret, so nothing is written by it afterwards.
func TestKindIsHeldWhileSecretsAreWritten(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	v.want(201, "POST", listPath, v.admin, `{"name":"blue","spec":{}}`)
	v.want(204, "DELETE", listPath+"/blue", v.admin, "")
	known := (*v.store.vault.schemas.Load())["widgets"]
	require.NotNil(t, known)
	require.Equal(t, []*knownKind{known}, held([]*ask{{known: known}, {known: known}, {}}))
	v.want(204, "DELETE", "/v1/kinds/widgets", v.admin, "")
	err := v.store.transact(t.Context(), func(tx *transaction) error { return tx.hold(t.Context(), known) })
	require.ErrorIs(t, err, errReplan)
}

// TestSecretsSelectNothing: not by themselves, not by what they are in, and not by what is in them; for nobody.
func TestSecretsSelectNothing(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	v.want(201, "POST", listPath, v.admin, `{"name":"blue","spec":{"password":"hunter2","host":"x","users":[{"name":"ann","password":"hunter2"}]}}`)
	for field, status := range map[string]int{
		`spec.password=hunter2`: 422, `spec.password!=hunter2`: 422, `spec.pin=`: 422, `spec.map={}`: 422, `spec.map.deep.er=1`: 422, `spec.users=[]`: 422,
		`spec.users.0={}`: 422, `spec.users.0.password=hunter2`: 422, `spec.host=x,spec.password=hunter2`: 422,
		`spec.host=x`: 200, `spec.users.0.name=ann`: 200, `status.password=hunter2`: 200, `spec.unknown=1`: 200,
	} {
		for _, token := range []string{v.viewer, v.admin} {
			got := v.want(status, "GET", listPath+"?fields="+url.QueryEscape(field), token, "")
			if status == 422 {
				require.Equal(t, "query.fields", got.problem.Errors[0].Location)
				require.Contains(t, got.problem.Errors[0].Message, "x-sensitive")
			}
		}
	}
}

// TestRemadeKindIsNotTheOneBefore: its revision is 1 again, and another API must not go on without its secrets.
func TestRemadeKindIsNotTheOneBefore(t *testing.T) {
	store := newStore(t)
	v, other := withSecrets(t, store, "one"), withSecrets(t, store, "one")
	const gadgets, one = "/v1/kinds/gadgets", "/v1/objects/gadgets/one"
	v.want(201, "PUT", gadgets, v.admin, `{"schema":{"type":"object","properties":{"password":{}}}}`)
	other.kinds.forget()
	other.want(200, "GET", "/v1/objects/gadgets", other.viewer, "") // which knows the schema now
	v.want(204, "DELETE", gadgets, v.admin, "")
	v.want(201, "PUT", gadgets, v.admin, `{"schema":{"type":"object","properties":{"password":{"x-sensitive":true}}}}`)
	other.kinds.forget() // a second later
	require.NotContains(t, other.want(201, "PUT", one, other.editor, `{"spec":{"password":"hunter2"}}`).body, hunter2)
	require.NotContains(t, v.stored(), hunter2)
}

// TestSchemaOfAnotherAPIHidesAtOnce: what another API has just been told is a secret is none to show, though this API has not
// heard of it.
func TestSchemaOfAnotherAPIHidesAtOnce(t *testing.T) {
	store := newStore(t)
	v, other := withSecrets(t, store, "one"), withSecrets(t, store, "one")
	v.want(201, "PUT", "/v1/kinds/gadgets", v.admin, `{"schema":`+secretSchema+`}`)
	v.want(201, "PUT", "/v1/objects/gadgets/one", v.admin, `{"spec":{"password":"hunter2"}}`)
	for _, path := range []string{"/one", "", "?sort=-created"} {
		other.hearsNothing("gadgets")
		require.Contains(t, other.want(200, "GET", "/v1/objects/gadgets"+path, other.viewer, "").body, `"password":"REDACTED"`)
	}
	other.hearsNothing("gadgets")
	other.want(422, "GET", "/v1/objects/gadgets?fields=spec.password=hunter2", other.viewer, "")
}

// hearsNothing leaves an API for a second with the schemas from before that of a kind.
func (v *vaulted) hearsNothing(kind string) {
	v.kinds.mu.Lock()
	defer v.kinds.mu.Unlock()
	without := maps.Clone(v.kinds.known)
	delete(without, kind)
	v.kinds.known, v.kinds.readAt = without, time.Now()
	v.store.vault.schemas.Store(&without)
}

// TestWildRequestsSeeNoSecrets: whatever editors send, nothing of what they are not shown comes back.
func TestWildRequestsSeeNoSecrets(t *testing.T) {
	v := withSecrets(t, "sqlite:"+filepath.Join(t.TempDir(), "evenkeel.db"), "one")
	bodies := slices.Concat(wildSeeds.create, wildSeeds.put, wildSeeds.merge, wildSeeds.status, wildSeeds.batch, []string{
		`{"spec":{"password":"REDACTED"}}`, `{"spec":{"map":{"x":1}}}`, `{"spec":{"users":[{"name":"ann","password":"REDACTED"},7]}}`, `{"spec":{"pin":{"deep":null}}}`,
		`{"name":"red","spec":{"password":"REDACTED","map":{"REDACTED":"REDACTED"}}}`, `{"spec":{"users":{"0":{"password":"REDACTED"}}}}`, `{"spec":{"more":"REDACTED"}}`,
	})
	succeeded := 0
	for range 1500 {
		v.ask("PUT", wildObject, v.admin, `{"spec":{"password":"hunter2","pin":"hunter2","map":{"hunter2":"hunter2"},"users":[{"name":"ann","password":"hunter2"}]}}`)
		path, body := pick(append([]string{wildKind + "?fields=spec.map.x=1"}, wildSeeds.paths...)), pick(bodies)
		if path == "*" {
			continue
		}
		if rand.N(2) == 0 {
			path = pick([]string{wildObject, wildKind, "/v1/batch", wildKind + "?" + pick(wildSeeds.list)})
		}
		method := pick([]string{"GET", "POST", "PUT", "PATCH", "DELETE"})
		if strings.HasPrefix(path, "/%2e") || strings.Contains(path, "%zz") {
			continue // httptest makes no request of it
		}
		got := v.ask(method, path, v.editor, body)
		require.NotContains(t, got.body, hunter2, "%s %s %s", method, path, body)
		if got.status < 300 && strings.Contains(got.body, "REDACTED") {
			succeeded++
		}
	}
	require.Greater(t, succeeded, 50)
	require.NotContains(t, v.logs.String()+v.audit.String(), hunter2)
}

func pick(of []string) string { return of[rand.N(len(of))] }

// TestControllersReadSecrets with the client that they have.
func TestControllersReadSecrets(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	_, limited := v.token(access.Controller, "widgets")
	v.want(201, "POST", listPath, v.editor, `{"name":"blue","spec":{"password":"hunter2"}}`)
	for token, want := range map[string]any{v.controller: hunter2, limited: hunter2, v.viewer: "REDACTED"} {
		c := v.client(token)
		o, err := c.Get(t.Context(), "blue")
		require.NoError(t, err)
		require.Equal(t, want, o.Spec["password"])
		for o, err := range c.Unsettled(t.Context(), 0) {
			require.NoError(t, err)
			require.Equal(t, want, o.Spec["password"])
		}
	}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}
