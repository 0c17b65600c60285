package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// Spec is what users declare: a name that shall resolve to an address.
type Spec struct {
	Host    string `json:"host"`
	Address string `json:"address"`
}

// Status is what became of it.
type Status struct {
	RecordID string `json:"recordID,omitempty"`
	Address  string `json:"address,omitempty"`
}

// Record is an object of the kind "records".
type Record = apiclient.Object[Spec, Status]

// Zone is the service that keeps the records.
type Zone interface {
	// Set makes or changes the record with that id.
	Set(ctx context.Context, id, host, address string) error
	// Remove removes it, if it is there.
	Remove(ctx context.Context, id string) error
}

// Errors that a Zone may return.
var (
	ErrQuota   = errors.New("too many requests")
	ErrForeign = errors.New("the host belongs to somebody else")
)

// resync is how often a record is set again, in case somebody changed it behind our back.
const resync = time.Hour

// Controller keeps the records of a zone as they are declared.
func Controller(z Zone) reconciler.Controller {
	c := reconciler.ForWithCleanup("records", set(z), remove(z))
	c.Workers = 4
	c.Timeout = time.Minute
	return c
}

func set(z Zone) reconciler.Func[Spec, Status] {
	return func(ctx context.Context, r *Record) (reconciler.Result, error) {
		if r.Spec.Host == "" {
			return reconciler.Result{}, reconciler.Terminal(errors.New("spec.host is empty"))
		}
		// The record is named after the UID, so that a call which is repeated finds what an earlier one made.
		err := z.Set(ctx, r.UID, r.Spec.Host, r.Spec.Address)
		switch {
		case errors.Is(err, ErrQuota):
			return reconciler.Result{}, reconciler.Throttled(err, 30*time.Second)
		case errors.Is(err, ErrForeign):
			return reconciler.Result{}, reconciler.Terminal(fmt.Errorf("set %s: %w", r.Spec.Host, err))
		case err != nil:
			return reconciler.Result{}, fmt.Errorf("set %s: %w", r.Spec.Host, err)
		}
		reconciler.Log(ctx).Info("set", "host", r.Spec.Host, "address", r.Spec.Address)
		r.Status = Status{RecordID: r.UID, Address: r.Spec.Address}
		return reconciler.Result{RequeueAfter: resync}, nil
	}
}

// remove goes by the UID, not by the status: that is empty if set was killed before it could be stored.
func remove(z Zone) reconciler.Func[Spec, Status] {
	return func(ctx context.Context, r *Record) (reconciler.Result, error) {
		if err := z.Remove(ctx, r.UID); err != nil {
			return reconciler.Result{}, fmt.Errorf("remove %s: %w", r.Spec.Host, err)
		}
		return reconciler.Result{}, nil
	}
}
