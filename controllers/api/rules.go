package api

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Reasons that Config.Notify is told.
const (
	created = "created"
	changed = "changed"
	deleted = "deleted"
	retried = "retry"
	paused  = "paused"
	resumed = "resumed"
)

// effect is what a rule did to an object.
type effect struct {
	notify string // controllers hear of it, for this reason, unless it is empty
	gone   bool   // the object is not there any more
	silent bool   // it was written, though controllers do not hear of it
}

var (
	unwritten = effect{}
	silent    = effect{silent: true}
)

// now is the time in the precision that the store keeps.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// newObject is an object that nobody has looked at yet.
func newObject(k key, labels map[string]string, spec json.RawMessage) apiclient.Raw {
	at := now()
	return apiclient.Raw{
		Kind: k.kind, Name: k.name, UID: rand.Text(), Labels: labels, Generation: 1, CreatedAt: at, ChangedAt: at,
		Spec: spec, Status: json.RawMessage("{}"),
		Reconciliation: apiclient.Reconciliation{State: apiclient.StatePending},
	}
}

// replace is what a PUT does.
func replace(o *apiclient.Raw, labels map[string]string, spec json.RawMessage) (effect, error) {
	if o.DeletedAt != nil {
		return unwritten, conflict(key{o.Kind, o.Name}, "it is being deleted")
	}
	sameLabels := maps.Equal(o.Labels, labels)
	o.Labels = labels
	if apiclient.SameJSON(o.Spec, spec) {
		if sameLabels {
			return unwritten, nil
		}
		return silent, nil
	}
	o.Spec = spec
	o.Generation++
	o.ChangedAt = now()
	o.Reconciliation.State = apiclient.StatePending
	return effect{notify: changed}, nil
}

// requestDeletion is what a DELETE does.
func requestDeletion(o *apiclient.Raw) (effect, error) {
	if o.DeletedAt != nil {
		return unwritten, nil
	}
	at := now()
	o.DeletedAt, o.ChangedAt = &at, at
	o.Generation++
	o.Reconciliation.State = apiclient.StateDeleting
	return effect{notify: deleted, gone: len(o.Finalizers) == 0}, nil
}

// patchStatus is what a controller's write does. The fence decides who may write, not who comes last: a holder of the
// lock that was cut off may still send what it had prepared.
func patchStatus(o *apiclient.Raw, p *apiclient.StatusPatch) (effect, error) {
	k, highest := key{o.Kind, o.Name}, o.Reconciliation.Fence
	if p.UID != o.UID {
		return unwritten, conflict(k, fmt.Sprintf("uid is %s, not %s: it was deleted and made anew", o.UID, p.UID))
	}
	if p.Fence < highest {
		return unwritten, fenced(k, p.Fence, highest)
	}
	if p.Revision != 0 && p.Revision != o.Revision {
		return unwritten, otherRevision(k, o.Revision, p.Revision)
	}
	if p.Reconciliation != nil {
		o.Reconciliation = *p.Reconciliation
		if o.Reconciliation.State == apiclient.StateReady && o.Reconciliation.ObservedGeneration != o.Generation {
			o.Reconciliation.State = apiclient.StatePending
			if o.DeletedAt != nil {
				o.Reconciliation.State = apiclient.StateDeleting
			}
		}
	}
	o.Reconciliation.Fence = p.Fence
	if len(p.Status) > 0 {
		o.Status = p.Status
	}
	if o.DeletedAt == nil {
		for _, f := range p.AddFinalizers {
			if !slices.Contains(o.Finalizers, f) {
				o.Finalizers = append(o.Finalizers, f)
			}
		}
	}
	o.Finalizers = slices.DeleteFunc(o.Finalizers, func(f string) bool { return slices.Contains(p.RemoveFinalizers, f) })
	return effect{silent: true, gone: o.DeletedAt != nil && len(o.Finalizers) == 0}, nil
}

// requestRetry asks for a reconcile now.
func requestRetry(o *apiclient.Raw) (effect, error) {
	at := now()
	o.RetryRequest, o.RetryRequestedAt = rand.Text(), &at
	return effect{notify: retried}, nil
}

func setPaused(pause bool) func(o *apiclient.Raw) (effect, error) {
	return func(o *apiclient.Raw) (effect, error) {
		if o.Paused == pause {
			return unwritten, nil
		}
		o.Paused = pause
		if pause {
			return effect{notify: paused}, nil
		}
		return effect{notify: resumed}, nil
	}
}
