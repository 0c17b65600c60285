package reconciler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/requeue"
)

// Func makes the world match one object, or reports why it does not. See the package documentation.
type Func[S, T any] func(ctx context.Context, o *apiclient.Object[S, T]) (Result, error)

// Controller is a kind with its function and options, to be passed to [New] or [Run].
type Controller struct {
	// Workers is how many objects of the kind one replica works on at once. Default: DefaultWorkers.
	Workers int
	// Timeout is the deadline of one call. Default: DefaultTimeout. A function may be allowed hours: the lock is renewed
	// for as long as it runs.
	Timeout time.Duration
	// Backoff says when to try again after an error. Default: that of package requeue.
	Backoff requeue.Backoff

	kind      string
	reconcile erased
	cleans    bool   // deletion needs work
	cleanup   erased // nil unless it does
}

// erased is a Func without its types: the object's spec and status as JSON in, the new status out.
type erased func(ctx context.Context, o *apiclient.Raw) (status json.RawMessage, r Result, err error)

// For makes a controller of a kind. Deleting an object of the kind removes it at once; use [ForWithCleanup] if there is
// anything to undo.
func For[S, T any](kind string, reconcile Func[S, T]) Controller {
	return Controller{kind: kind, reconcile: erase(reconcile)}
}

// ForWithCleanup makes a controller whose objects, once reconciled, stay until cleanup has returned without an error:
// the SDK adds its finalizer before the first call of reconcile and removes it after cleanup. An object whose deletion
// was asked for (DeletedAt is set) is never passed to reconcile again.
func ForWithCleanup[S, T any](kind string, reconcile, cleanup Func[S, T]) Controller {
	return Controller{kind: kind, reconcile: erase(reconcile), cleans: true, cleanup: erase(cleanup)}
}

// erase is the one place where the types of a function meet JSON.
func erase[S, T any](f Func[S, T]) erased {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, raw *apiclient.Raw) (json.RawMessage, Result, error) {
		o, err := typed[S, T](raw)
		if err != nil {
			return nil, Result{}, Terminal(err)
		}
		before, err := json.Marshal(o.Status)
		if err != nil {
			return nil, Result{}, Terminal(fmt.Errorf("encode status: %w", err))
		}
		result, callErr := f(ctx, o)
		after, err := json.Marshal(o.Status)
		if err != nil {
			return nil, Result{}, Terminal(errors.Join(callErr, fmt.Errorf("encode status: %w", err)))
		}
		if bytes.Equal(before, after) {
			after = nil
		}
		return after, result, callErr
	}
}

func typed[S, T any](raw *apiclient.Raw) (*apiclient.Object[S, T], error) {
	o := &apiclient.Object[S, T]{
		Kind: raw.Kind, Name: raw.Name, UID: raw.UID, Labels: raw.Labels, Generation: raw.Generation, Revision: raw.Revision,
		CreatedAt: raw.CreatedAt, ChangedAt: raw.ChangedAt, DeletedAt: raw.DeletedAt, Finalizers: raw.Finalizers,
		Paused: raw.Paused, RetryRequest: raw.RetryRequest, Reconciliation: raw.Reconciliation,
	}
	if err := decode(raw.Spec, &o.Spec); err != nil {
		return nil, fmt.Errorf("the spec does not fit the controller's type: %w", err)
	}
	if err := decode(raw.Status, &o.Status); err != nil {
		return nil, fmt.Errorf("the status does not fit the controller's type: %w", err)
	}
	return o, nil
}

func decode(data json.RawMessage, v any) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, v)
}

func (c Controller) withDefaults() Controller {
	if c.Workers == 0 {
		c.Workers = DefaultWorkers
	}
	c.Timeout = orDefault(c.Timeout, DefaultTimeout)
	return c
}

func (c Controller) validate() error {
	if err := subject.CheckKind(c.kind); err != nil {
		return fmt.Errorf("reconciler: controller: %w", err)
	}
	switch {
	case c.reconcile == nil:
		return fmt.Errorf("reconciler: controller of %s: the function is nil", c.kind)
	case c.cleans && c.cleanup == nil:
		return fmt.Errorf("reconciler: controller of %s: the cleanup is nil: use For if there is nothing to undo", c.kind)
	case c.Workers < 1 || c.Workers > MaxWorkers:
		return fmt.Errorf("reconciler: controller of %s: Workers %d: want 1 to %d", c.kind, c.Workers, MaxWorkers)
	case c.Timeout < 0:
		return fmt.Errorf("reconciler: controller of %s: Timeout %s is negative", c.kind, c.Timeout)
	case c.Backoff.Base < 0 || c.Backoff.Cap < 0:
		return fmt.Errorf("reconciler: controller of %s: Backoff %+v has a negative delay", c.kind, c.Backoff)
	}
	return nil
}
