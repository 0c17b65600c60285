package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// afterRead calls f once, when the API has answered a replica's read of an object and before the replica sees the answer.
type afterRead struct {
	next   http.RoundTripper
	path   string
	f      func()
	before bool // the read instead
	again  bool // f wants to be called once more
}

func (a *afterRead) install(cfg *reconciler.Config) {
	a.next = cfg.HTTP.Transport
	cfg.HTTP = &http.Client{Transport: a}
}

func (a *afterRead) RoundTrip(req *http.Request) (*http.Response, error) {
	f := a.f
	if f == nil || req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, a.path) {
		return a.next.RoundTrip(req)
	}
	if a.before {
		a.f = nil
		f()
		return a.next.RoundTrip(req)
	}
	resp, err := a.next.RoundTrip(req)
	a.f, a.again = nil, false
	if f(); a.again {
		a.f = f
	}
	return resp, err
}

// P1: the notification is removed before the object is read, so that a change which the read did not see is queued: no
// notification that is about to be removed refuses it.
func TestNothingIsLostOfAChangeRightAfterTheRead(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		read := &afterRead{path: "/jobs/x", f: func() { s.put("x", job{Value: 2}) }}
		s.StartWith("a", read.install, reconciler.For("jobs", work))
		s.put("x", job{Value: 1})
		s.Advance(5 * time.Second)
		require.Nil(t, read.f)
		require.Equal(t, 2, s.get("x").Status.Value)
		require.Len(t, s.runs("x"), 2)
	})
}

// P1: an object whose notification may have been removed or not is queued again, and not read before: if the removal
// arrived later, it could remove the notification of a change that the read did not see.
func TestUncertainTakeIsQueuedAgain(t *testing.T) {
	for name, fault := range map[string]reconcilertest.BrokerFault{
		"it did not arrive":  {},
		"its answer did not": {Lose: true},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				s.Start("a", reconciler.For("jobs", work))
				s.Advance(2 * time.Second)
				fault.Subject, fault.Times = "$JS.ACK.", 1
				s.FailBroker(fault)
				s.put("x", job{Value: 1})
				s.FailBroker(reconcilertest.BrokerFault{Replica: "a", Subject: "evenkeel.n.jobs.", Times: 1}) // nor does the first hand-over
				s.Advance(20 * time.Second)
				steps := s.Timeline().Of("jobs", "x").Only(reconciler.StepHandedOver, reconciler.StepStarted).Steps()
				require.GreaterOrEqual(t, len(steps), 2)
				require.Equal(t, []reconciler.Step{reconciler.StepHandedOver, reconciler.StepStarted}, steps[:2])
				require.Equal(t, 1, s.get("x").Status.Value)
			})
		})
	}
}

// A look that was asked for is not forgotten when another notification of the object, which asks for none, is taken with it.
func TestAskedLookIsDoneThoughResyncCameAfterIt(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Millis: 10_000, Value: 1})
		s.Advance(2 * time.Second)
		require.NoError(t, a.Runner.Notify(t.Context(), "jobs", "x", "a watch fired"))
		s.Advance(time.Second)
		nc, _ := s.broker()
		publisher, err := notify.NewPublisher(nc, notify.Config{})
		require.NoError(t, err)
		_, err = publisher.PublishLater(t.Context(), "jobs", "x", "resync")
		require.NoError(t, err)
		s.RunUntilSettled()
		require.Len(t, s.runs("x"), 2)
	})
}

// P1, P3: the lock of a replica that died is freed only when its object is queued again, also if that fails at first.
func TestTakeoverThatCouldNotBeQueuedIsRepeated(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		a := s.Start("a", reconciler.For("jobs", work))
		s.put("x", job{Millis: 20_000, Value: 1})
		s.Advance(time.Second)
		s.Start("b", reconciler.For("jobs", work))
		s.FailBroker(reconcilertest.BrokerFault{Replica: "b", Subject: "evenkeel.n.jobs.", Times: 1})
		a.Kill()
		s.Advance(30 * time.Second)
		require.Len(t, s.Timeline().By("b").Runs(), 1)
	})
}

// A notification can be delivered to two replicas: it comes again when word that the first one still waits for the lock is
// lost. Whoever gets the lock second finds the notification gone and the object settled, and does not call the function.
func TestNotificationThatAnotherReplicaTookCallsNobody(t *testing.T) {
	controller := func() reconciler.Controller {
		c := reconciler.For("jobs", work)
		c.Workers = 1
		return c
	}
	for name, c := range map[string]struct {
		second string // the replica whose worker is busy when the lock is released
		y      int    // for how many milliseconds b's worker is busy with another object
	}{
		"the first to get it is late": {second: "b", y: 20_000},
		"the second to get it is":     {second: "c", y: 9_500},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s scenario) {
				s.Start("a", controller())
				s.put("x", job{Millis: 12_000, Value: 1})
				s.Advance(time.Second)
				s.Start("b", controller())
				s.put("x", job{Value: 2})
				s.Advance(time.Second) // b waits for the lock, and its worker is free
				s.put("y", job{Millis: c.y})
				s.Advance(time.Second)
				s.FailBroker(reconcilertest.BrokerFault{Replica: "b", Subject: "$JS.ACK.", Times: 3})
				s.Start("c", controller())
				s.Advance(8200 * time.Millisecond) // c waits for it, too
				if c.second == "c" {
					s.put("z", job{Millis: 1500})
				}
				s.RunUntilSettled()
				s.Advance(time.Minute)
				x := s.Timeline().Of("jobs", "x")
				require.Len(t, x.By(c.second).Only(reconciler.StepContended), 1)
				require.Len(t, x.By(c.second).Only(reconciler.StepLocked), 1)
				require.Empty(t, x.By(c.second).Runs())
				require.Len(t, x.Runs(), 2)
				require.Equal(t, 2, s.get("x").Status.Value)
				s.AssertPromises()
			})
		})
	}
}
