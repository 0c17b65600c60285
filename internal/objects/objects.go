// Package objects holds the rules of the wire (package apiclient) that do not depend on where objects are stored: what
// each write does to an object, what a request must look like, and how it is refused. Every implementation of the API
// uses them.
package objects

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Key names an object.
type Key struct{ Kind, Name string }

func (k Key) String() string { return k.Kind + "/" + k.Name }

// Compare is the order of keys: kinds, and in them names.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.Name, other.Name))
}

// KeyOf is the key of an object.
func KeyOf(o *apiclient.Raw) Key { return Key{o.Kind, o.Name} }

// Reasons for which controllers hear of a write.
const (
	Created = "created"
	Changed = "changed"
	Deleted = "deleted"
	Retried = "retry"
	Paused  = "paused"
	Resumed = "resumed"
)

// Effect is what a rule did to an object.
type Effect struct {
	// Written is whether anything is to be stored.
	Written bool
	// Notify is the reason for which controllers hear of it, empty if they do not.
	Notify string
	// Gone is whether the object is not there any more.
	Gone bool
	// Note is what is to be told of the write; nil for what the objects before and after it say by themselves.
	Note *apiclient.Note
}

var (
	unwritten = Effect{}
	silent    = Effect{Written: true}
	// Made is what makes a new object.
	Made = notify(Created)
)

func notify(reason string) Effect { return Effect{Written: true, Notify: reason} }

// Admit decides about a spec that is wanted in place of that of an object, which is nil for a new one: it returns the spec to
// store and the version of the kind that it is in, or why there can be none. What is there already should be admitted: what
// was right when it was written may not be so any more. Nil admits everything.
type Admit func(before *apiclient.Raw, wanted json.RawMessage) (spec json.RawMessage, version string, err error)

// Wanted is what a user writes of an object.
type Wanted struct {
	// IfMatch, unless it is 0, is the revision that the object has to be at.
	IfMatch int64
	Labels  map[string]string
	Spec    json.RawMessage
	Admit   Admit
}

// Check checks what can be checked of it before anything is read.
func (w Wanted) Check() error {
	if err := CheckLabels("body.labels", w.Labels); err != nil {
		return err
	}
	return CheckDocument("body.spec", w.Spec)
}

// admit is what is stored in place of the spec of an object, which is nil for a new one.
func (w Wanted) admit(before *apiclient.Raw) (spec json.RawMessage, version string, err error) {
	if w.Admit == nil {
		return w.Spec, "", nil
	}
	return w.Admit(before, w.Spec)
}

// Rule is what a write does to an object. It changes no map, slice or pointer in place, only the object's fields.
type Rule func(o *apiclient.Raw) (Effect, error)

// Now is the time in the precision that stores keep.
func Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// New is an object that nobody has looked at yet. Its revision is up to the store.
func New(k Key, w Wanted) (apiclient.Raw, error) {
	spec, version, err := w.admit(nil)
	at := Now()
	return apiclient.Raw{
		Kind: k.Kind, Name: k.Name, UID: rand.Text(), Labels: w.Labels, Generation: 1, CreatedAt: at, ChangedAt: at,
		Spec: spec, Version: version, Status: json.RawMessage("{}"),
		Reconciliation: apiclient.Reconciliation{State: apiclient.StatePending},
	}, err
}

// Replace is what a PUT does to an object that is there.
//
// One that is being deleted is changed only with IfMatch, by somebody who has seen it: what is wrong in its spec may be what
// keeps the cleanup from succeeding. Everybody else means an object that stays.
func Replace(w Wanted) Rule {
	return func(o *apiclient.Raw) (Effect, error) {
		if w.IfMatch != 0 && w.IfMatch != o.Revision {
			return unwritten, otherRevision(o, w.IfMatch)
		}
		if o.DeletedAt != nil && w.IfMatch == 0 {
			return unwritten, conflict(KeyOf(o), "it is being deleted; with its revision in If-Match its spec can still be changed, for the cleanup")
		}
		spec, version, err := w.admit(o)
		if err != nil {
			return unwritten, err
		}
		relabeled := !maps.Equal(o.Labels, w.Labels)
		o.Labels = w.Labels
		switch same := apiclient.SameJSON(o.Spec, spec); {
		case same && relabeled:
			return silent, nil
		case same:
			return unwritten, nil
		}
		o.Spec, o.Version = spec, version
		o.Generation++
		o.ChangedAt = Now()
		o.Reconciliation.State, o.Reconciliation.RunningSince = unobserved(o), nil
		return notify(Changed), nil
	}
}

// RequestDeletion is what a DELETE does.
func RequestDeletion(o *apiclient.Raw) (Effect, error) {
	if o.DeletedAt != nil {
		return unwritten, nil
	}
	at := Now()
	o.DeletedAt, o.ChangedAt = &at, at
	o.Generation++
	o.Reconciliation.State = apiclient.StateDeleting
	e := notify(Deleted)
	e.Gone = len(o.Finalizers) == 0
	return e, nil
}

// PatchStatus is what a controller's write does. The fence decides who may write, not who comes last: a holder of the
// lock that was cut off may still send what it had prepared.
func PatchStatus(p apiclient.StatusPatch) Rule {
	return func(o *apiclient.Raw) (Effect, error) {
		highest := o.Reconciliation.Fence
		switch {
		case p.UID != o.UID:
			return unwritten, conflict(KeyOf(o), fmt.Sprintf("uid is %s, not %s: it was deleted and made anew", o.UID, p.UID))
		case p.Fence < highest:
			return unwritten, fenced(KeyOf(o), p.Fence, highest)
		case p.Revision != 0 && p.Revision != o.Revision:
			return unwritten, otherRevision(o, p.Revision)
		}
		if p.Reconciliation != nil {
			o.Reconciliation = *p.Reconciliation
			if o.Reconciliation.State == apiclient.StateReady && o.Reconciliation.ObservedGeneration != o.Generation {
				o.Reconciliation.State = unobserved(o)
			}
			if s := o.Reconciliation.State; s != apiclient.StateReconciling && s != apiclient.StateDeleting {
				o.Reconciliation.RunningSince = nil
			}
		}
		o.Reconciliation.Fence = p.Fence
		if len(p.Status) > 0 {
			o.Status = p.Status
		}
		o.Finalizers = finalizers(o, p)
		return Effect{Written: true, Gone: o.DeletedAt != nil && len(o.Finalizers) == 0, Note: p.Note}, nil
	}
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

// RequestRetry asks for a reconcile now.
func RequestRetry(o *apiclient.Raw) (Effect, error) {
	at := Now()
	o.RetryRequest, o.RetryRequestedAt = rand.Text(), &at
	return notify(Retried), nil
}

// SetPaused pauses or resumes.
func SetPaused(pause bool) Rule {
	return func(o *apiclient.Raw) (Effect, error) {
		if o.Paused == pause {
			return unwritten, nil
		}
		o.Paused = pause
		if pause {
			return notify(Paused), nil
		}
		return notify(Resumed), nil
	}
}
