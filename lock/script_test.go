package lock

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// Answers of the server.
var (
	wrongSequence = script.Error(400, 10071, "wrong last sequence: 7")
	noMessage     = script.Error(404, 10037, "no message found")
	noStream      = script.Error(404, 10059, "stream not found")
	unavailable   = script.Error(503, 10008, "temporarily unavailable")
)

const streamInfoOf = "$JS.API.STREAM.INFO.KV_b"

// storedAt is the answer to a publish.
func storedAt(sequence uint64) string { return fmt.Sprintf(`{"stream":"KV_b","seq":%d}`, sequence) }

// reads is the request for what a key holds.
func reads(key string) string {
	return `$JS.API.STREAM.MSG.GET.KV_b {"last_by_subj":"$KV.b.` + key + `"}`
}

// lists is the request for the keys under a filter.
func lists(filter string) string {
	b, _ := json.Marshal("$KV.b." + filter)
	return streamInfoOf + ` {"offset":0,"subjects_filter":` + string(b) + `}`
}

// listing is the answer to a request for keys, by a bucket that is as it should be.
func listing(keys ...string) string {
	return listingOf(`{"max_msgs_per_subject":1,"discard":"new"}`, keys...)
}

func listingOf(config string, keys ...string) string {
	subjects := map[string]int{}
	for _, k := range keys {
		subjects["$KV.b."+k] = 1
	}
	b, _ := json.Marshal(subjects)
	return fmt.Sprintf(`{"total":%d,"ts":%q,"config":%s,"state":{"subjects":%s}}`, len(keys), script.Time.Format(time.RFC3339), config, b)
}

// found is the answer to a read.
func found(revision uint64, h nats.Header, data string) string {
	return script.Stored("", revision, h, data)
}

// lockedBy is the answer to a read of a key that is locked. The holder is called as its session.
func lockedBy(revision uint64, session string, nonce uint64, before *Predecessor) string {
	holder, _ := json.Marshal(session)
	return found(revision, nil, string(value(session, holder, nonce, before)))
}

// released is the answer to a read of a key that was released.
func released(revision uint64, before *Predecessor) string {
	return found(revision, marker(nats.NewMsg(""), 1, before).Header, "")
}

// heard is what a Locker calls.
type heard struct {
	mu    sync.Mutex
	errs  []string
	ready int
}

func (h *heard) onError(doing string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, fmt.Sprintf("%s: %v", doing, err))
}

func (h *heard) onReady() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready++
}

// drain returns what was told of since the last call.
func (h *heard) drain() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	errs := h.errs
	h.errs = nil
	return errs
}

// scripted runs a test in virtual time, with a Locker of the keys "jobs.>" and a server that is told what to say.
func scripted(t *testing.T, test func(t *testing.T, s *script.Server, l *Locker, h *heard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, nc := script.New(t, nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(0, 0))
		h := &heard{}
		l, err := New(nc, Config{
			Bucket: "b", Holder: "me", OnError: h.onError, OnReady: h.onReady, Keys: []string{"jobs.>"},
			Recover: func(context.Context, string, string) error { return nil },
		})
		require.NoError(t, err)
		test(t, s, l, h)
	})
}

const reconnectWait = 100 * time.Millisecond

// live gives a Locker a session, as Run does.
func live(l *Locker) *session {
	s := newSession(l.group)
	s.extend(time.Now(), l.cfg.TTL)
	l.session.Store(s)
	return s
}

// freed is what is to be released, in order.
func freed(l *Locker) (all []release) {
	l.releases.mu.Lock()
	defer l.releases.mu.Unlock()
	for id := uint64(1); id <= l.releases.last; id++ {
		if r := l.releases.pending[id]; r != nil {
			all = append(all, release{subject: r.subject, fence: r.fence, predecessor: r.predecessor})
		}
	}
	return all
}

// expected are the revisions that messages expect.
func expected(sent []*nats.Msg) (revisions []string) {
	for _, m := range sent {
		revisions = append(revisions, m.Header.Get("Nats-Expected-Last-Subject-Sequence"))
	}
	return revisions
}

func sleepFor(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
