package reconcilertest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

// Scenario is something that must come out right even if the replica that does it dies at any point.
type Scenario struct {
	// Setup makes anew what the functions change outside of the World. It is called before each run; nil does nothing.
	Setup func()
	// Controllers makes the controllers of one replica. It is called for each replica of each run.
	Controllers func() []reconciler.Controller
	// Beside returns what runs beside a replica of those controllers, until it dies or stops: watches that notify of what they
	// hear ([Replica.Notify]), say. It is called right after Controllers, before the replica runs. Nil: nothing does.
	Beside func(r *Replica) (run func(ctx context.Context))
	// Before brings the World to where Do begins. Nothing goes wrong in it. Nil does nothing.
	Before func(t *testing.T, w *World)
	// Do changes objects; the World is then run until it is settled. For DisturbEverywhere it must let no time pass, or the
	// disturbance comes when it has returned, and the message may have arrived.
	Do func(t *testing.T, w *World)
	// Only chooses the messages that DisturbEverywhere disturbs. Nil: all.
	Only func(Message) bool
	// Change changes the specs of these objects; only for DisturbEverywhere. Nil leaves specs as they are.
	Change func(t *testing.T, w *World)
	// Check looks at what came of it; nil checks only the promises (AssertPromises).
	Check func(t *testing.T, w *World)
}

func (s Scenario) setup() {
	if s.Setup != nil {
		s.Setup()
	}
}

func (s Scenario) before(t *testing.T, w *World) {
	t.Helper()
	if s.Before != nil {
		s.Before(t, w)
	}
}

// startVictim starts the replica to which something happens, in a World whose replicas do not search for missed objects.
func (w *World) startVictim(s Scenario, c *crash) *Replica {
	controllers := s.Controllers()
	w.DisableResync(kindsOf(controllers)...)
	return w.start("victim", start{crash: c, beside: s.Beside}, controllers)
}

func (w *World) startHeir(s Scenario) {
	w.start("heir", start{crash: &crash{}, beside: s.Beside}, s.Controllers())
}

// verify checks what came of it.
func (s Scenario) verify(t *testing.T, w *World) {
	t.Helper()
	w.AssertPromises()
	if s.Check != nil {
		s.Check(t, w)
	}
}

// CrashEverywhere runs the scenario with a replica called "victim" that is killed right before its first side effect after
// Scenario.Before (a request that changes something at the API or the broker, or of [Request]), and again with it killed right
// after, then its second, and so on until it lives to the end. A second replica, "heir", starts after each kill. Resync is
// disabled, as in [DisturbEverywhere]. It returns how many places of death were tried.
func CrashEverywhere(t *testing.T, s Scenario) (deaths int) {
	t.Helper()
	for n := 1; ; n++ {
		for _, before := range []bool{true, false} {
			died := false
			s.setup()
			Run(t, func(t *testing.T, w *World) {
				died = w.crashAt(t, s, n, before)
			})
			if t.Failed() || !died {
				return deaths
			}
			deaths++
		}
	}
}

func (w *World) crashAt(t *testing.T, s Scenario, n int, before bool) (died bool) {
	victim := w.startVictim(s, &crash{before: before})
	defer func() {
		if why := victim.crash.describe(); t.Failed() && why != "" {
			t.Logf("the victim %s", why)
		}
	}()
	s.before(t, w)
	victim.crash.begin(n)
	s.Do(t, w)
	w.until("settled or dead", func() string {
		if victim.crash.happened() {
			return ""
		}
		return w.unsettled()
	})
	if died = victim.crash.end(); died {
		victim.killed = true
		w.startHeir(s)
	}
	w.RunUntilSettled()
	s.verify(t, w)
	return died
}

// crash kills a replica at one of its side effects, once it has begun.
type crash struct {
	before bool

	mu   sync.Mutex
	at   int // 1 for the first, 0 for none
	seen int
	dead bool
	what string // number and name of the side effect at which it died
}

// effect does something that a replica's request does to the world outside, and kills the replica if it is the one. what
// names the side effect; what has no name is none.
func (r *Replica) effect(what string, do func() error) error {
	if what == "" {
		return do()
	}
	c := r.crash
	c.mu.Lock()
	c.seen++
	mine := c.seen == c.at
	c.mu.Unlock()
	if mine && c.before {
		c.die(r, what)
		return errCut
	}
	err := do()
	if mine {
		c.die(r, what)
		return errCut
	}
	return err
}

// begin counts side effects from now on.
func (c *crash) begin(at int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.seen = at, 0
}

func (c *crash) die(r *Replica, what string) {
	c.mu.Lock()
	c.dead, c.what = true, fmt.Sprintf("%d, %s", c.at, what)
	c.mu.Unlock()
	r.w.note(r.Name, c.describe())
	r.die()
}

// describe says where the replica died; nothing if it lives.
func (c *crash) describe() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	when := "after"
	if c.before {
		when = "before"
	}
	if !c.dead {
		return ""
	}
	return fmt.Sprintf("dies right %s its side effect %s", when, c.what)
}

// end reports whether the replica has been killed; if not, it will not be.
func (c *crash) end() (happened bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = 0
	return c.dead
}

func (c *crash) happened() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}
