package apiclient

import (
	"encoding/json"
	"time"
)

// Object is one declared thing of a kind, with spec type S and status type T.
type Object[S, T any] struct {
	// Kind is the plural, lower-case type of the object, a DNS-1123 label.
	Kind string `json:"kind"`
	// Name is unique within the kind, a DNS-1123 label.
	Name string `json:"name"`
	// UID tells this object from an earlier or later one of the same name.
	UID string `json:"uid"`
	// Labels are for selection ([Labeled]); the SDK gives them no meaning.
	Labels map[string]string `json:"labels,omitempty"`
	// Generation grows with each change of what is wanted: the spec, or that the object be deleted. It starts at 1.
	Generation int64 `json:"generation"`
	// Revision grows with every write; it is what If-Match compares.
	Revision int64 `json:"revision"`
	// CreatedAt is when the object was created.
	CreatedAt time.Time `json:"createdAt"`
	// ChangedAt is when Generation last grew.
	ChangedAt time.Time `json:"changedAt"`
	// DeletedAt is when deletion was asked for, or nil. The object is gone once its last finalizer is removed.
	DeletedAt *time.Time `json:"deletedAt,omitempty"`
	// Finalizers are names of parties that must clean up before the object may go.
	Finalizers []string `json:"finalizers,omitempty"`
	// Paused objects are not reconciled until they are resumed.
	Paused bool `json:"paused,omitempty"`
	// RetryRequest is the id of the latest request to retry now, empty if there never was one.
	RetryRequest string `json:"retryRequest,omitempty"`
	// RetryRequestedAt is when the latest retry was asked for, or nil.
	RetryRequestedAt *time.Time `json:"retryRequestedAt,omitempty"`
	// Version is the version of the kind that Spec is in, empty if the kind has no versions.
	Version string `json:"version,omitempty"`
	// Spec is what is wanted. Users write it; controllers read it.
	Spec S `json:"spec"`
	// Status is what is. Controllers write it; users read it.
	Status T `json:"status"`
	// Reconciliation is the record that the SDK keeps of its work on the object.
	Reconciliation Reconciliation `json:"reconciliation"`
	// Sealed says, to who may read secrets, why the API cannot decrypt those of the object: a key is missing, say. There is no
	// Spec then. Empty if there is one.
	Sealed string `json:"sealed,omitempty"`
}

// Raw is an object whose spec and status are still JSON.
type Raw = Object[json.RawMessage, json.RawMessage]

// State says in one word how an object stands with its controller.
type State string

// The states of an object.
const (
	// StatePending: a change has not been looked at yet.
	StatePending State = "Pending"
	// StateReconciling: a reconcile has been running for a while; a short one leaves the state as it was. If it dies, the
	// state says that the object is owed another.
	StateReconciling State = "Reconciling"
	// StateReady: the last reconcile saw the current generation and succeeded.
	StateReady State = "Ready"
	// StateRetrying: the last reconcile failed and will be retried at NextAttempt.
	StateRetrying State = "Retrying"
	// StateWaiting: the object cannot be reconciled now, through no fault of its own, and is looked at again at NextAttempt.
	StateWaiting State = "Waiting"
	// StateStalled: it will not be retried until the spec changes or a retry is asked for; LastError says why.
	StateStalled State = "Stalled"
	// StatePaused: somebody paused it.
	StatePaused State = "Paused"
	// StateDeleting: deletion was asked for and is not finished.
	StateDeleting State = "Deleting"
)

// States are all states of an object.
var States = []State{StatePending, StateReconciling, StateReady, StateRetrying, StateWaiting, StateStalled, StatePaused, StateDeleting}

