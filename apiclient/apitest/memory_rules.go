package apitest

import (
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// find returns the row of an object that is there. Callers hold mu.
func (m *Memory) find(k objects.Key) (*row, error) {
	if r := m.rows[k]; r != nil && !r.gone {
		return r, nil
	}
	return nil, objects.NotFound(k)
}

// create makes an object, also in place of a tombstone. Callers hold mu.
func (m *Memory) create(k objects.Key, w objects.Wanted) (apiclient.Raw, error) {
	if _, err := m.find(k); err == nil {
		return apiclient.Raw{}, objects.Exists(k)
	}
	o, err := objects.New(k, w)
	if err != nil {
		return o, err
	}
	m.rows[k] = &row{}
	return m.save(m.rows[k], o, objects.Made), nil
}

// apply applies a rule to the object of a row. Callers hold mu.
func (m *Memory) apply(r *row, rule objects.Rule) (o apiclient.Raw, gone bool, err error) {
	o = r.object
	e, err := rule(&o)
	if !e.Written { // nor is it where there is an error
		return r.object, false, err
	}
	o = m.save(r, o, e)
	if e.Gone {
		m.drop(r)
	}
	return o, e.Gone, nil
}

// save makes o the row's object, at a new revision. Callers hold mu.
func (m *Memory) save(r *row, o apiclient.Raw, e objects.Effect) apiclient.Raw {
	m.revision++
	o.Revision = m.revision
	m.note(&r.object, &o, e)
	r.object = o
	delete(m.graves, objects.KeyOf(&o))
	close(m.written)
	m.written = make(chan struct{})
	if e.Notify != "" {
		r.toNotify, r.reason, r.retryAt = o.Revision, e.Notify, time.Time{}
		select {
		case m.nudge <- struct{}{}:
		default:
		}
	}
	return o
}

// note keeps what a write has done. Callers hold mu.
func (m *Memory) note(before, after *apiclient.Raw, e objects.Effect) {
	h, ok := objects.Happened(before, after, e, "")
	if !ok {
		return
	}
	k := objects.KeyOf(after)
	all := append(slices.Clone(m.events[k]), h) // a batch that fails takes back what was there
	m.events[k] = all[max(0, len(all)-objects.KeptEvents):]
}

// drop takes an object away. A row that is dirty stays as a tombstone until it has been notified. Callers hold mu.
func (m *Memory) drop(r *row) {
	m.graves[objects.KeyOf(&r.object)] = r.object.Revision
	if r.dirty() {
		r.gone = true
		return
	}
	delete(m.rows, objects.KeyOf(&r.object))
}
