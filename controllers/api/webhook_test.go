package api

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// hook is a server that converts widgets: {"size":N} in v1 is {"count":N} in v2, and each keeps "keep".
type hook struct {
	srv *httptest.Server

	mu    sync.Mutex
	calls []string // from, to and how many items
	// answer, if there is one, answers in place of it.
	answer http.HandlerFunc
}

func newHook(t *testing.T, start func(http.Handler) *httptest.Server) *hook {
	t.Helper()
	h := new(hook)
	h.srv = start(h)
	h.srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(h.srv.Close)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	answer := h.answer
	h.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	h.convert(w, r)
}

func (h *hook) convert(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Kind, From, To string
		Items          []struct{ Spec, Current map[string]any }
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "bad", http.StatusBadRequest)
		return
	}
	var out struct {
		Items []map[string]any `json:"items"`
	}
	for _, item := range asked.Items {
		spec := map[string]any{}
		for name, value := range item.Spec {
			spec[map[string]string{"size": "count", "count": "size"}[name]] = value
		}
		delete(spec, "")
		if item.Current["keep"] != nil {
			spec["keep"] = item.Current["keep"]
		}
		out.Items = append(out.Items, map[string]any{"spec": spec})
		if item.Spec["size"] == 666.0 || item.Spec["count"] == 666.0 {
			http.Error(w, fmt.Sprint("hunter2 ", item.Spec), http.StatusUnprocessableEntity)
			return
		}
	}
	h.mu.Lock()
	h.calls = append(h.calls, fmt.Sprintf("%s %s>%s %d", asked.Kind, asked.From, asked.To, len(asked.Items)))
	h.mu.Unlock()
	_ = json.NewEncoder(w).Encode(out)
}

func (h *hook) called() (calls []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls, h.calls = h.calls, nil
	return calls
}

func (h *hook) setAnswer(answer http.HandlerFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

const (
	widgets1 = `{"type":"object","required":["size"],"properties":{"size":{"type":"integer"}}}`
	widgets2 = `{"type":"object","required":["count"],"properties":{"count":{"type":"integer","maximum":1000},"keep":{}}}`
)

// widgetsAt is the kind of widgets with v2 as the current version.
func (h *hook) widgetsAt() apiclient.Kind {
	c := &apiclient.Conversion{URL: h.srv.URL + "/convert"}
	if cert := h.srv.Certificate(); cert != nil {
		c.CABundle = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	}
	return apiclient.Kind{
		Kind: "widgets", Schema: json.RawMessage(widgets2), Version: "v2",
		Versions: []apiclient.KindVersion{{Name: "v1", Schema: json.RawMessage(widgets1)}}, Conversion: c,
	}
}

// hooked is an API with widgets a, b and c that are stored in v1, and d that is stored in v2, the current version.
func hooked(t *testing.T, store string) (*versioned, *hook) {
	t.Helper()
	v, h := serve(t, store), newHook(t, httptest.NewServer)
	ks := v.kindsClient()
	_, err := ks.Define(t.Context(), apiclient.Kind{Kind: "widgets", Schema: json.RawMessage(widgets1), Version: "v1"})
	require.NoError(t, err)
	for i, name := range []string{"a", "b", "c"} {
		_, err := v.of("widgets").Create(t.Context(), name, doc{"size": i})
		require.NoError(t, err)
	}
	k, err := ks.Define(t.Context(), h.widgetsAt())
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"v1": 3}, k.Stored)
	_, err = v.of("widgets").Create(t.Context(), "d", doc{"count": 3, "keep": "me"})
	require.NoError(t, err)
	require.Empty(t, h.called(), "the current version needs no hook")
	return v, h
}

