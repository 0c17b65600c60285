package reconciler

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/script"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

// joined is a replica with a session, at a server that keeps its locks and what it queues: the turns that a test begins have locks.
type joined struct {
	*replica
	t      *testing.T
	nc     *nats.Conn
	server *script.Server
	names  subject.Names
	jobs   *apiclient.Client[job, job]
	resign func() // ends the session
	// working is the context of turns, which stop ends as a stop does when the grace period is over.
	working context.Context
	stop    context.CancelCauseFunc
	// detached is how often a turn gave its worker away, and crowded whether it may not.
	detached atomic.Int64
	crowded  bool

	meeting sync.Mutex
	meet    func(*http.Request) (*http.Response, error) // each request of the replica to the API; nil, nil lets it pass
	sent    []string                                    // the methods of those requests
}

func (s *joined) RoundTrip(r *http.Request) (*http.Response, error) {
	s.meeting.Lock()
	meet := s.meet
	s.sent = append(s.sent, r.Method)
	s.meeting.Unlock()
	if meet != nil {
		if answer, err := meet(r); answer != nil || err != nil {
			return answer, err
		}
	}
	return s.api.Client().Transport.RoundTrip(r)
}

// requests are the methods of the requests to the API since the last call.
func (s *joined) requests() []string {
	s.meeting.Lock()
	defer s.meeting.Unlock()
	sent := s.sent
	s.sent = nil
	return sent
}

// join runs f with a replica that has a session, in virtual time.
func join(t *testing.T, f func(t *testing.T, s *joined), controllers ...Controller) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server, nc := script.New(t, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		s := &joined{t: t, nc: nc, server: server}
		s.replica = newReplica(t, func(c *Config) { c.NATS, c.HTTP = nc, &http.Client{Transport: s} }, controllers...)
		s.names = subject.Names{Prefix: s.cfg.Prefix}
		server.Keep("KV_"+s.names.LockBucket(), "$KV."+s.names.LockBucket()+".", `{"max_msgs_per_subject":1,"discard":"new"}`)
		server.Keep(s.names.WorkStream(), s.cfg.Prefix+".", `{"num_replicas":1}`)
		s.server.Answer(s.consumers("jobs"), s.state("n", 0))
		s.has(0)
		s.working, s.stop = context.WithCancelCause(t.Context())
		defer s.stop(nil)
		var err error
		s.jobs, err = apiclient.New[job, job](apiclient.Config{URL: "http://api.test", HTTP: s.api.Client()}, "jobs")
		require.NoError(t, err)
		for _, k := range s.kinds {
			require.NoError(t, k.open(t.Context()))
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.locker.Run(ctx) }()
		s.resign = sync.OnceFunc(func() {
			cancel()
			require.NoError(t, <-done)
		})
		defer s.resign()
		synctest.Wait()
		require.True(t, s.locker.Ready())
		s.events()
		s.lines()
		f(t, s)
	})
}

// consumers is the request for what a consumer of jobs has come to, or the start of it for both.
func (s *joined) consumers(name string) string {
	return "$JS.API.CONSUMER.INFO." + s.names.WorkStream() + "." + name
}

// state is what a consumer has come to: it has delivered all, has been told of nothing, and so many wait.
func (s *joined) state(lane string, pending int) string {
	return fmt.Sprintf(`{"num_pending":%d,"ack_floor":{"stream_seq":0},"delivered":{"stream_seq":100},"config":{`+
		`"filter_subject":"%s.%s.jobs.>","ack_wait":10000000000,"max_ack_pending":-1,"max_deliver":-1}}`, pending, s.cfg.Prefix, lane)
}

// has says how many finds of searches wait to be worked off, at one look after the other.
func (s *joined) has(later ...int) {
	var states []string
	for _, n := range later {
		states = append(states, s.state("r", n))
	}
	s.server.Answer(s.consumers("jobs_later"), states...)
}

// rival is another replica's locker.
func (s *joined) rival() (l *lock.Locker, resign func()) {
	s.t.Helper()
	l, err := lock.New(s.nc, lock.Config{Bucket: s.names.LockBucket(), Holder: "b"})
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	synctest.Wait()
	require.True(s.t, l.Ready())
	return l, func() {
		cancel()
		require.NoError(s.t, <-done)
	}
}

// put stores an object.
func (s *joined) put(name string) *apiclient.Object[job, job] {
	s.t.Helper()
	o, err := s.jobs.Put(s.t.Context(), name, job{"size": 1})
	require.NoError(s.t, err)
	return o
}

// begin is a turn of an object that has been taken and read.
func (s *joined) begin(name string) *run {
	s.t.Helper()
	r := s.take(name)
	require.True(s.t, r.read())
	return r
}

// take is a turn of an object that has been taken.
func (s *joined) take(name string) *run {
	s.t.Helper()
	lk, err := s.locker.TryLock(s.working, s.kinds[0].lockKey(name))
	require.NoError(s.t, err)
	return newRun(s.kinds[0], &turn{
		name: name, deliveries: []*notify.Delivery{{Kind: "jobs", Name: name, Reason: "changed"}},
		detach: func() bool {
			s.detached.Add(1)
			return !s.crowded
		},
	}, lk)
}

// free takes the lock of an object away.
func (s *joined) free(name string) {
	s.server.Lose("$KV." + s.names.LockBucket() + ".lock." + s.kinds[0].lockKey(name))
}

// queued counts what is stored for an object: messages for later, and notifications.
func (s *joined) queued(name string) (later, now int) {
	return len(s.server.Kept(s.names.Schedule("jobs", name))), len(s.server.Kept(s.names.Fresh("jobs", name)))
}

// always runs something that goes on until its context ends, and returns what ends it.
func (s *joined) always(f func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() { f(ctx); close(done) }()
	return func() {
		cancel()
		<-done
	}
}
