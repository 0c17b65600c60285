package notify

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/internal/script"
)

// Answers of the server.
const stored = `{"stream":"evenkeel_work","seq":7}`

var (
	wrongSequence = script.Error(400, 10071, "wrong last sequence: 7")
	noMessage     = script.Error(404, 10037, "no message found")
	noStream      = script.Error(404, 10059, "stream not found")
	unavailable   = script.Error(503, 10008, "temporarily unavailable")
)

// Subjects of requests to the server.
const (
	getMessage    = "$JS.API.STREAM.MSG.GET.evenkeel_work"
	deleteMessage = "$JS.API.STREAM.MSG.DELETE."
	streamInfoOf  = "$JS.API.STREAM.INFO."
	consumerInfo  = "$JS.API.CONSUMER.INFO.evenkeel_work.widgets"
	laterInfo     = consumerInfo + "_later"
)

// scripted runs a test in virtual time, with a server that is told what to say.
func scripted(t *testing.T, test func(t *testing.T, s *script.Server, nc *nats.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, nc := script.New(t, nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(0, 0))
		test(t, s, nc)
	})
}

const reconnectWait = errorPause

// cut ends the connection and has the client connect again.
func cut(s *script.Server, nc *nats.Conn) {
	s.Cut()
	synctest.Wait()
	s.SetDown(false)
	for !nc.IsConnected() {
		sleepFor(reconnectWait)
	}
}

// heard is what a consumer calls.
type heard struct {
	mu      sync.Mutex
	errs    []string
	missing int
	changed []string
}

func (h *heard) onError(doing string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, fmt.Sprintf("%s: %v", doing, err))
}

func (h *heard) onMissing() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.missing++
}

func (h *heard) onChanged(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = append(h.changed, what)
}

// drain returns what was heard since the last call.
func (h *heard) drain() (errs []string, missing int, changed []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	errs, missing, changed = h.errs, h.missing, h.changed
	h.errs, h.missing, h.changed = nil, 0, nil
	return errs, missing, changed
}

// consumer is one of widgets with four workers, all of which are free.
func consumer(t *testing.T, s *script.Server, nc *nats.Conn) (*Consumer, *heard) {
	t.Helper()
	h := &heard{}
	s.Answer(streamInfoOf, `{"created":"2026-01-02T03:04:05Z","config":{"num_replicas":1},"state":{"first_seq":1}}`)
	c, err := NewConsumer(t.Context(), nc, ConsumerConfig{
		Kind: "widgets", MaxFree: 4, Free: func() int { return 4 }, OnError: h.onError, OnMissing: h.onMissing, OnChanged: h.onChanged,
	})
	require.NoError(t, err)
	return c, h
}
