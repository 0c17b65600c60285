package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// wild is a request that may be nonsense.
type wild struct {
	method, target, ifMatch, contentType string
	body                                 []byte // with $uid for the uid of the object that is there
}

const (
	wildKind   = "/v1/objects/widgets"
	wildObject = wildKind + "/blue"
	wildStatus = wildObject + "/status"
)

// wildSeeds are what the wild requests are made of.
var wildSeeds = struct {
	create, put, ifMatch, merge, status, list, paths, methods, batch, kind []string
}{
	create: []string{
		`{"name":"red","labels":{"a":"1"},"spec":{"size":1}}`, `{"name":"blue","spec":{}}`, `{"name":"","spec":null}`, `[]`, `null`, ``, `{`,
		`{"name":"red","name":"pink","spec":{"a":1,"a":2}}`, `{"Name":"red","SPEC":{}}`, "{\"name\":\"red\",\"spec\":{\"n\":\"\\u0000\\ud800\"}}",
		"{\"name\":\"red\",\"spec\":{\"n\":\"\xff\"}}", "{\"name\":\"red\",\"labels\":{\"a\":\"\\u0000\"},\"spec\":{}}", `{"name":"red","spec":{},"more":1}`,
	},
	put: []string{
		`{"labels":{"a.b/c":""},"spec":{"size":1}}`, `{"spec":{"n":1e999,"m":-0,"o":9007199254740993}}`, `{"labels":{"a":"1,2"},"spec":{}}`,
		`{"labels":{"":"x"},"spec":{}}`, `{"labels":null,"spec":{}}`, `{"labels":[],"spec":[]}`, `{"spec":"{"}`, `{"spec":{}}{}`, "\ufeff{}", ` {"spec" : {"<>&":"\u2028"}}`,
	},
	ifMatch: []string{``, `"1"`, `"2"`, `1`, `*`, `W/"1"`, `"-1"`, `"1","2"`, `"`, `""`, `"+1"`, `"99999999999999999999"`, "\x00"},
	merge: []string{
		`{"spec":{"size":null,"deep":{"a":{"b":1}}}}`, `{"labels":{"a":null,"b":"2"}}`, `{}`, `{"spec":[]}`, `{"spec":null}`, `{"labels":null}`, `{"labels":7}`,
		`{"labels":{"a":1}}`, `{"labels":{"a b":"1"}}`, `{"spec":{"a":null,"a":{}}}`, `null`, `7`, `{"labels":{"a":{"b":null}}}`,
	},
	status: []string{
		`{"uid":"$uid","fence":3,"status":{"done":1},"reconciliation":{"state":"Ready","observedGeneration":1}}`,
		`{"uid":"$uid","fence":18446744073709551615}`, `{"uid":"$uid","fence":-1}`, `{"uid":"$uid","fence":1.5}`, `{"uid":"$uid","fence":9223372036854775807}`,
		`{"uid":"$uid","fence":1,"addFinalizers":["x","x",""],"removeFinalizers":null}`, `{"uid":"$uid","fence":1,"addFinalizers":["\u0000\ud800"]}`,
		`{"uid":"$uid","fence":1,"revision":-1}`, `{"uid":"$uid","fence":1,"status":[]}`, `{"uid":"$uid","fence":1,"status":null,"reconciliation":null}`,
		`{"uid":"$uid","fence":1,"reconciliation":{"nextAttempt":"9999-12-31T23:59:59.999999999-23:59","lastAttempt":"0000-01-01T00:00:00+23:59"}}`,
		`{"uid":"$uid","fence":1,"reconciliation":{"state":"Nonsense","failures":-1,"fence":7,"lastError":"\ud800","observedGeneration":-9}}`,
		`{"uid":"$uid","fence":1,"reconciliation":{"nextAttempt":"soon"}}`, `{"uid":"other","fence":1}`, `{"fence":1}`, `{"uid":"$uid"}`, ``,
	},
	list: []string{
		`limit=2`, `limit=0`, `limit=x`, `limit=-1&limit=2`, `cursor=Ymx1ZQ`, `cursor=!`, `cursor=AAAA`, `cursor=`, `labels=a=1,b=2`, `labels=a=1,a=1`, `labels=a`,
		`state=Ready`, `state=x`, `sort=-created&limit=1`, `sort=changed`, `sort=x`, `fields=spec.size=1`, `fields=spec.deep.a={}`, `fields=status.x!=1,spec.n=1`, `fields=spec.`, `fields==`,
		`version=*`, `version=v1`, `version=%00`, `version=`, `labels==`, `labels=a=%00`, `labels=a=%ff`, `unsettled=0s`, `unsettled=-1s`, `unsettled=1h1ms`, `unsettled=9223372036854775807ns`, `unsettled=2562047h`, `unsettled=x`, `%zz`, `a;b`, `labels=a=1&unsettled=1s&limit=500&cursor=Ymx1ZQ`,
	},
	paths: []string{
		`/`, `/v1/objects`, wildKind, wildObject, wildStatus, wildObject + `/retry`, wildObject + `/pause`, wildObject + `/resume`, `/v1/objects//blue`,
		`/v1/objects/widgets/`, `/v1/objects/widgets/../widgets/blue`, `/v1/objects/widgets/a%2Fb`, `/v1/objects/widgets/%00`, `/v1/objects/wid%ffgets/blue`,
		`/v1/objects/Widgets/blue`, `/v1/objects/widgets/blue/`, `/v1/batch`, `/v1/kinds`, `/v1/kinds/gadgets`, `/v1/kinds/X`, `/v1/watch/widgets`, `/v1/watch/W?cursor=x`, `/openapi.json`, `/openapi.yaml`, `/openapi-3.0.json`, `*`, `/%2e%2e/`, `/v1/objects/widgets/{name}`,
	},
	batch: []string{
		`{"items":[{"kind":"widgets","name":"blue","delete":true},{"kind":"gadgets","name":"one","spec":{}}]}`, `{"items":[]}`, `{"items":null}`, `{}`,
		`{"items":[{"kind":"widgets","name":"blue","spec":{"a":1},"revision":1}]}`, `{"items":[null]}`, `{"items":[{}]}`, `{"items":[[]]}`,
		`{"items":[{"kind":"a","name":"b","spec":{}},{"kind":"a","name":"b","spec":{}}]}`, `{"items":[{"kind":"a","name":"b","spec":{},"revision":-1}]}`,
		`{"items":[{"kind":"a","name":"b","spec":{},"version":"v1"}]}`, `{"items":[{"kind":"a","name":"b","delete":true,"version":"*"}]}`,
	},
	kind: []string{
		`{"schema":{"type":"object"}}`, `{"schema":{"type":"object","properties":{"a":{"$ref":"#"}}}}`, `{"schema":null}`, `{}`, `{"schema":{"type":"object","$ref":"file:///etc/passwd"}}`,
		`{"schema":{"type":"object","properties":{"size":{"type":"string","pattern":"("}}}}`, `{"schema":{"type":"object","required":["\u0000"]}}`,
		`{"schema":{"type":"object"},"version":"v2","versions":[{"name":"v1","schema":{"type":"object"}}],"conversion":{"url":"http://127.0.0.1:1/"}}`,
		`{"schema":{"type":"object"},"version":"v2"}`, `{"schema":{"type":"object"},"version":"","versions":[],"conversion":null}`, `{"schema":{"type":"object"},"versions":[null]}`,
		`{"schema":{"type":"object"},"version":"v1","conversion":{"url":"https://[::1]:x/%zz","caBundle":"\u0000"}}`, `{"schema":{"type":"object"},"version":"v\u0000"}`,
		`{"schema":{"type":"object"},"version":"v1","versions":[{"name":"v1","schema":{"type":"object"}}],"conversion":{"url":"https://h"}}`,
	},
	methods: []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "get", "X"},
}

