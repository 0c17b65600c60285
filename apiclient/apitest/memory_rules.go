package apitest

import (
	"crypto/rand"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Reasons that notify is told.
const (
	created = "created"
	changed = "changed"
	deleted = "deleted"
	retry   = "retry"
	paused  = "paused"
	resumed = "resumed"
	silent  = "" // a write that controllers need not hear of
)

// now is the time in the precision that a database keeps.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// find returns the row of an object that is there. Callers hold mu.
func (m *Memory) find(k key) (*row, error) {
	if r := m.rows[k]; r != nil && !r.gone {
		return r, nil
	}
	return nil, notFound(k)
}

// save makes o the row's object, at a new revision. Callers hold mu.
func (m *Memory) save(r *row, o apiclient.Raw, reason string) apiclient.Raw {
	m.revision++
	o.Revision = m.revision
	r.object = o
	if reason != silent {
		r.toNotify, r.reason, r.retryAt = o.Revision, reason, time.Time{}
		select {
		case m.nudge <- struct{}{}:
		default:
		}
	}
	return o
}

// create makes an object, also in place of a tombstone. Callers hold mu.
func (m *Memory) create(k key, labels map[string]string, spec json.RawMessage) (apiclient.Raw, error) {
	r := m.rows[k]
	if r != nil && !r.gone {
		return apiclient.Raw{}, exists(k)
	}
	if r == nil {
		r = &row{}
		m.rows[k] = r
	}
	r.gone = false
	at := now()
	return m.save(r, apiclient.Raw{
		Kind: k.kind, Name: k.name, UID: rand.Text(), Labels: labels, Generation: 1, CreatedAt: at, ChangedAt: at,
		Spec: spec, Status: json.RawMessage("{}"),
		Reconciliation: apiclient.Reconciliation{State: apiclient.StatePending},
	}, created), nil
}

// replace makes labels and spec those of the object, and writes nothing if they are. Callers hold mu.
func (m *Memory) replace(r *row, labels map[string]string, spec json.RawMessage) (apiclient.Raw, error) {
	o := r.object
	if o.DeletedAt != nil {
		return o, conflict(key{o.Kind, o.Name}, "it is being deleted")
	}
	if apiclient.SameJSON(o.Spec, spec) {
		if maps.Equal(o.Labels, labels) {
			return o, nil
		}
		o.Labels = labels
		return m.save(r, o, silent), nil
	}
	o.Labels, o.Spec = labels, spec
	o.Generation++
	o.ChangedAt = now()
	o.Reconciliation.State = apiclient.StatePending
	return m.save(r, o, changed), nil
}

// remove asks for an object's deletion. Callers hold mu.
func (m *Memory) remove(r *row) (o apiclient.Raw, gone bool) {
	o = r.object
	if o.DeletedAt != nil {
		return o, false
	}
	at := now()
	o.DeletedAt, o.ChangedAt = &at, at
	o.Generation++
	o.Reconciliation.State = apiclient.StateDeleting
	o = m.save(r, o, deleted)
	if len(o.Finalizers) > 0 {
		return o, false
	}
	m.drop(r)
	return o, true
}

// drop takes an object away. A row that is dirty stays as a tombstone until it has been notified. Callers hold mu.
func (m *Memory) drop(r *row) {
	if r.dirty() {
		r.gone = true
		return
	}
	delete(m.rows, key{r.object.Kind, r.object.Name})
}

// patch is a controller's write. Callers hold mu.
func (m *Memory) patch(r *row, p apiclient.StatusPatch) (o apiclient.Raw, gone bool, err error) {
	o = r.object
	k := key{o.Kind, o.Name}
	if p.UID != o.UID {
		return o, false, conflict(k, "uid is "+o.UID+", not "+p.UID+": it was deleted and made anew")
	}
	if p.Fence < o.Reconciliation.Fence {
		return o, false, fenced(k, p.Fence, o.Reconciliation.Fence)
	}
	if p.Revision != 0 && p.Revision != o.Revision {
		return o, false, otherRevision(k, o.Revision, p.Revision)
	}
	if p.Reconciliation != nil {
		o.Reconciliation = *p.Reconciliation
		if o.Reconciliation.State == apiclient.StateReady && o.Reconciliation.ObservedGeneration != o.Generation {
			o.Reconciliation.State = unobserved(&o)
		}
	}
	o.Reconciliation.Fence = p.Fence
	if len(p.Status) > 0 {
		o.Status = p.Status
	}
	o.Finalizers = finalizers(&o, p)
	o = m.save(r, o, silent)
	if o.DeletedAt != nil && len(o.Finalizers) == 0 {
		m.drop(r)
		return o, true, nil
	}
	return o, false, nil
}

// unobserved is the state of an object whose present generation nobody has reconciled.
func unobserved(o *apiclient.Raw) apiclient.State {
	if o.DeletedAt != nil {
		return apiclient.StateDeleting
	}
	return apiclient.StatePending
}

func finalizers(o *apiclient.Raw, p apiclient.StatusPatch) []string {
	left := slices.Clone(o.Finalizers)
	if o.DeletedAt == nil {
		for _, f := range p.AddFinalizers {
			if !slices.Contains(left, f) {
				left = append(left, f)
			}
		}
	}
	return slices.DeleteFunc(left, func(f string) bool { return slices.Contains(p.RemoveFinalizers, f) })
}

// retry asks for a reconcile now. Callers hold mu.
func (m *Memory) retry(r *row) apiclient.Raw {
	o, at := r.object, now()
	o.RetryRequest, o.RetryRequestedAt = rand.Text(), &at
	return m.save(r, o, retry)
}

// setPaused pauses or resumes. Callers hold mu.
func (m *Memory) setPaused(r *row, pause bool) apiclient.Raw {
	o := r.object
	if o.Paused == pause {
		return o
	}
	o.Paused = pause
	if pause {
		return m.save(r, o, paused)
	}
	return m.save(r, o, resumed)
}
