package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
)

type doc = map[string]any

// ear is a Config.Notify that keeps what it hears.
type ear struct {
	mu    sync.Mutex
	heard []string
	tries int
	// fail, if there is one, decides what is not heard.
	fail func(name string) error
}

func (e *ear) notify(_ context.Context, kind, name, reason string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tries++
	if e.fail != nil {
		if err := e.fail(name); err != nil {
			return err
		}
	}
	e.heard = append(e.heard, kind+"/"+name+" "+reason)
	return nil
}

func (e *ear) setFail(fail func(name string) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = fail
}

func (e *ear) drain() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { e.heard = nil }()
	return e.heard
}

var errDown = errors.New("broker is down")

func down(string) error { return errDown }

// newStore is an empty database: PostgreSQL below TestPostgres, else a file of SQLite.
func newStore(t *testing.T) string {
	t.Helper()
	if strings.HasPrefix(t.Name(), "TestPostgres/") {
		return pgtest.Database(t)
	}
	return "sqlite:" + filepath.Join(t.TempDir(), "evenkeel.db")
}

func open(t *testing.T, store string, notify func(ctx context.Context, kind, name, reason string) error) *API {
	t.Helper()
	a, err := Open(t.Context(), Config{Store: store, Notify: notify, Access: Access{Insecure: true}})
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return a
}

// running runs the relay of an API until the test ends, or the returned function is called.
func running(t *testing.T, a *API) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-stopped)
	})
	t.Cleanup(stop)
	return stop
}

// widgets returns a client of an API, over a real connection.
func widgets(t *testing.T, a *API) *apiclient.Client[doc, doc] {
	t.Helper()
	srv := httptest.NewServer(a.Handler())
	t.Cleanup(srv.Close)
	c, err := apiclient.New[doc, doc](apiclient.Config{URL: srv.URL, HTTP: srv.Client(), Tries: 1}, "widgets")
	require.NoError(t, err)
	return c
}

func TestConformance(t *testing.T) {
	for name, store := range map[string]func(t *testing.T) string{
		"file":     func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "a #1?.db") },
		"memory":   func(*testing.T) string { return "sqlite::memory:" },
		"postgres": func(t *testing.T) string { return pgtest.Database(t) },
	} {
		t.Run(name, func(t *testing.T) {
			apitest.Conformance(t, func(t *testing.T) apitest.Server {
				var e ear
				a := open(t, store(t), e.notify)
				running(t, a)
				srv := httptest.NewServer(a.Handler())
				t.Cleanup(srv.Close)
				return apitest.Server{URL: srv.URL, HTTP: srv.Client(), Notifications: func() []string {
					require.NoError(t, a.Flush(t.Context()))
					return e.drain()
				}}
			})
		})
	}
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	notify := new(ear).notify
	_, err := Open(t.Context(), Config{Store: "sqlite::memory:"})
	require.ErrorContains(t, err, "Config.Notify")
	for _, store := range []string{"", "sqlite:", "mysql://x", "evenkeel.db"} {
		_, err := Open(t.Context(), Config{Store: store, Notify: notify})
		require.ErrorContains(t, err, "Config.Store")
	}
	missing := "sqlite:" + filepath.Join(t.TempDir(), "no", "such", "folder.db")
	_, err = Open(t.Context(), Config{Store: missing, Notify: notify})
	require.ErrorContains(t, err, "migrate "+missing)
}

func TestAPIsThatStartTogetherMigrateOnce(t *testing.T) {
	store := newStore(t)
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			a, err := Open(t.Context(), Config{Store: store, Notify: new(ear).notify})
			if err == nil {
				err = a.Close()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func TestFileIsNamedAsGiven(t *testing.T) {
	folder := t.TempDir()
	open(t, "sqlite:"+filepath.Join(folder, "50%23 #1?.db"), new(ear).notify)
	_, err := os.Stat(filepath.Join(folder, "50%23 #1?.db"))
	require.NoError(t, err)
}

// TestBrokenStoreSaysSoWithoutDetails: what a store says is for the log.
func TestBrokenStoreSaysSoWithoutDetails(t *testing.T) {
	var logged []string
	log := funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	a, err := Open(t.Context(), Config{Store: newStore(t), Notify: new(ear).notify, Logger: log, Access: Access{Insecure: true}})
	require.NoError(t, err)
	require.NoError(t, a.Close())
	for _, c := range []struct{ method, path string }{
		{"GET", "/v1/objects/widgets"}, {"GET", "/v1/objects/widgets/blue"}, {"DELETE", "/v1/objects/widgets/blue"},
	} {
		logged = nil
		rec := httptest.NewRecorder()
		a.Handler().ServeHTTP(rec, httptest.NewRequest(c.method, c.path, nil))
		require.Equal(t, http.StatusInternalServerError, rec.Code)
		require.Equal(t, "application/problem+json", rec.Header().Get("Content-Type"))
		require.NotContains(t, rec.Body.String(), "database")
		require.Len(t, logged, 1)
		require.Contains(t, logged[0], "database is closed")
	}
}

// TestPanicCutsTheRequestOff: it is logged, and never looks like an answer.
func TestPanicCutsTheRequestOff(t *testing.T) {
	var logged []string
	a := open(t, "sqlite::memory:", new(ear).notify)
	a.log = funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) { panic("boom") })
	require.PanicsWithError(t, http.ErrAbortHandler.Error(), func() {
		a.guard(mux).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/x", nil))
	})
	require.Len(t, logged, 1)
	require.Contains(t, logged[0], "boom")
	require.Contains(t, logged[0], "api_test.go")
}

func TestDescriptionIsServed(t *testing.T) {
	a := open(t, "sqlite::memory:", new(ear).notify)
	rec := httptest.NewRecorder()
	a.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	data, err := io.ReadAll(rec.Result().Body)
	require.NoError(t, err)
	var description struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	require.NoError(t, json.Unmarshal(data, &description))
	require.Equal(t, 15, len(description.Paths)) //nolint:testifylint // a failure would print all of it
	_, ok := description.Paths["/v1/objects/{kind}/{name}"]["put"]
	require.True(t, ok)
	watch, err := json.Marshal(description.Paths["/v1/watch/{kind}"]["get"])
	require.NoError(t, err)
	require.Contains(t, string(watch), `"text/event-stream"`)
}
