package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/controllers/secrets"
)

// text collects what is written, and fails as long as it is told to.
type text struct {
	mu   sync.Mutex
	data bytes.Buffer
	fail error
	keep int // how much of a line is written before the failure
	read int // how much of it entries has returned
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fail != nil {
		t.data.Write(p[:t.keep])
		return t.keep, t.fail
	}
	return t.data.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.data.String()
}

func (t *text) setFail(err error, keep int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail, t.keep = err, keep
}

// secured is an API that asks who asks, and a clock that only moves when it is told to.
type secured struct {
	*API
	t     *testing.T
	where string // the store
	audit *text
	logs  *text

	mu  sync.Mutex
	now time.Time
}

func secure(t *testing.T, store string, cfg Access) *secured {
	t.Helper()
	return secureWith(t, store, cfg, nil)
}

// secureWith is secure with keys.
func secureWith(t *testing.T, store string, cfg Access, keys *secrets.Keyring) *secured {
	t.Helper()
	s := &secured{t: t, where: store, audit: new(text), logs: new(text), now: time.Now()}
	if cfg.Audit == nil {
		cfg.Audit = s.audit
	}
	a, err := Open(t.Context(), Config{Store: store, Notify: new(ear).notify, Access: cfg, Secrets: keys, Logger: s.logger()})
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	s.API = a
	a.door.now = func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.now
	}
	return s
}

func (s *secured) logger() logr.Logger {
	return funcr.New(func(_, args string) { s.logs.Write([]byte(args + "\n")) }, funcr.Options{Verbosity: 10})
}

func (s *secured) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// token makes a token that does not expire.
func (s *secured) token(role access.Role, kinds ...string) (id, text string) {
	s.t.Helper()
	token, text, err := s.tokens.Create(s.t.Context(), "the-"+string(role), access.Grant{Role: role, Kinds: kinds}, nil)
	require.NoError(s.t, err)
	return token.ID, text
}

// answer is what came back.
type answer struct {
	status  int
	header  http.Header
	body    string
	problem apiclient.Problem
}

// ask sends a request. token may be empty; headers are in pairs.
func (s *secured) ask(method, path, token, body string, header ...string) answer {
	s.t.Helper()
	return s.askFrom("192.0.2.1:1234", method, path, token, body, header...)
}

func (s *secured) askFrom(remote, method, path, token, body string, header ...string) answer {
	s.t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	req := httptest.NewRequest(method, path, content)
	req.RemoteAddr = remote
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, req)
	a := answer{status: rec.Code, header: rec.Header(), body: rec.Body.String()}
	if rec.Header().Get("Content-Type") == "application/problem+json" {
		require.NoError(s.t, json.Unmarshal(rec.Body.Bytes(), &a.problem))
	}
	return a
}

// entries returns the lines of the audit log since it was last called, and checks that they are lines of JSON.
func (s *secured) entries() []entry {
	s.t.Helper()
	s.audit.mu.Lock()
	defer s.audit.mu.Unlock()
	var all []entry
	for line := range strings.Lines(s.audit.data.String()[s.audit.read:]) {
		var e entry
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		require.NoError(s.t, d.Decode(&e), line)
		require.True(s.t, strings.HasSuffix(line, "}\n"), line)
		all = append(all, e)
	}
	s.audit.read = s.audit.data.Len()
	return all
}

func decode(t *testing.T, body string, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(body), into), body)
}