// TestHookConvertsPages: with one call for each page and version.
func TestHookConvertsPages(t *testing.T) {
	v, h := hooked(t, newStore(t))
	old, now := v.of("widgets").At("v1"), v.of("widgets")
	require.Equal(t, []string{"a v2 map[count:0]", "b v2 map[count:1]", "c v2 map[count:2]", "d v2 map[count:3 keep:me]"}, sizes(t, now))
	require.Equal(t, []string{"widgets v1>v2 3"}, h.called())
	require.Equal(t, []string{"a v1 map[size:0]", "b v1 map[size:1]", "c v1 map[size:2]", "d v1 map[size:3]"}, sizes(t, old))
	require.Equal(t, []string{"widgets v2>v1 1"}, h.called())
	require.Equal(t, []string{"b v2 map[count:1]"}, sizes(t, now, apiclient.WithFields("spec.count=1")))
	require.Equal(t, []string{"widgets v1>v2 3"}, h.called())

	o, err := old.Put(t.Context(), "d", doc{"size": 4})
	require.NoError(t, err)
	require.Equal(t, doc{"size": 4.0}, o.Spec)
	require.Equal(t, []string{"widgets v2>v1 1", "widgets v1>v2 1", "widgets v2>v1 1"}, h.called())
	o, err = now.Get(t.Context(), "d")
	require.NoError(t, err)
	require.Equal(t, doc{"count": 4.0, "keep": "me"}, o.Spec)
	batch, err := apiclient.NewBatch(apiclient.Config{URL: v.srv.URL, HTTP: v.srv.Client(), Tries: 1})
	require.NoError(t, err)
	_, err = batch.Apply(t.Context(), old.Item("a", doc{"size": 5}), old.Item("b", doc{"size": 6}), old.Item("d", doc{"size": 7}), old.Item("e", doc{"size": 8}))
	require.NoError(t, err)
	require.Equal(t, []string{"widgets v1>v2 2", "widgets v2>v1 3", "widgets v1>v2 4", "widgets v2>v1 4"}, h.called())
	require.Equal(t, []string{"a v2 map[count:5]", "b v2 map[count:6]", "c v1 map[size:2]", "d v2 map[count:7 keep:me]", "e v2 map[count:8]"}, sizes(t, v.of("widgets").At(apiclient.AsStored)))
}

// TestFailingHookLosesNothing: each way to fail is told with kind, versions and object, nothing is written, and what needs no
// hook works. Nobody is told what the hook said.
func TestFailingHookLosesNothing(t *testing.T) {
	v, h := hooked(t, newStore(t))
	var logged text
	v.log = funcr.New(func(_, args string) { logged.Write([]byte(args)) }, funcr.Options{})
	old, now := v.of("widgets").At("v1"), v.of("widgets")
	before := sizes(t, now.At(apiclient.AsStored))
	says := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		why    string
		status int
	}{
		"refuses": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "hunter2", http.StatusUnprocessableEntity) }, "answers 422", 502},
		"fails":   {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "hunter2", http.StatusInternalServerError) }, "answers 500", 503},
		"cut off": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "cannot be reached", 503},
		"half": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "99")
			fmt.Fprint(w, "hunter2")
		}, "cannot be reached", 503},
		"redirects": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/other", http.StatusTemporaryRedirect)
		}, "answers 307", 502},
		"no JSON":     {says("hunter2"), "does not answer with JSON", 502},
		"a list":      {says(`["hunter2"]`), "does not answer with JSON", 502},
		"too few":     {says(`{"items":[]}`), "answers with 0 items, want 1", 502},
		"too many":    {says(`{"items":[{"spec":{}},{"spec":{}}]}`), "answers with 2 items, want 1", 502},
		"no object":   {says(`{"items":[{"spec":"hunter2"}]}`), "something else than a JSON object", 502},
		"none":        {says(`{"items":[{}]}`), "something else than a JSON object", 502},
		"not UTF-8":   {says("{\"items\":[{\"spec\":{\"a\":\"\xff\"}}]}"), "something else than a JSON object", 502},
		"large":       {says(`{"items":[{"spec":{"a":"` + strings.Repeat("x", objects.MaxBody) + `"}}]}`), "something else than a JSON object", 502},
		"huge":        {says(strings.Repeat(" ", hookAnswer) + `{"items":[{"spec":{}}]}`), "answers with more than", 502},
		"wrong to us": {says(`{"items":[{"spec":{"strange":"hunter2"}}]}`), "", 0}, // which a reader is shown, and nobody may store
	} {
		h.setAnswer(c.answer)
		writes := map[string]func() (*apiclient.Object[doc, doc], error){
			"put through":   func() (*apiclient.Object[doc, doc], error) { return old.Put(t.Context(), "d", doc{"size": 5}) },
			"patch through": func() (*apiclient.Object[doc, doc], error) { return old.Patch(t.Context(), "d", doc{"size": 5}) },
			"put on old":    func() (*apiclient.Object[doc, doc], error) { return now.Put(t.Context(), "a", doc{"count": 5}) },
			"patch on old":  func() (*apiclient.Object[doc, doc], error) { return now.Patch(t.Context(), "a", doc{"count": 5}) },
			"create":        func() (*apiclient.Object[doc, doc], error) { return old.Create(t.Context(), "e", doc{"size": 5}) },
		}
		reads := map[string]func() (*apiclient.Object[doc, doc], error){
			"get":     func() (*apiclient.Object[doc, doc], error) { return now.Get(t.Context(), "a") },
			"get old": func() (*apiclient.Object[doc, doc], error) { return old.Get(t.Context(), "d") },
		}
		for doing, do := range writes {
			_, err := do()
			require.Error(t, err, "%s: %s", name, doing)
			require.NotContains(t, err.Error(), "hunter2", name)
		}
		for doing, do := range reads {
			_, err := do()
			if c.status == 0 {
				require.NoError(t, err, "%s: %s", name, doing)
				continue
			}
			require.ErrorIs(t, err, apiclient.ErrConversion, "%s: %s", name, doing)
			require.ErrorIs(t, err, apiclient.ErrUnavailable)
			require.ErrorContains(t, err, c.why, "%s: %s", name, doing)
			require.Regexp(t, `widgets/(a: the conversion from v1 to v2|d: the conversion from v2 to v1) failed: `, err.Error())
			require.False(t, strings.Contains(err.Error()+logged.String(), "hunter2"), "%s: %s", name, doing)
			require.Equal(t, c.status, problemOf(t, err).Status, name)
		}
		o, err := now.Get(t.Context(), "d")
		require.NoError(t, err, name)
		require.Equal(t, doc{"count": 3.0, "keep": "me"}, o.Spec)
		_, err = old.Get(t.Context(), "a")
		require.NoError(t, err, name)
	}
	h.setAnswer(nil)
	require.Equal(t, before, sizes(t, now.At(apiclient.AsStored)), "nothing was written")
	_, err := now.Put(t.Context(), "d", doc{"count": 666})
	require.NoError(t, err)
	h.setAnswer(func(w http.ResponseWriter, _ *http.Request) {
		t.Error("the hook was asked")
		http.Error(w, "", http.StatusInternalServerError)
	})
	for _, write := range []func() error{
		func() error { _, err := now.Put(t.Context(), "d", doc{"count": 8}); return err },
		func() error { _, err := now.At(apiclient.AsStored).Pause(t.Context(), "a"); return err },
		func() error { _, err := old.Pause(t.Context(), "b"); return err },
		func() error {
			_, err := now.Patch(t.Context(), "d", nil, apiclient.WithLabels(map[string]string{"a": "b"}))
			return err
		},
		func() error {
			_, err := old.Patch(t.Context(), "a", nil, apiclient.WithLabels(map[string]string{"a": "b"}))
			return err
		},
		func() error { _, err := now.At(apiclient.AsStored).Delete(t.Context(), "c"); return err },
	} {
		require.NoError(t, write(), "it needs no hook")
	}
}

