// Package apitest holds what tests of the Evenkeel API and of its users need: an API in memory, and the checklist that
// every implementation of the API has to pass.
//
// [Memory] keeps the rules of the wire (see package apiclient) without a socket, a file or a goroutine of its own, so
// that it runs inside a [testing/synctest] bubble:
//
//	api := apitest.NewMemory(publisher.Publish)
//	go api.Run(ctx)
//	widgets, err := apiclient.New[Spec, Status](apiclient.Config{URL: "http://api", HTTP: api.Client()}, "widgets")
//
// [Conformance] is the rules as tests.
package apitest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
	"github.com/evenkeel-io/evenkeel/internal/random"
)

// Delays of the relay after a notification failed: as in the real API, soon enough that a test of an outage is short,
// and bounded, so that a long outage is over soon after it is over. They double so many times before that.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	doublings  = 6
)

// Memory is the Evenkeel API in memory. It is safe for concurrent use. Inside a bubble, make it there.
//
// It has no kinds, and so no versions of them: specs are as they were written, in whichever version somebody asks for them.
type Memory struct {
	notify func(ctx context.Context, kind, name, reason string) error
	mux    *http.ServeMux
	nudge  chan struct{} // holds one token: there may be something to relay
	turn   chan struct{} // holds who relays now, and has room for one, so that nothing is relayed twice

	mu       sync.Mutex // guards what follows; never held while waiting for anything
	rows     map[objects.Key]*row
	revision int64                                 // of the latest write to any object: a name used again goes on growing
	made     map[string]made                       // what was created under a key
	graves   map[objects.Key]int64                 // the revisions at which objects went, for watches
	events   map[objects.Key][]apiclient.Happening // also of objects that are gone
	self     apiclient.Self                        // what everybody is told
	written  chan struct{}                         // closed at the next write
}

// row is what is stored of an object. The object's maps, slices and pointers are never changed in place.
type row struct {
	object apiclient.Raw
	// gone marks a tombstone: the object is not there any more, but its deletion has not been notified yet.
	gone bool
	// toNotify is the revision of the latest write that controllers must hear of, and notified the one that they have
	// heard of. While notified < toNotify the row is dirty. The two change together with the object, so a write and its
	// notification cannot diverge.
	toNotify, notified int64
	reason             string

	failures int       // failed notifications in a row
	retryAt  time.Time // when the next one is due
}

func (r *row) dirty() bool { return r.notified < r.toNotify }

// NewMemory returns an empty API. [Memory.Run] calls notify for each change that controllers must hear of, one at a time,
// with one of the reasons "created", "changed", "deleted", "retry", "paused" and "resumed"; of several changes since
// the last call it is that of the latest.
func NewMemory(notify func(ctx context.Context, kind, name, reason string) error) *Memory {
	m := &Memory{
		notify:  notify,
		nudge:   make(chan struct{}, 1),
		turn:    make(chan struct{}, 1),
		rows:    map[objects.Key]*row{},
		made:    map[string]made{},
		graves:  map[objects.Key]int64{},
		events:  map[objects.Key][]apiclient.Happening{},
		self:    apiclient.Self{Name: "anonymous", Role: "admin"},
		written: make(chan struct{}),
	}
	m.mux = m.routes()
	return m
}

// SetSelf changes what everybody is told who asks who they are. The default is anonymous, an admin, and no prefix.
func (m *Memory) SetSelf(self apiclient.Self) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.self = self
}

func (m *Memory) serveSelf(*http.Request) (int, any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return http.StatusOK, m.self, nil
}

// Run relays changes to notify until ctx is done, then returns nil. What fails stays dirty and is tried again.
func (m *Memory) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		m.relay(ctx, false)
		m.sleep(ctx)
	}
	return nil
}

// Flush relays, now, everything that is dirty when it is called, also what is waiting for its next try. It returns an
// error if some of it could not be notified. It may be called while Run is running, and also without it.
func (m *Memory) Flush(ctx context.Context) error { return m.relay(ctx, true) }

// Dirty returns how many objects have a change that has not been notified yet. Nothing is between the two: once it is 0,
// every notification of the writes so far has been accepted.
func (m *Memory) Dirty() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, r := range m.rows {
		if r.dirty() {
			n++
		}
	}
	return n
}

// sleep waits for a write, for the first retry that comes due, or for ctx.
func (m *Memory) sleep(ctx context.Context) {
	var due <-chan time.Time
	if at, ok := m.nextRetry(); ok {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-m.nudge:
	case <-due:
	}
}

func (m *Memory) nextRetry() (at time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.rows {
		if r.dirty() && (!ok || r.retryAt.Before(at)) {
			at, ok = r.retryAt, true
		}
	}
	return at, ok
}

// relay notifies of the dirty rows in the order in which they were written, once each.
func (m *Memory) relay(ctx context.Context, all bool) error {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("relay: %w", ctx.Err())
	}
	defer func() { <-m.turn }()
	var errs []error
	for _, k := range m.due(all) {
		errs = append(errs, m.relayOne(ctx, k))
	}
	return errors.Join(errs...)
}

func (m *Memory) due(all bool) []objects.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	var keys []objects.Key
	for k, r := range m.rows {
		if r.dirty() && (all || !r.retryAt.After(now)) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b objects.Key) int { return cmp.Compare(m.rows[a].toNotify, m.rows[b].toNotify) })
	return keys
}

// relayOne publishes and then marks. The mark is the revision that was read before publishing: a change in between
// stays dirty.
func (m *Memory) relayOne(ctx context.Context, k objects.Key) error {
	m.mu.Lock()
	r := m.rows[k] // still there and dirty: that ends only by who relays it, and that is us
	revision, reason := r.toNotify, r.reason
	m.mu.Unlock()

	err := m.notify(ctx, k.Kind, k.Name, reason)

	m.mu.Lock()
	defer m.mu.Unlock()
	r = m.rows[k] // another one after a batch that failed
	if err != nil {
		r.retryAt = time.Now().Add(backoff(r.failures))
		r.failures++
		return fmt.Errorf("notify %s %s: %w", k, reason, err)
	}
	r.notified, r.failures, r.retryAt = revision, 0, time.Time{}
	if r.gone && !r.dirty() {
		delete(m.rows, k)
	}
	return nil
}

// backoff returns the wait after so many earlier failures: doubling, and somewhere in its upper half, so that rows that
// failed together are not tried together for ever.
func backoff(failures int) time.Duration {
	d := lastRetry
	if failures < doublings {
		d = firstRetry << failures
	}
	return d/2 + random.N(d/2)
}