// zoo is an API to send wild requests to. In it, before each request, is widgets/blue.
type zoo struct {
	a     *API
	blue  apiclient.Raw
	dirty bool // something was written since blue was made
}

func newZoo(t testing.TB, store string) *zoo {
	a, err := Open(context.Background(), Config{Store: store, Notify: func(context.Context, string, string, string) error { return nil }, Access: Access{Insecure: true}})
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return &zoo{a: a, dirty: true}
}

// reset leaves nothing but blue.
func (z *zoo) reset(t testing.TB) {
	if !z.dirty {
		return
	}
	for _, table := range []string{"objects", "labels", "floors", "kinds", "changes", "events"} {
		_, err := z.a.store.write.ExecContext(context.Background(), "DELETE FROM "+table)
		require.NoError(t, err)
	}
	var err error
	z.blue, err = z.a.store.create(context.Background(), objects.Key{Kind: "widgets", Name: "blue"}, objects.Wanted{
		Labels: map[string]string{"a": "1", "b": "2"}, Spec: []byte(`{"size":1,"deep":{"a":{}}}`),
	}, requestKey{})
	require.NoError(t, err)
	z.dirty = false
}

// send sends a request and checks that the answer is one: what was asked for, or a problem that says what is wrong.
func (z *zoo) send(t testing.TB, r wild) {
	z.reset(t)
	body := bytes.ReplaceAll(r.body, []byte("$uid"), []byte(z.blue.UID))
	req, err := http.NewRequest(r.method, "http://host"+r.target, bytes.NewReader(body))
	if err != nil {
		return // it is not a request of HTTP
	}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.ifMatch != "" {
		req.Header.Set("If-Match", r.ifMatch)
	}
	rec := httptest.NewRecorder()
	z.a.Handler().ServeHTTP(rec, req)
	reads, ofKind := req.Method == http.MethodGet || req.Method == http.MethodHead, strings.Count(req.URL.Path, "/") == 3
	z.dirty = z.dirty || !reads && rec.Code < 300
	shown := fmt.Sprintf("%s %q If-Match %q: %q\n%d %s", r.method, r.target, r.ifMatch, body, rec.Code, rec.Body)
	switch {
	case rec.Code == http.StatusServiceUnavailable && strings.HasPrefix(req.URL.Path, "/v1/watch/"): // nothing feeds it here
	case rec.Code >= 400:
		z.problem(t, rec, shown)
	case strings.HasPrefix(req.URL.Path, "/openapi"):
	case strings.HasPrefix(req.URL.Path, "/v1/kinds"), strings.HasPrefix(req.URL.Path, "/v1/batch"):
		require.True(t, rec.Code == http.StatusNoContent || json.Valid(rec.Body.Bytes()), shown)
	case rec.Code == http.StatusNoContent:
		require.Zero(t, rec.Body.Len(), shown)
	case reads && ofKind:
		z.page(t, req.URL.Query(), rec.Body.Bytes(), shown)
	default:
		takes := req.Method == http.MethodPut || req.Method == http.MethodPost && ofKind
		z.object(t, takes, body, rec.Body.Bytes(), shown)
	}
}

