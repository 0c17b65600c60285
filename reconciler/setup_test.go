package reconciler

import (
	"context"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
)

// replica is a runner without a broker: its connection was never made, so it gets no lock session, and each turn that it begins
// ends at the lock. Its API is in memory.
type replica struct {
	*Runner
	api *apitest.Memory

	mu     sync.Mutex
	seen   []Event
	logged []string
	hold   map[string]chan struct{} // an event of an object in it waits until the channel is closed
}

func newReplica(t *testing.T, change func(*Config), controllers ...Controller) *replica {
	t.Helper()
	s := &replica{hold: map[string]chan struct{}{}}
	s.api = apitest.NewMemory(func(context.Context, string, string, string) error { return nil })
	cfg := Config{
		NATS: &nats.Conn{Opts: nats.Options{MaxReconnect: -1}}, API: "http://api.test", HTTP: s.api.Client(), Name: "a", Observer: s.observe,
		Logger: funcr.NewJSON(func(line string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.logged = append(s.logged, line)
		}, funcr.Options{}),
	}
	if change != nil {
		change(&cfg)
	}
	if len(controllers) == 0 {
		controllers = []Controller{jobs()}
	}
	var err error
	s.Runner, err = New(cfg, controllers...)
	require.NoError(t, err)
	return s
}

type job = map[string]any

func jobs() Controller { return For("jobs", doNothing) }

func doNothing(context.Context, *apiclient.Object[job, job]) (Result, error) { return Result{}, nil }

func (s *replica) observe(e Event) {
	s.mu.Lock()
	s.seen = append(s.seen, e)
	held := s.hold[e.Name]
	s.mu.Unlock()
	if held != nil {
		<-held
	}
}

// events takes what was emitted since the last call.
func (s *replica) events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

// lines takes what was logged since the last call, each line as JSON.
func (s *replica) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	logged := s.logged
	s.logged = nil
	return logged
}

// names are those of the events, in order.
func names(events []Event) (names []string) {
	for _, e := range events {
		names = append(names, e.Name)
	}
	return names
}
