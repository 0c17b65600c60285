package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

const (
	writers = 6
	slots   = 12  // objects of each writer at a time, half of each kind
	alone   = 150 // how many objects each writer leaves alone for good after some write, which nothing makes up for if it is lost
	labels  = 3   // values of the one label
	// shared is the object that all writers write to.
	shared = "shared"
)

type (
	client = apiclient.Client[want, want]
	stored = apiclient.Object[want, want]
)

// object is what its only writer knows of it: what the last answer said.
type object struct {
	kind, name           string
	there                bool
	value                int
	generation, revision int64
	deletedAt            time.Time // when its deletion was first asked for, if it is not there
}

func (o *object) String() string { return o.kind + "/" + o.name }

// label is the value of the one label of an object with that value.
func label(value int) map[string]string {
	return map[string]string{"rest": strconv.Itoa(value % labels)}
}

// traffic is what the writers have in common.
type traffic struct {
	clients  map[string]*client // by kind
	answered atomic.Int64       // writes, with success
	refused  atomic.Int64       // calls that found nobody, or nobody who could
}

// call repeats a call until it is answered. Before the last try the outcome of earlier ones is unknown.
func (t *traffic) call(ctx context.Context, do func() error) (tries int, err error) {
	for tries = 1; ; tries++ {
		err := do()
		if !errors.Is(err, apiclient.ErrUnavailable) {
			return tries, err
		}
		if ctx.Err() != nil {
			return tries, context.Cause(ctx)
		}
		t.refused.Add(1)
		pause(ctx, 20*time.Millisecond)
	}
}

// pause waits in real time: what is waited for is in other processes.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// writer writes to objects of its own, one write after the other, so that it knows what each of them must be; and to a
// field of its own of the shared one.
type writer struct {
	*traffic
	name  string
	rng   *rand.Rand
	slots []*object
	past  []*object // objects that are not written to any more
	made  int       // names
	value int       // the last one given
	tally int
}

func newWriter(t *traffic, name string, seed uint64) *writer {
	w := &writer{traffic: t, name: name, rng: rand.New(rand.NewPCG(seed, 1))}
	for i := range slots {
		w.slots = append(w.slots, &object{kind: []string{plain, kept}[i%2], name: w.newName()})
	}
	return w
}

func (w *writer) newName() string {
	w.made++
	return fmt.Sprintf("%s-%d", w.name, w.made)
}

// run writes until it is told to stop, and returns what an answer had wrong.
func (w *writer) run(ctx context.Context, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := w.step(ctx); err != nil {
			return fmt.Errorf("writer %s: %w", w.name, err)
		}
		pause(ctx, rand.N(5*time.Millisecond)) // leaves the processor to the other processes
	}
}

// step reads one of the objects, which must be as the last answer said, and writes to it.
func (w *writer) step(ctx context.Context) error {
	if w.rng.IntN(8) == 0 {
		return w.count(ctx)
	}
	slot := &w.slots[w.rng.IntN(slots)]
	o := *slot
	have, err := w.read(ctx, o)
	switch {
	case err != nil:
		return err
	case !o.there && have != nil: // its cleanup is not done
		return nil
	case o.there && len(w.past) < alone && w.rng.IntN(6) == 0, !o.there && o.generation > 0 && w.rng.IntN(2) == 0:
		w.past = append(w.past, o)
		*slot = &object{kind: o.kind, name: w.newName()}
		return w.create(ctx, *slot)
	case !o.there: // perhaps the same name again
		return w.create(ctx, o)
	}
	switch n := w.rng.IntN(10); {
	case n < 2:
		return w.remove(ctx, o)
	case n < 6:
		return w.put(ctx, o)
	default:
		return w.patch(ctx, o)
	}
}