// problem checks a refusal.
func (z *zoo) problem(t testing.TB, rec *httptest.ResponseRecorder, shown string) {
	require.Less(t, rec.Code, 500, shown)
	require.Equal(t, "application/problem+json", rec.Header().Get("Content-Type"), shown)
	var p apiclient.Problem
	d := json.NewDecoder(rec.Body)
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&p), shown)
	require.Equal(t, rec.Code, p.Status, shown)
	if p.Is(apiclient.ErrInvalid) {
		require.Equal(t, "/problems/invalid", p.Type, shown)
		require.NotEmpty(t, p.Errors, shown)
	} else {
		require.Contains(t, []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict}, p.Status, shown)
	}
	for _, e := range p.Errors {
		require.NotEmpty(t, e.Location, shown)
		require.NotEmpty(t, e.Message, shown)
	}
}

// object checks that the object of an answer is the one that was stored, with the spec that was sent if the request takes
// one.
func (z *zoo) object(t testing.TB, takes bool, sent, answer []byte, shown string) {
	var o apiclient.Raw
	require.NoError(t, json.Unmarshal(answer, &o), shown)
	require.NoError(t, objects.CheckKey(objects.KeyOf(&o), "name"), shown)
	stored, err := z.a.store.get(context.Background(), objects.KeyOf(&o))
	require.NoError(t, err, shown)
	data, err := json.Marshal(stored)
	require.NoError(t, err, shown)
	require.True(t, apiclient.SameJSON(data, answer), "%s\nstored is %s", shown, data)
	require.NoError(t, objects.CheckDocument("spec", o.Spec), shown)
	require.NoError(t, objects.CheckDocument("status", o.Status), shown)
	require.NoError(t, objects.CheckLabels("labels", o.Labels), shown)
	if takes {
		var body struct{ Spec json.RawMessage }
		require.NoError(t, json.Unmarshal(sent, &body), shown)
		require.True(t, apiclient.SameJSON(body.Spec, o.Spec), shown)
	}
}