func problemOf(t *testing.T, err error) *apiclient.Problem {
	t.Helper()
	var p *apiclient.Problem
	require.ErrorAs(t, err, &p)
	return p
}

// TestSlowHookDelaysNobodyElse: a hook that does not answer holds no lock, no transaction, no connection of the database, and
// not the feed.
func TestSlowHookDelaysNobodyElse(t *testing.T) {
	v, h := hooked(t, newStore(t))
	running(t, v.API)
	release, arrived := make(chan struct{}), make(chan struct{}, 100)
	h.setAnswer(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
		h.convert(w, r)
	})
	old, now := v.of("widgets").At("v1"), v.of("widgets")
	var waiting sync.WaitGroup
	for i := range 20 { // more than there are connections
		waiting.Go(func() {
			switch i % 4 {
			case 0:
				for _, err := range now.All(t.Context()) {
					if err != nil {
						t.Error(err)
					}
				}
			case 1:
				if _, err := now.Put(t.Context(), "a", doc{"count": i}); err != nil {
					t.Error(err)
				}
			case 2:
				if _, err := old.Put(t.Context(), "d", doc{"size": i}); err != nil {
					t.Error(err)
				}
			case 3:
				_, err := old.WaitFor(t.Context(), "d", func(*apiclient.Object[doc, doc]) bool { return true })
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 20 {
		<-arrived
	}
	other := v.of("gadgets")
	for i := range 5 {
		name := fmt.Sprintf("g-%d", i)
		_, err := other.Create(t.Context(), name, doc{"n": i})
		require.NoError(t, err)
		_, err = other.WaitFor(t.Context(), name, func(o *apiclient.Object[doc, doc]) bool { return o != nil })
		require.NoError(t, err)
		_, err = now.Put(t.Context(), "d", doc{"count": 100 + i, "keep": "me"})
		require.NoError(t, err, "what needs no hook of the same kind")
	}
	close(release)
	waiting.Wait()
}

// TestHookHasADeadline: real time: it is that of a connection.
func TestHookHasADeadline(t *testing.T) {
	v, h := hooked(t, newStore(t))
	release, asked := make(chan struct{}), new(atomic.Int64)
	h.setAnswer(func(http.ResponseWriter, *http.Request) {
		asked.Add(1)
		<-release
	})
	_, err := v.of("widgets").Get(t.Context(), "a")
	close(release)
	require.ErrorIs(t, err, apiclient.ErrConversion)
	require.ErrorContains(t, err, "did not answer within 5s")
	require.EqualValues(t, 1, asked.Load(), "it is not asked again")
	require.Equal(t, 503, problemOf(t, err).Status)
}

// TestHooksOfKindsAreChecked: https, or this machine; certificates; names and schemas of versions; something that converts.
func TestHooksOfKindsAreChecked(t *testing.T) {
	v, h := serve(t, newStore(t)), newHook(t, httptest.NewTLSServer)
	ks := v.kindsClient()
	for want, change := range map[string]func(k *apiclient.Kind){
		"body.conversion url: want https: specs":           func(k *apiclient.Kind) { k.Conversion.URL = "http://hooks.example.com/" },
		"body.conversion url: want https://HOST":           func(k *apiclient.Kind) { k.Conversion.URL = "file:///etc/passwd" },
		"body.conversion url: want one without a user":     func(k *apiclient.Kind) { k.Conversion.URL = "https://me:hunter2@host/" },
		"body.conversion caBundle: want certificates":      func(k *apiclient.Kind) { k.Conversion.CABundle = "hunter2" },
		"body.conversion there are older versions":         func(k *apiclient.Kind) { k.Conversion = nil },
		"body.version want the name of a version":          func(k *apiclient.Kind) { k.Version = "" },
		"body.versions.0.name want the name of a version":  func(k *apiclient.Kind) { k.Versions[0].Name = "V1" },
		"body.versions \"v2\" is there twice":              func(k *apiclient.Kind) { k.Versions[0].Name = "v2" },
		"body.versions.0.schema want \"type\": \"object\"": func(k *apiclient.Kind) { k.Versions[0].Schema = json.RawMessage(`{}`) },
		"body.schema want \"type\": \"object\"":            func(k *apiclient.Kind) { k.Schema = json.RawMessage(`{"type":"string"}`) },
		"body.versions want fewer than 20":                 func(k *apiclient.Kind) { k.Versions = make([]apiclient.KindVersion, 20) },
		"body.versions either all versions have fields with": func(k *apiclient.Kind) {
			k.Versions[0].Schema = json.RawMessage(`{"type":"object","properties":{"a":{"x-sensitive":true}}}`)
		},
	} {
		k := h.widgetsAt()
		change(&k)
		_, err := ks.Define(t.Context(), k)
		at, message, _ := strings.Cut(want, " ")
		require.Equal(t, []string{at}, fields(t, err), want)
		require.ErrorContains(t, err, message)
		require.NotContains(t, err.Error(), "hunter2")
	}
	_, err := ks.Get(t.Context(), "widgets")
	require.ErrorIs(t, err, apiclient.ErrNotFound)
	k := h.widgetsAt()
	_, err = ks.Define(t.Context(), k)
	require.NoError(t, err)
	_, err = v.of("widgets").Create(t.Context(), "blue", doc{"count": 1})
	require.NoError(t, err)
	_, err = v.of("widgets").At("v1").Get(t.Context(), "blue")
	require.NoError(t, err, "its certificate is in the bundle")
	got, err := ks.Get(t.Context(), "widgets")
	require.NoError(t, err)
	require.Equal(t, k.Conversion, got.Conversion)
	require.Equal(t, k.Versions[0].Name, got.Versions[0].Name)
	k.Conversion.CABundle = ""
	_, err = ks.Define(t.Context(), k)
	require.NoError(t, err)
	_, err = v.of("widgets").At("v1").Get(t.Context(), "blue")
	require.ErrorContains(t, err, "the hook cannot be reached", "nobody vouches for its certificate")
}

// FuzzHookAnswers: whatever a hook answers is as many specs as were asked for, or an error that quotes nothing of it.
func FuzzHookAnswers(f *testing.F) {
	for _, seed := range []string{
		`{"items":[{"spec":{}}]}`, `{"items":[{"spec":{"a":1}},{"spec":null}]}`, `{"items":null}`, `[]`, `{"items":[{}]}`, `{"items":[{"spec":"hunter2"}]}`,
		`{"items":[null]}`, `{"Items":[{"SPEC":{}}]}`, `{"items":[{"spec":{}}]}{}`, "\xff", `{"items":[{"spec":{"a":"\ud800"}}]}`, ``,
	} {
		f.Add([]byte(seed), 1)
	}
	known, err := new(kinds).compile("widgets", definition{
		Schema: json.RawMessage(widgets2), Version: "v2", Versions: []apiclient.KindVersion{{Name: "v1", Schema: json.RawMessage(widgets1)}},
	})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte, want int) {
		specs, err := readAnswers(data, want)
		if err != nil {
			require.Nil(t, specs)
			require.NotContains(t, err.Error(), "hunter2")
			return
		}
		require.Len(t, specs, want)
		for _, spec := range specs {
			j := &job{known: known, name: "blue", from: "v1", to: "v2"}
			if done, err := j.finished(spec); err == nil {
				require.True(t, json.Valid(done))
				require.True(t, strings.HasPrefix(strings.TrimLeft(string(done), " \t\r\n"), "{"))
			}
		}
	})
}
