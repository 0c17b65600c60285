package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	compiler "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/controllers/internal/viewer"
)

// description is what the test reads of the served description.
type description struct {
	Paths map[string]map[string]*described
}

type described struct {
	OperationID  string
	path, method string
	Parameters   []struct {
		Name, In string
		Required bool
		Example  any
	}
	RequestBody struct {
		Content map[string]struct{ Example any }
	}
	Responses map[string]struct {
		Content map[string]struct{ Schema json.RawMessage }
	}
}

// TestExamplesOfTheDescriptionWork: each operation has one, as it is described it is accepted, and its answer is as described.
func TestExamplesOfTheDescriptionWork(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	running(t, a)
	require.Eventually(t, func() bool { return a.feed.open() == nil }, time.Minute, time.Millisecond)
	srv := httptest.NewServer(a.Handler())
	t.Cleanup(srv.Close)
	operations, schemas := describedOperations(t, fetch(t, srv, "/openapi.json"))
	_, _, err := a.store.putKind(t.Context(), "gadgets", definition{Schema: json.RawMessage(`{"type":"object"}`)})
	require.NoError(t, err)
	known := map[string]string{}
	for _, e := range examples {
		o := operations[e.operation]
		require.NotNil(t, o, e.operation)
		delete(operations, e.operation)
		target, header, body := o.request(t)
		status, answer := replay(t, srv, strings.ToUpper(o.method), target, header, body, known)
		as, ok := o.Responses[strconv.Itoa(status)]
		require.True(t, ok, "%s answers %d, which is not described: %s", e.operation, status, answer)
		if as.Content["application/json"].Schema != nil {
			at := "#/paths/" + strings.ReplaceAll(o.path, "/", "~1") + "/" + o.method + "/responses/" + strconv.Itoa(status) + "/content/application~1json/schema"
			checkAnswer(t, schemas, at, answer)
		}
	}
	require.Empty(t, slices.Collect(maps.Keys(operations)), "operations without an example")
}

// describedOperations reads a description, once as operations by their ids and once as a place to find schemas in.
func describedOperations(t *testing.T, data []byte) (map[string]*described, *compiler.Compiler) {
	t.Helper()
	var d description
	require.NoError(t, json.Unmarshal(data, &d))
	var whole any
	require.NoError(t, json.Unmarshal(data, &whole))
	c := compiler.NewCompiler()
	require.NoError(t, c.AddResource("https://evenkeel/openapi.json", whole))
	operations := map[string]*described{}
	for path, methods := range d.Paths {
		for method, o := range methods {
			o.path, o.method = path, method
			operations[o.OperationID] = o
		}
	}
	return operations, c
}

// request is the example of an operation.
func (o *described) request(t *testing.T) (target string, header http.Header, body []byte) {
	t.Helper()
	path, query, header := o.path, url.Values{}, http.Header{}
	for _, p := range o.Parameters {
		switch value := fmt.Sprint(p.Example); {
		case p.Example == nil:
			require.False(t, p.Required, "%s: %s has no example", o.OperationID, p.Name)
		case p.In == "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(value))
		case p.In == "query":
			query.Set(p.Name, value)
		default:
			header.Set(p.Name, value)
		}
	}
	for media, content := range o.RequestBody.Content {
		header.Set("Content-Type", media)
		var err error
		body, err = json.Marshal(content.Example)
		require.NoError(t, err)
	}
	return path + "?" + query.Encode(), header, body
}

// replay sends a request. known are the ids that stand in examples as $NAME.
func replay(t *testing.T, srv *httptest.Server, method, target string, header http.Header, body []byte, known map[string]string) (int, []byte) {
	t.Helper()
	for name, value := range known {
		target, body = strings.ReplaceAll(target, url.PathEscape(name), value), bytes.ReplaceAll(body, []byte(name), []byte(value))
	}
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+target, bytes.NewReader(body))
	require.NoError(t, err)
	req.Header = header
	resp, err := srv.Client().Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return resp.StatusCode, nil // it has no end
	}
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Less(t, resp.StatusCode, 300, "%s %s %s: %s", method, target, body, answer)
	var ids struct {
		UID   string
		ID    string
		Items []struct{ UID, ID string }
	}
	if json.Unmarshal(answer, &ids) == nil {
		if ids.UID != "" {
			known["$uid"] = ids.UID
		}
		if ids.ID != "" {
			known["$token"] = ids.ID
		}
	}
	return resp.StatusCode, answer
}

func checkAnswer(t *testing.T, c *compiler.Compiler, at string, answer []byte) {
	t.Helper()
	schema, err := c.Compile("https://evenkeel/openapi.json" + at)
	require.NoError(t, err)
	value, err := compiler.UnmarshalJSON(bytes.NewReader(answer))
	require.NoError(t, err)
	require.NoError(t, schema.Validate(value), "%s: %s", at, answer)
}

func fetch(t *testing.T, srv *httptest.Server, path string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+path, nil)
	require.NoError(t, err)
	resp, err := srv.Client().Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode, path)
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return data
}

func TestDescriptionIsShownInABrowser(t *testing.T) {
	a := open(t, "sqlite::memory:", new(ear).notify)
	srv := httptest.NewServer(a.Handler())
	t.Cleanup(srv.Close)
	require.Contains(t, string(fetch(t, srv, "/docs")), "swagger-ui-bundle.js")
	for _, p := range viewer.Paths {
		require.NotEmpty(t, fetch(t, srv, p))
	}
}
