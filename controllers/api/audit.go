package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// entry is one line of the audit log. It never holds what was in a body or in a header.
type entry struct {
	Time      time.Time   `json:"time"`
	Principal string      `json:"principal,omitempty"`
	ID        string      `json:"id,omitempty"`
	Role      access.Role `json:"role,omitempty"`
	Remote    string      `json:"remote"`
	Method    string      `json:"method"`
	Operation string      `json:"operation"`
	Kind      string      `json:"kind,omitempty"`
	Name      string      `json:"name,omitempty"`
	Status    int         `json:"status"`
	Problem   string      `json:"problem,omitempty"`
}

// auditLog writes entries, each in one call of Write. It is safe for concurrent use.
type auditLog struct {
	to  io.Writer // nil: no audit log is kept
	log logr.Logger

	mu      sync.Mutex
	torn    bool // the latest line was written in part
	failing bool
}

// write writes a line for each entry. What goes wrong is logged, and kept for ready.
func (l *auditLog) write(entries []entry) {
	if l.to == nil {
		return
	}
	var lines bytes.Buffer
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.torn {
		lines.WriteByte('\n')
	}
	encoder, err := json.NewEncoder(&lines), error(nil)
	for i := range entries {
		err = errors.Join(err, encoder.Encode(&entries[i]))
	}
	if err == nil {
		var n int
		n, err = l.to.Write(lines.Bytes())
		l.torn = err != nil && (n > 0 || l.torn)
	}
	l.failing = err != nil
	if err != nil {
		e := &entries[0]
		l.log.Error(err, "the audit log cannot be written", "principal", e.Principal, "operation", e.Operation, "kind", e.Kind, "name", e.Name, "status", e.Status)
	}
}

// ready reports whether the latest line was written.
func (l *auditLog) ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.failing
}

// setName names the object of a request that does not have it in its path.
func setName(ctx context.Context, name string) {
	if v := visitOf(ctx); v != nil && subject.CheckObject("any", name) == nil {
		v.entry.Name = name
	}
}

// setProblem says as what a request was refused. problemType is a URI, or empty.
func setProblem(ctx context.Context, problemType string) {
	if v := visitOf(ctx); v != nil && problemType != "" {
		v.entry.Problem = path.Base(problemType)
	}
}

// audited is a response whose status goes to the audit log before any of it goes to the client: who has an answer finds it in
// the log.
type audited struct {
	http.ResponseWriter
	log   *auditLog
	visit *visit
	done  bool
}

// WriteHeader writes the line, and then the header.
func (a *audited) WriteHeader(status int) {
	if status >= http.StatusOK { // what comes before is no answer
		a.end(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write begins a response whose status was not set.
func (a *audited) Write(data []byte) (int, error) {
	a.end(http.StatusOK)
	return a.ResponseWriter.Write(data)
}

// Unwrap is for http.ResponseController.
func (a *audited) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// end writes the line, once. Status 0 is a request that was cut off without an answer.
func (a *audited) end(status int) {
	if !a.done {
		a.done, a.visit.entry.Status = true, status
		a.log.write(a.visit.entries())
	}
}
