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
	// Replica, Method and Path select requests; empty selects all. Path is a part of the URL's path. The question of a replica
	// that starts, who it is to the API, is hit only by a Path that says so: "/self".
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

// BrokerFault is what goes wrong with messages of replicas to the broker. All of them, requests to JetStream too, are
// messages: each is one publish.
type BrokerFault struct {
	// Replica and Subject select messages; empty selects all. Subject is a part of the subject: "$KV." are locks and
	// sessions, "$JS.ACK." what becomes of notifications, ".s." requeues.
	Replica, Subject string
	// Times is how many messages are hit; 0 hits all until the test ends.
	Times int
	// Lose lets the message take effect and loses the answer. Without it the message never arrives.
	Lose bool
}

// orders are the faults that a test has ordered, of one sort.
type orders[F any] struct{ all []*order[F] }

type order[F any] struct {
	fault F
	left  int // below zero: until it is cancelled
}

// Fail orders a fault of the API. cancel ends it.
func (w *World) Fail(f Fault) (cancel func()) { return add(w, &w.faults, f, f.Times) }

// FailBroker orders a fault of the broker. cancel ends it.
func (w *World) FailBroker(f BrokerFault) (cancel func()) { return add(w, &w.brokerFaults, f, f.Times) }

func add[F any](w *World, to *orders[F], f F, times int) (cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := &order[F]{fault: f, left: times}
	if times == 0 {
		o.left = -1
	}
	to.all = append(to.all, o)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		o.left = 0
	}
}

// next finds the first fault that hits, and counts the hit.
func next[F any](w *World, of *orders[F], hits func(F) bool) *F {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range of.all {
		if o.left == 0 || !hits(o.fault) {
			continue
		}
		if o.left > 0 {
			o.left--
		}
		return &o.fault
	}
	return nil
}

func (w *World) nextFault(r *Replica, req *http.Request) *Fault {
	f := next(w, &w.faults, func(f Fault) bool {
		if req.URL.Path == "/v1/self" && f.Path == "" {
			return false
		}
		return (f.Replica == "" || f.Replica == r.Name) && (f.Method == "" || f.Method == req.Method) && strings.Contains(req.URL.Path, f.Path)
	})
	if f != nil {
		w.note(r.Name, "meets a fault at "+req.Method+" "+req.URL.Path)
	}
	return f
}

func (w *World) nextBrokerFault(r *Replica, subj string) *BrokerFault {
	f := next(w, &w.brokerFaults, func(f BrokerFault) bool {
		return (f.Replica == "" || f.Replica == r.Name) && strings.Contains(subj, f.Subject)
	})
	switch {
	case f == nil:
	case f.Lose:
		w.note(r.Name, "loses the answer to "+subj)
	default:
		w.note(r.Name, "loses a message to "+subj)
	}
	return f
}
