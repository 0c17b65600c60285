package crash

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// witness hears what the controller does.
type witness struct {
	mu        sync.Mutex
	events    map[string][]string  // by object, the last ones
	farewells map[string]time.Time // by object: when the controller last saw that it is gone, or cleaned it up
	forgotten []string             // objects that nobody had told it of, and what it had done to them
}

func newWitness() *witness {
	return &witness{events: map[string][]string{}, farewells: map[string]time.Time{}}
}

func (w *witness) hear(line []byte) {
	var e event
	ok := json.Unmarshal(line, &e) == nil
	w.mu.Lock()
	defer w.mu.Unlock()
	o := e.Kind + "/" + e.Name
	if w.events[o] = append(w.events[o], fmt.Sprintf("%s %s %s", e.At.Format(time.StampMicro), e.Step, e.Text)); len(w.events[o]) > 60 {
		w.events[o] = slices.Delete(w.events[o], 0, 30)
	}
	switch {
	case !ok:
	case e.Step == reconciler.StepResynced:
		w.forgotten = append(w.forgotten, o+":\n"+strings.Join(w.events[o], "\n"))
	case e.Step == reconciler.StepSkipped && strings.Contains(e.Text, "gone"), e.Step == reconciler.StepFinished && e.Deleting:
		w.farewells[o] = e.At
	}
}

// tell tells what the controller last did to an object, and to none.
func (w *witness) tell(o string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(slices.Concat(w.events[o], w.events["/"]), "\n")
}

// found are the objects that the controller's search for forgotten ones has found.
func (w *witness) found() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.forgotten)
}

// missed returns an error if the controller has not looked at an object since its deletion was asked for.
func (w *witness) missed(o *object) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.farewells[o.String()]; at.Before(o.deletedAt) {
		return fmt.Errorf("the controller has not heard that %s was deleted at %s; it last did: %s", o, o.deletedAt, strings.Join(w.events[o.String()], "\n"))
	}
	return nil
}

// check waits until everything is settled, with nothing but the processes' own doing, and compares it with what was answered.
func (s *storm) check(ctx context.Context) {
	until := time.Now().Add(patience)
	for {
		err := s.unsettled(ctx)
		if err == nil {
			break
		}
		if time.Now().After(until) {
			require.NoError(s.t, err, "not settled within %s", patience)
		}
		pause(ctx, 20*time.Millisecond)
	}
	require.Empty(s.t, s.witness.found(), "only the search for forgotten objects found these: their notifications were lost")

	found := map[string]*stored{}
	for kind, c := range s.traffic.clients {
		for o, err := range c.All(ctx) {
			require.NoError(s.t, err)
			found[kind+"/"+o.Name] = o
		}
		for value := range labels {
			for o, err := range c.All(ctx, apiclient.Labeled(label(value))) {
				require.NoError(s.t, err)
				require.Equal(s.t, label(value), o.Labels, o.Name)
				found[kind+"/"+o.Name].Labels = nil // seen
			}
		}
	}
	tally := map[string]int{}
	for _, w := range s.writers {
		tally[w.name] = w.tally
		if w.tally == 0 {
			delete(tally, w.name)
		}
	}
	require.Equal(s.t, tally, found[plain+"/"+shared].Spec.Tally, "a write of one of several writers is lost")
	for name, o := range found {
		require.Nil(s.t, o.Labels, "%s is not in the list of its label", name)
	}
	delete(found, plain+"/"+shared)
	for _, o := range s.objects() {
		have := found[o.String()]
		delete(found, o.String())
		if !o.there {
			require.Nil(s.t, have, "%s is back, its deletion was answered", o)
			continue
		}
		require.NotNil(s.t, have, "%s is lost, value %d was answered", o, o.value)
		have.Labels = label(o.value)
		require.NoError(s.t, o.compare(have))
	}
	require.Empty(s.t, found, "nobody made these")
}

// objects are those that writers have ever written to, each name once.
func (s *storm) objects() []*object {
	var all []*object
	for _, w := range s.writers {
		all = append(all, slices.Concat(w.past, w.slots)...)
	}
	return all
}

// unsettled says what is not as it must be in the end, nil if everything is.
func (s *storm) unsettled(ctx context.Context) error {
	for kind, c := range s.traffic.clients {
		for o, err := range c.Unsettled(ctx, 0) {
			if err != nil {
				return err
			}
			return fmt.Errorf("%s/%s is owed a reconcile: %+v\n%s", kind, o.Name, o, s.witness.tell(kind+"/"+o.Name))
		}
		for o, err := range c.All(ctx) {
			if err != nil {
				return err
			}
			r := o.Reconciliation
			if o.DeletedAt != nil || r.State != apiclient.StateReady || r.ObservedGeneration != o.Generation || !reflect.DeepEqual(o.Spec, o.Status) {
				return fmt.Errorf("%s/%s is not ready: %+v\n%s", kind, o.Name, o, s.witness.tell(kind+"/"+o.Name))
			}
		}
	}
	for _, o := range s.objects() {
		if o.there || o.generation == 0 {
			continue
		}
		if err := s.witness.missed(o); err != nil {
			return err
		}
	}
	return s.untold(ctx)
}

// untold looks past the API at its list of what controllers have not been told of.
func (s *storm) untold(ctx context.Context) (err error) {
	driver, name := "pgx", s.store
	if path, ok := strings.CutPrefix(s.store, "sqlite:"); ok {
		driver, name = "sqlite", "file:"+path+"?_pragma=query_only(1)&_pragma=busy_timeout(2000)"
	}
	db, err := sql.Open(driver, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var n int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM objects WHERE gone OR notified_revision < notify_revision`).Scan(&n); err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("controllers have not been told of %d objects", n)
	}
	return nil
}
