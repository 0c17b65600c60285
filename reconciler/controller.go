package reconciler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
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
	// Version is the version of the kind that the function's types are of. A controller that names it goes on working when another
	// one becomes the current one. Default: the current one.
	Version string

	kind      string
	types     error                      // why the function's types cannot be right
	fits      func(*apiclient.Raw) error // whether an object can be decoded
	reconcile erased
	cleans    bool   // deletion needs work
	cleanup   erased // nil unless it does
}

// Kind is the kind that the controller is for.
func (c Controller) Kind() string { return c.kind }

// erased is a Func without its types: the object's spec and status as JSON in, the new status out.
type erased func(ctx context.Context, o *apiclient.Raw) (status json.RawMessage, r Result, err error)

// For makes a controller of a kind. Deleting an object of the kind removes it at once, without a call; use
// [ForWithCleanup] if there is anything to undo.
//
// S and T are JSON objects: structs, maps, pointers to those, json.RawMessage, any, or types that encode and
// decode themselves; [New] refuses others. An object that does not fit S and T is not passed to reconcile, but tried again with
// backoff, and its record says what does not fit: while a new version is rolled out, the next replica may be one that it fits.
func For[S, T any](kind string, reconcile Func[S, T]) Controller {
	return Controller{kind: kind, types: checkTypes[S, T](), fits: fits[S, T], reconcile: erase(reconcile)}
}

// ForWithCleanup makes a controller whose objects, once reconciled, stay until cleanup has succeeded: it returned no error
// and no RequeueAfter, which would mean that it is not done yet. The SDK adds its finalizer before the first call of
// reconcile and removes it after cleanup. An object whose deletion was asked for (DeletedAt is set) is never passed to
// reconcile again.
//
// Cleanup must find what is to be undone by the object's UID or name: the status is empty if an earlier call died before
// it could be stored. When a kind changes from ForWithCleanup to For, its objects keep the finalizer: their deletion is tried
// again, and their record says so, until a replica with a cleanup gets it.
func ForWithCleanup[S, T any](kind string, reconcile, cleanup Func[S, T]) Controller {
	return Controller{kind: kind, types: checkTypes[S, T](), fits: fits[S, T], reconcile: erase(reconcile), cleans: true, cleanup: erase(cleanup)}
}

func fits[S, T any](o *apiclient.Raw) error {
	_, err := typed[S, T](o)
	return err
}

var errNoCleanup = errors.New("its finalizer was added by a controller with a cleanup, and this one has none: use ForWithCleanup")

// noCleanup stands for a cleanup that the object's finalizer asks for and that is not there. It is tried again: while a new
// version is rolled out, the next replica may have one.
func noCleanup(context.Context, *apiclient.Raw) (json.RawMessage, Result, error) {
	return nil, Result{}, errNoCleanup
}

// erase is the one place where the types of a function meet JSON. What cannot be decoded or encoded is not Terminal: another
// version of the controller may run beside this one.
func erase[S, T any](f Func[S, T]) erased {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, raw *apiclient.Raw) (json.RawMessage, Result, error) {
		o, err := typed[S, T](raw)
		if err != nil {
			return nil, Result{}, err
		}
		before, err := encode(o.Status)
		if err != nil {
			return nil, Result{}, err
		}
		result, callErr := f(ctx, o)
		after, err := encode(o.Status)
		if err != nil {
			return nil, Result{}, errors.Join(callErr, err)
		}
		if stored := checkpointOf(ctx).end(); stored != nil {
			before = stored
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
		Paused: raw.Paused, RetryRequest: raw.RetryRequest, RetryRequestedAt: raw.RetryRequestedAt, Version: raw.Version,
		Reconciliation: raw.Reconciliation,
	}
	if err := decode(raw.Spec, &o.Spec); err != nil {
		return nil, fmt.Errorf("the spec does not fit the controller's type: %w", err)
	}
	if err := decode(raw.Status, &o.Status); err != nil {
		return nil, fmt.Errorf("the status does not fit the controller's type: %w", err)
	}
	return o, nil
}

// decode decodes into a user's type, whose UnmarshalJSON may panic.
func decode(data json.RawMessage, v any) (err error) {
	if len(data) == 0 {
		return nil
	}
	defer recovered(&err)
	return json.Unmarshal(data, v)
}

// encode encodes a status, whose MarshalJSON may panic.
func encode(status any) (json.RawMessage, error) {
	data, err := marshal(status)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	return data, nil
}

func marshal(v any) (data json.RawMessage, err error) {
	defer recovered(&err)
	return json.Marshal(v)
}

// recovered turns a panic of the function that defers it into its error.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Value: v, Stack: debug.Stack()}
	}
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
	if c.Version != "" && subject.CheckKind(c.Version) != nil {
		return fmt.Errorf("reconciler: controller of %s: Version %q: want the name of a version, such as v2, or none for the current one", c.kind, c.Version)
	}
	switch {
	case c.types != nil:
		return fmt.Errorf("reconciler: controller of %s: %w", c.kind, c.types)
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
	case orDefault(c.Backoff.Base, requeue.DefaultBase) > orDefault(c.Backoff.Cap, requeue.DefaultCap):
		return fmt.Errorf("reconciler: controller of %s: Backoff.Base %s is above Backoff.Cap %s", c.kind,
			orDefault(c.Backoff.Base, requeue.DefaultBase), orDefault(c.Backoff.Cap, requeue.DefaultCap))
	}
	return nil
}