// Reconciliation is the record of the SDK's work on an object. It lives on the object, so that it survives restarts,
// moves between replicas with the work, and answers "why" from the API alone.
type Reconciliation struct {
	// ObservedGeneration is the generation that the last finished reconcile read; 0 before the first.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is how the object stands; empty is read as StatePending.
	State State `json:"state,omitempty"`
	// Failures counts failed attempts in a row; a success or a new generation resets it.
	Failures int `json:"failures,omitempty"`
	// LastError is the message of the last attempt's error, or what a waiting object waits for. Empty after a success.
	LastError string `json:"lastError,omitempty"`
	// LastAttempt is when the last finished reconcile began.
	LastAttempt *time.Time `json:"lastAttempt,omitempty"`
	// NextAttempt is when the object is looked at again by itself, or nil.
	NextAttempt *time.Time `json:"nextAttempt,omitempty"`
	// Fence is the highest fencing token that has written to the object.
	Fence uint64 `json:"fence,omitempty"`
	// RunningSince is when the run that is under way began: set while StateReconciling or StateDeleting shows a long run,
	// nil otherwise.
	RunningSince *time.Time `json:"runningSince,omitempty"`
	// HandledRetry is the RetryRequest that the last finished reconcile saw.
	HandledRetry string `json:"handledRetry,omitempty"`
}

// OwedSince reports whether the object is owed a reconcile at time now, and since when: because its generation has not
// been observed, its next attempt came due, a retry was asked for, a reconcile began and has not ended, it was resumed
// and not looked at since, or it is being deleted. Of several reasons the oldest counts. A paused object is owed none.
func (o *Object[S, T]) OwedSince(now time.Time) (since time.Time, owed bool) {
	if o.Paused {
		return time.Time{}, false
	}
	reason := func(at time.Time) {
		if !owed || at.Before(since) {
			since, owed = at, true
		}
	}
	r := &o.Reconciliation
	if o.Generation != r.ObservedGeneration {
		reason(o.ChangedAt)
	}
	if o.DeletedAt != nil {
		reason(*o.DeletedAt)
	}
	if o.RetryRequest != r.HandledRetry {
		at := o.RetryRequestedAt
		if at == nil {
			at = &o.ChangedAt
		}
		reason(*at)
	}
	if r.NextAttempt != nil && !r.NextAttempt.After(now) {
		reason(*r.NextAttempt)
	}
	switch {
	case r.State == StateReconciling && r.RunningSince != nil:
		reason(*r.RunningSince)
	case r.State == StateReconciling, r.State == StatePaused:
		reason(o.ChangedAt)
	}
	return since, owed
}

// Ready reports whether the last reconcile saw the object as it is now wanted, and succeeded.
func (o *Object[S, T]) Ready() bool {
	return o != nil && o.Reconciliation.State == StateReady && o.Reconciliation.ObservedGeneration == o.Generation
}

// StatusPatch is the write of a controller: what a reconcile came to, or, with UID and Fence alone, that the holder of that
// fence works on the object from here on, so that earlier holders are refused. Fields that are absent stay as they are.
type StatusPatch struct {
	// UID is that of the object that was read; a different one there now is a conflict.
	UID string `json:"uid"`
	// Fence is the fencing token under which the status was made.
	Fence uint64 `json:"fence"`
	// Revision, unless it is 0, is the one that the object must be at; any other is a conflict.
	Revision int64 `json:"revision,omitempty"`
	// Status replaces the whole status, unless it is empty.
	Status json.RawMessage `json:"status,omitempty"`
	// Reconciliation replaces the whole record, unless it is nil. Its Fence is set by the server.
	Reconciliation *Reconciliation `json:"reconciliation,omitempty"`
	// AddFinalizers and RemoveFinalizers change the finalizers as sets. Nothing is added to an object being deleted.
	AddFinalizers    []string `json:"addFinalizers,omitempty"`
	RemoveFinalizers []string `json:"removeFinalizers,omitempty"`
	// Note, unless it is nil, is told as an event of the object ([Client.Events]). It takes the place of the event that the
	// rest of the patch would make, except for HappenedDeleted: one write makes one event.
	Note *Note `json:"note,omitempty"`
}

// Note is something that people should read in an object's events and that its record does not say.
type Note struct {
	// Reason is HappenedTakenOver or HappenedOverdue; the API refuses any other.
	Reason string `json:"reason"`
	// Message says what happened. Events keep its first 1,000 bytes.
	Message string `json:"message,omitempty"`
}
