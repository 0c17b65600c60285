package reconcilertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Disturbance is what happens while a message is on its way.
type Disturbance string

// What DisturbEverywhere does. In the first seven, the message arrives three seconds after it was sent, and the user acts
// on all objects meanwhile.
const (
	Change   Disturbance = "change"   // their specs change (Scenario.Change)
	Revert   Disturbance = "revert"   // their specs change and change back
	Delete   Disturbance = "delete"   // they are deleted
	Recreate Disturbance = "recreate" // they are deleted, and made again as soon as they are gone
	Retry    Disturbance = "retry"    // a retry is asked for
	Pause    Disturbance = "pause"    // they are paused, for ten seconds
	Join     Disturbance = "join"     // nothing, but a second replica starts, as it does in all others, too

	Kill    Disturbance = "kill"    // the replica dies; what it sent arrives
	Freeze  Disturbance = "freeze"  // the replica is frozen for 15 s, longer than its lease
	Cut     Disturbance = "cut"     // its links are cut for 15 s
	Lose    Disturbance = "lose"    // the message never arrives
	Repeat  Disturbance = "repeat"  // the message arrives twice
	Delay   Disturbance = "delay"   // the message arrives after 40 s, longer than every timeout
	Restart Disturbance = "restart" // the broker is stopped, and started again with what it stored
)

// Disturbances are all of them.
func Disturbances() []Disturbance {
	return []Disturbance{Change, Revert, Delete, Recreate, Retry, Pause, Join, Kill, Freeze, Cut, Lose, Repeat, Delay, Restart}
}

// window is for how long a message that something happens to is on its way.
const window = 3 * time.Second

// DisturbEverywhere runs the scenario with a replica called "victim" and notes each message between it and the broker and
// each request to the API, in both directions; of what is sent again and again, such as pulls, the first two. Then it runs
// the scenario again for each of these messages and each of the disturbances, by default all, lets that happen while the
// message is on its way, starts a second replica called "heir", and checks what came of it: [World.AssertPromises], then
// Scenario.Check. Each is a subtest, named after the disturbance and the message, so that go test -run repeats one alone.
//
// Resync is disabled ([World.DisableResync]), so that what is lost stays lost.
func DisturbEverywhere(t *testing.T, s Scenario, with ...Disturbance) {
	t.Helper()
	if len(with) == 0 {
		with = Disturbances()
	}
	if s.Change == nil {
		with = slices.DeleteFunc(slices.Clone(with), func(d Disturbance) bool { return d == Change || d == Revert })
	}
	var messages []Message
	Run(t, func(t *testing.T, w *World) { messages = w.undisturbed(t, s) })
	for _, d := range with {
		t.Run(string(d), func(t *testing.T) {
			tried, missed := 0, 0
			for _, m := range messages {
				t.Run(m.String(), func(t *testing.T) {
					s.setup()
					tried++
					run(t, jetstream.FileStorage, func(t *testing.T, w *World) {
						if !w.disturbed(t, s, d, m) {
							missed++
						}
					})
				})
			}
			if missed > tried/2 {
				t.Errorf("%d of %d messages did not come again: the scenario must do the same each time", missed, tried)
			}
		})
	}
}

// String is the message as the name of a subtest.
func (m Message) String() string {
	direction := "sent"
	if m.Answer {
		direction = "answered"
	}
	return fmt.Sprintf("%s %s %d", strings.ReplaceAll(m.Subject, "/", "."), direction, m.Nth)
}

// undisturbed runs a scenario, and returns the messages in it.
func (w *World) undisturbed(t *testing.T, s Scenario) (messages []Message) {
	s.setup()
	w.startVictim(s, &crash{})
	s.before(t, w)
	w.Advance(window)
	var mu sync.Mutex
	w.setFate(func(m Message) fate {
		mu.Lock()
		defer mu.Unlock()
		if (m.ofATurn() || m.Nth <= 2) && (s.Only == nil || s.Only(m)) {
			messages = append(messages, m)
		}
		return fate{}
	})
	s.Do(t, w)
	w.RunUntilSettled()
	w.setFate(nil)
	s.verify(t, w)
	return messages
}

// ofATurn reports whether a message is about one object, and none that is sent again and again as long as a replica runs:
// pulls, renewals of the session, looks at the streams.
func (m Message) ofATurn() bool {
	return !strings.HasPrefix(m.Subject, "$JS.API.") && !strings.HasSuffix(m.Subject, ".session")
}

