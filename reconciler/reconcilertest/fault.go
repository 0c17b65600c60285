package reconcilertest

import (
	"errors"
	"net/http"
	"strings"
	"time"
)

var errLost = errors.New("the answer was lost")

// Fault is what goes wrong with requests of replicas to the API.
type Fault struct {
	// Replica, Method and Path select requests; empty selects all. Path is a part of the URL's path.
	Replica, Method, Path string
	// Times is how many requests are hit; 0 hits all until the test ends.
	Times int
	// Delay comes before everything else.
	Delay time.Duration
	// Lose lets the request take effect and loses the answer.
	Lose bool
	// Status answers with an HTTP status instead, Err with a network error.
	Status int
	Err    error
}

type fault struct {
	Fault
	hits int
}

// Fail orders a fault. cancel ends it.
func (w *World) Fail(f Fault) (cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ordered := &fault{Fault: f}
	w.faults = append(w.faults, ordered)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		ordered.Times = -1
	}
}

func (w *World) nextFault(r *Replica, req *http.Request) *Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		spent := f.Times < 0 || f.Times > 0 && f.hits >= f.Times
		if spent || f.Replica != "" && f.Replica != r.Name || f.Method != "" && f.Method != req.Method || !strings.Contains(req.URL.Path, f.Path) {
			continue
		}
		f.hits++
		return &f.Fault
	}
	return nil
}
