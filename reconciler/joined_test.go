package reconciler

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/broker"
	"github.com/evenkeel-io/evenkeel/internal/broker/bubble"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
)

// joined is a replica with a broker, in virtual time: the turns that a test begins have real locks.
type joined struct {
	*replica
	t      *testing.T
	nc     *nats.Conn
	server *server.Server
	jobs   *apiclient.Client[job, job]
	resign func() // ends the session

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

// join runs f with a replica that has a session.
func join(t *testing.T, f func(t *testing.T, s *joined), controllers ...Controller) {
	t.Helper()
	bubble.Run(t, func(t *testing.T) {
		srv, err := broker.Start(t.TempDir(), "")
		require.NoError(t, err)
		defer broker.Stop(srv)
		nc, err := broker.Connect(srv, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		require.NoError(t, err)
		defer nc.Close()
		s := &joined{t: t, nc: nc, server: srv}
		s.replica = newReplica(t, func(c *Config) { c.NATS, c.HTTP = nc, &http.Client{Transport: s} }, controllers...)
		s.jobs, err = apiclient.New[job, job](apiclient.Config{URL: "http://api.test", HTTP: s.api.Client()}, "jobs")
		require.NoError(t, err)
		require.NoError(t, s.prepare(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.locker.Run(ctx) }()
		s.resign = sync.OnceFunc(func() {
			cancel()
			require.NoError(t, <-done)
		})
		defer s.resign()
		s.ready(s.locker)
		s.events()
		s.lines()
		f(t, s)
	})
}

func (s *joined) ready(l *lock.Locker) {
	for !l.Ready() {
		time.Sleep(time.Millisecond)
	}
}

// rival is another replica's locker.
func (s *joined) rival() (l *lock.Locker, resign func()) {
	s.t.Helper()
	l, err := lock.New(s.nc, lock.Config{Bucket: subject.Names{Prefix: s.cfg.Prefix}.LockBucket(), Holder: "b"})
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	s.ready(l)
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
	lk, err := s.locker.TryLock(s.t.Context(), s.kinds[0].lockKey(name))
	require.NoError(s.t, err)
	return newRun(s.kinds[0], &turn{name: name, deliveries: []*notify.Delivery{{Kind: "jobs", Name: name, Reason: "changed"}}}, lk)
}

// deliver has an object notified, and returns the notification, which nobody has taken.
func (s *joined) deliver(name string) *notify.Delivery {
	s.t.Helper()
	require.NoError(s.t, s.Notify(s.t.Context(), "jobs", name, "asked for"))
	ctx, cancel := context.WithCancel(s.t.Context())
	var got *notify.Delivery
	require.NoError(s.t, s.kinds[0].consumer.Run(ctx, func(d *notify.Delivery) {
		got = d
		cancel()
	}))
	return got
}

// queued counts what is stored for an object: messages for later, and notifications.
func (s *joined) queued(name string) (later, now int) {
	s.t.Helper()
	js, err := s.nc.JetStream()
	require.NoError(s.t, err)
	names := subject.Names{Prefix: s.cfg.Prefix}
	info, err := js.StreamInfo(names.WorkStream(), &nats.StreamInfoRequest{SubjectsFilter: ">"})
	require.NoError(s.t, err)
	return int(info.State.Subjects[names.Schedule("jobs", name)]), int(info.State.Subjects[names.Fresh("jobs", name)])
}