// page checks that a list has what it was asked for.
func (z *zoo) page(t testing.TB, q url.Values, answer []byte, shown string) {
	var page struct {
		Items []apiclient.Raw
		Next  string
	}
	require.NoError(t, json.Unmarshal(answer, &page), shown)
	sel, err := objects.ParseSelection(objects.ListQuery{
		Limit: q.Get("limit"), Cursor: q.Get("cursor"), Labels: q.Get("labels"), State: q.Get("state"), Fields: q.Get("fields"),
		Unsettled: q.Get("unsettled"), Sort: q.Get("sort"),
	})
	require.NoError(t, err, shown)
	require.LessOrEqual(t, len(page.Items), sel.Limit, shown)
	for i := range page.Items {
		o := &page.Items[i]
		require.True(t, sel.Selects(o), shown)
		at := sel.Sort.Of(o)
		if sel.After != nil {
			require.Positive(t, sel.Sort.Compare(at, *sel.After), shown)
		}
		sel.After = &at
	}
}

func FuzzCreate(f *testing.F) {
	z := newZoo(f, "sqlite::memory:")
	for _, body := range wildSeeds.create {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		z.send(t, wild{method: "POST", target: wildKind, contentType: "application/json", body: body})
	})
}

func FuzzPut(f *testing.F) {
	z := newZoo(f, "sqlite::memory:")
	for i, body := range wildSeeds.put {
		f.Add([]byte(body), wildSeeds.ifMatch[i%3])
	}
	for _, ifMatch := range wildSeeds.ifMatch {
		f.Add([]byte(`{"spec":{}}`), ifMatch)
	}
	f.Fuzz(func(t *testing.T, body []byte, ifMatch string) {
		z.send(t, wild{method: "PUT", target: wildObject, contentType: "application/json", ifMatch: ifMatch, body: body})
	})
}

func FuzzPatch(f *testing.F) {
	z := newZoo(f, "sqlite::memory:")
	for i, body := range wildSeeds.merge {
		f.Add([]byte(body), wildSeeds.ifMatch[i%3])
	}
	f.Fuzz(func(t *testing.T, body []byte, ifMatch string) {
		z.send(t, wild{method: "PATCH", target: wildObject, contentType: "application/merge-patch+json", ifMatch: ifMatch, body: body})
	})
}

func FuzzPatchStatus(f *testing.F) {
	z := newZoo(f, "sqlite::memory:")
	for _, body := range wildSeeds.status {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		z.send(t, wild{method: "PATCH", target: wildStatus, contentType: "application/json", body: body})
	})
}

func FuzzBatch(f *testing.F) {
	z := newZoo(f, "sqlite::memory:")
	for _, body := range wildSeeds.batch {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		z.send(t, wild{method: "POST", target: "/v1/batch", contentType: "application/json", body: body})
	})
}