// read reads an object and compares it with what was answered. It returns nil if the object is not there.
func (w *writer) read(ctx context.Context, o *object) (have *stored, err error) {
	_, err = w.call(ctx, func() (err error) {
		have, err = w.clients[o.kind].Get(ctx, o.name)
		return err
	})
	if errors.Is(err, apiclient.ErrNotFound) {
		if o.there {
			return nil, fmt.Errorf("%s is lost: value %d at generation %d was answered, and it is not there", o, o.value, o.generation)
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return have, o.compare(have)
}

// compare says how an object that was read differs from what was answered.
func (o *object) compare(have *stored) error {
	switch {
	case !o.there && have.DeletedAt != nil:
		return nil
	case !o.there:
		return fmt.Errorf("%s is back: its deletion was answered, and it has value %d at generation %d", o, have.Spec.Value, have.Generation)
	case have.DeletedAt != nil:
		return fmt.Errorf("%s is being deleted, and nobody asked for it", o)
	case have.Spec.Value != o.value || have.Generation != o.generation || have.Revision < o.revision || have.Labels["rest"] != label(o.value)["rest"]:
		return fmt.Errorf("%s is at value %d, labels %v, generation %d, revision %d; answered were value %d, generation %d, revision %d",
			o, have.Spec.Value, have.Labels, have.Generation, have.Revision, o.value, o.generation, o.revision)
	}
	return nil
}

// note takes an answer for what the object is from now on, and says what is wrong with it.
func (w *writer) note(o *object, have *stored, generation int64) error {
	before := o.revision
	o.there, o.value, o.generation, o.revision = true, w.value, generation, have.Revision
	if have.Revision <= before {
		return fmt.Errorf("%s: a write was answered with revision %d, the one before it with %d", o, have.Revision, before)
	}
	w.answered.Add(1)
	return o.compare(have)
}

func (w *writer) create(ctx context.Context, o *object) error {
	w.value++
	spec := want{Value: w.value}
	var have *stored
	tries, err := w.call(ctx, func() (err error) {
		if w.rng.IntN(2) == 0 {
			have, err = w.clients[o.kind].Put(ctx, o.name, spec, apiclient.WithLabels(label(w.value)))
		} else {
			have, err = w.clients[o.kind].Create(ctx, o.name, spec, apiclient.WithLabels(label(w.value)))
		}
		return err
	})
	if errors.Is(err, apiclient.ErrExists) && tries > 1 { // an earlier try took effect
		_, err = w.call(ctx, func() (err error) {
			have, err = w.clients[o.kind].Get(ctx, o.name)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("try %d: %w", tries, err)
	}
	return w.note(o, have, 1)
}

func (w *writer) put(ctx context.Context, o *object) error {
	w.value++
	var have *stored
	tries, err := w.call(ctx, func() (err error) {
		have, err = w.clients[o.kind].Put(ctx, o.name, want{Value: w.value}, apiclient.WithLabels(label(w.value)))
		return err
	})
	if err != nil {
		return fmt.Errorf("try %d: %w", tries, err)
	}
	return w.note(o, have, o.generation+1)
}

func (w *writer) patch(ctx context.Context, o *object) error {
	w.value++
	var have *stored
	tries, err := w.call(ctx, func() (err error) {
		have, err = w.clients[o.kind].Patch(ctx, o.name, map[string]int{"value": w.value}, apiclient.WithLabels(label(w.value)))
		return err
	})
	if err != nil {
		return fmt.Errorf("try %d: %w", tries, err)
	}
	return w.note(o, have, o.generation+1)
}

func (w *writer) remove(ctx context.Context, o *object) error {
	o.deletedAt = time.Now()
	tries, err := w.call(ctx, func() error {
		_, err := w.clients[o.kind].Delete(ctx, o.name)
		return err
	})
	if err != nil && (tries == 1 || !errors.Is(err, apiclient.ErrNotFound)) { // not found: an earlier try took effect
		return fmt.Errorf("try %d: %w", tries, err)
	}
	o.there = false
	w.answered.Add(1)
	return nil
}

// count writes to the shared object.
func (w *writer) count(ctx context.Context) error {
	w.tally++
	var have *stored
	tries, err := w.call(ctx, func() (err error) {
		have, err = w.clients[plain].Patch(ctx, shared, map[string]map[string]int{"tally": {w.name: w.tally}})
		return err
	})
	if err != nil {
		return fmt.Errorf("try %d: %w", tries, err)
	}
	w.answered.Add(1)
	if have.Spec.Tally[w.name] != w.tally {
		return fmt.Errorf("%s/%s: the count of %s was answered with %d, not %d", plain, shared, w.name, have.Spec.Tally[w.name], w.tally)
	}
	return nil
}