// disturbed runs a scenario with a disturbance at a message, and reports whether there was that message.
func (w *World) disturbed(t *testing.T, s Scenario, d Disturbance, at Message) bool {
	victim := w.startVictim(s, &crash{})
	s.before(t, w)
	w.Advance(window)
	reached := make(chan struct{})
	w.setFate(func(m Message) fate {
		if m != at {
			return fate{}
		}
		close(reached)
		return d.fate()
	})
	s.Do(t, w)
	select {
	case <-reached:
	case <-time.After(idleLimit):
		t.Log("there was no such message this time")
		s.verify(t, w)
		return false
	}
	synctest.Wait()
	w.note("victim", fmt.Sprintf("is disturbed (%s) at %s", d, at))
	finish := w.disturb(t, s, victim, d)
	w.startHeir(s)
	finish()
	w.RunUntilSettled()
	s.verify(t, w)
	return true
}

// fate is what becomes of the message at which a disturbance happens.
func (d Disturbance) fate() fate {
	switch d {
	case Lose:
		return fate{lost: true}
	case Repeat:
		return fate{delay: time.Millisecond, twice: true}
	case Delay:
		return fate{delay: 40 * time.Second}
	}
	return fate{delay: window}
}

// disturb does what is done to a replica or to the objects; finish does the rest of it later.
func (w *World) disturb(t *testing.T, s Scenario, victim *Replica, d Disturbance) (finish func()) {
	outage := func(begin, end func()) func() {
		begin()
		return func() { w.Advance(15 * time.Second); end() }
	}
	toAll := func(do func(c *apiclient.Client[rawJSON, rawJSON], o *apiclient.Raw) error) {
		for _, o := range w.objects() {
			if err := do(Client[rawJSON, rawJSON](w, o.Kind), o); err != nil && !errors.Is(err, apiclient.ErrNotFound) {
				t.Errorf("%s %s/%s: %v", d, o.Kind, o.Name, err)
			}
		}
	}
	switch d {
	case Change:
		s.Change(t, w)
	case Revert:
		before := w.objects()
		s.Change(t, w)
		w.revert(t, before)
	case Delete, Recreate:
		before := w.objects()
		toAll(func(c *apiclient.Client[rawJSON, rawJSON], o *apiclient.Raw) error {
			_, err := c.Delete(t.Context(), o.Name)
			return err
		})
		if d == Recreate {
			return func() { w.recreate(t, before) }
		}
	case Retry:
		toAll(func(c *apiclient.Client[rawJSON, rawJSON], o *apiclient.Raw) error {
			_, err := c.Retry(t.Context(), o.Name)
			return err
		})
	case Pause:
		toAll(func(c *apiclient.Client[rawJSON, rawJSON], o *apiclient.Raw) error {
			_, err := c.Pause(t.Context(), o.Name)
			return err
		})
		return func() {
			w.Advance(10 * time.Second)
			toAll(func(c *apiclient.Client[rawJSON, rawJSON], o *apiclient.Raw) error {
				_, err := c.Resume(t.Context(), o.Name)
				return err
			})
		}
	case Kill:
		victim.Kill()
	case Freeze:
		return outage(victim.Freeze, victim.Thaw)
	case Cut:
		return outage(victim.Cut, victim.Heal)
	case Restart:
		w.restartBroker()
	case Join, Lose, Repeat, Delay:
	}
	return func() {}
}

// revert gives objects the specs that they had before.
func (w *World) revert(t *testing.T, before []*apiclient.Raw) {
	for _, o := range before {
		if o.DeletedAt != nil { // its spec stays
			continue
		}
		if _, err := Client[rawJSON, rawJSON](w, o.Kind).Put(t.Context(), o.Name, o.Spec, apiclient.WithLabels(o.Labels)); err != nil {
			t.Errorf("revert %s/%s: %v", o.Kind, o.Name, err)
		}
	}
}

// recreate makes objects again as soon as they are gone, all of them: one may stay for as long as there is another.
func (w *World) recreate(t *testing.T, objects []*apiclient.Raw) {
	for _, o := range objects {
		c := Client[rawJSON, rawJSON](w, o.Kind)
		w.until("gone", func() string {
			if _, err := c.Get(context.Background(), o.Name); !errors.Is(err, apiclient.ErrNotFound) {
				return fmt.Sprintf("%s/%s is still there (%v)", o.Kind, o.Name, err)
			}
			return ""
		})
	}
	for _, o := range objects {
		c := Client[rawJSON, rawJSON](w, o.Kind)
		if _, err := c.Create(t.Context(), o.Name, o.Spec, apiclient.WithLabels(o.Labels)); err != nil {
			t.Errorf("create %s/%s again: %v", o.Kind, o.Name, err)
		}
	}
}