// FuzzKind gives a kind a schema, and then writes an object of it.
func FuzzKind(f *testing.F) {
	z := newZoo(f, "sqlite::memory:")
	for _, body := range wildSeeds.kind {
		f.Add([]byte(body), []byte(`{"spec":{"size":1}}`))
	}
	f.Fuzz(func(t *testing.T, schema, object []byte) {
		z.send(t, wild{method: "PUT", target: "/v1/kinds/gadgets", contentType: "application/json", body: schema})
		rec := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodPut, "/v1/objects/gadgets/one", bytes.NewReader(object))
		z.a.Handler().ServeHTTP(rec, req)
		require.Less(t, rec.Code, 500, "%q takes %q: %s", schema, object, rec.Body)
		z.dirty = true
		k, err := z.a.store.kind(t.Context(), "gadgets")
		if err != nil {
			return // it was refused
		}
		again, isNew, err := z.a.store.putKind(t.Context(), "gadgets", k.definition())
		require.NoError(t, err)
		require.False(t, isNew)
		require.Equal(t, k, again, "what was said is what is stored")
	})
}

// FuzzList takes a whole query, and its values one by one.
func FuzzList(f *testing.F) {
	z := newZoo(f, "sqlite::memory:")
	for _, query := range wildSeeds.list {
		values, _ := url.ParseQuery(query)
		f.Add(query, values.Get("cursor"), values.Get("labels"), values.Get("unsettled"))
	}
	f.Fuzz(func(t *testing.T, query, cursor, labels, unsettled string) {
		z.send(t, wild{method: "GET", target: wildKind + "?" + query})
		q := url.Values{"cursor": {cursor}, "labels": {labels}, "unsettled": {unsettled}}
		z.send(t, wild{method: "GET", target: wildKind + "?" + q.Encode()})
	})
}

// FuzzPath takes a method and what stands behind the host, with a body of any type.
func FuzzPath(f *testing.F) {
	z := newZoo(f, "sqlite::memory:")
	for i, path := range wildSeeds.paths {
		for _, method := range wildSeeds.methods {
			f.Add(method, path, []string{"", "application/json", "text/plain", ";", "application/json; charset=x"}[i%5], []byte(`{"spec":{}}`))
		}
	}
	f.Fuzz(func(t *testing.T, method, target, contentType string, body []byte) {
		z.send(t, wild{method: method, target: target, contentType: contentType, body: body})
	})
}

// TestPostgresTakesWhatIsAccepted sends wild requests to PostgreSQL, which refuses to store some texts that SQLite takes.
func TestPostgresTakesWhatIsAccepted(t *testing.T) {
	z := newZoo(t, pgtest.Database(t))
	var all []wild
	add := func(method, target string, bodies []string) {
		for _, body := range bodies {
			all = append(all, wild{method: method, target: target, contentType: "application/json", body: []byte(body)})
		}
	}
	add("POST", wildKind, wildSeeds.create)
	add("PUT", wildObject, wildSeeds.put)
	add("PATCH", wildObject, wildSeeds.merge)
	add("PATCH", wildStatus, wildSeeds.status)
	add("POST", "/v1/batch", wildSeeds.batch)
	add("PUT", "/v1/kinds/gadgets", wildSeeds.kind)
	for _, query := range wildSeeds.list {
		all = append(all, wild{method: "GET", target: wildKind + "?" + query})
	}
	for _, path := range wildSeeds.paths {
		add("GET", path, []string{""})
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, r := range all {
		z.send(t, r)
		for range 10 {
			garbled := r
			garbled.body, garbled.target = garble(rng, r.body), r.target+url.QueryEscape(string(garble(rng, nil)))
			if rng.IntN(2) == 0 {
				garbled.target = r.target
			}
			z.send(t, garbled)
		}
	}
}

// garble changes a byte or two.
func garble(rng *rand.Rand, data []byte) []byte {
	data = bytes.Clone(data)
	for range 1 + rng.IntN(2) {
		at, odd := rng.IntN(len(data)+1), []string{"\x00", "\xff", `\u0000`, `"`, "{", "}", ",", "0", "é", "-", "null"}
		data = append(data[:at:at], append([]byte(odd[rng.IntN(len(odd))]), data[at:]...)...)
		if cut := rng.IntN(len(data)); rng.IntN(2) == 0 {
			data = append(data[:cut:cut], data[cut+1:]...)
		}
	}
	return data
}
