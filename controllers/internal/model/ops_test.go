package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// op is what a client asks of one object.
type op struct {
	verb    string
	labels  map[string]string
	spec    json.RawMessage
	ifMatch int64
	patch   apiclient.StatusPatch
}

func (o op) String() string {
	switch o.verb {
	case "create", "put", "merge":
		return fmt.Sprintf("%s %s labels %v if-match %d", o.verb, o.spec, o.labels, o.ifMatch)
	case "status":
		data, _ := json.Marshal(o.patch)
		return "status " + string(data)
	}
	return o.verb
}

// call is an op and its answer. got is nil if there was an error, or if the op left no object.
type call struct {
	op
	name      string
	client    int
	call, ret int64
	got       *apiclient.Raw
	err       error
}

func (c *call) String() string {
	s := fmt.Sprintf("[%d,%d] client %d: %s: %s = ", c.call, c.ret, c.client, c.name, c.op)
	switch {
	case c.err != nil:
		return s + c.err.Error()
	case c.got == nil:
		return s + "gone"
	}
	return s + text(c.got)
}

// revision is that of the answer, or 0 if it had none.
func (c *call) revision() int64 {
	if c.got == nil {
		return 0
	}
	return c.got.Revision
}

type rawClient = apiclient.Client[json.RawMessage, json.RawMessage]

// send sends an op.
func (o op) send(ctx context.Context, c *rawClient, name string) (*apiclient.Raw, error) {
	opts := []apiclient.Option{apiclient.WithLabels(o.labels)}
	if o.ifMatch != 0 {
		opts = append(opts, apiclient.IfRevision(o.ifMatch))
	}
	switch o.verb {
	case "create":
		return c.Create(ctx, name, o.spec, opts...)
	case "get":
		return c.Get(ctx, name)
	case "put":
		return c.Put(ctx, name, o.spec, opts...)
	case "merge":
		return c.Patch(ctx, name, o.spec, opts...)
	case "delete":
		return c.Delete(ctx, name)
	case "status":
		return c.PatchStatus(ctx, name, o.patch)
	case "retry":
		return c.Retry(ctx, name)
	case "pause":
		return c.Pause(ctx, name)
	case "resume":
		return c.Resume(ctx, name)
	}
	panic(o.verb)
}

// step is the model: what an op does to an object, nil if it is not there, by the rules alone.
func (o op) step(k objects.Key, before *apiclient.Raw) (after *apiclient.Raw, e objects.Effect, err error) {
	switch {
	case before != nil && o.verb == "create":
		return before, e, objects.Exists(k)
	case before == nil && (o.verb == "create" || o.verb == "put" && o.ifMatch == 0):
		made, err := objects.New(k, o.wanted())
		return &made, objects.Effect{Written: true, Notify: objects.Created}, err
	case before == nil && o.verb == "put":
		return nil, e, objects.NotThere(k)
	case before == nil:
		return nil, e, objects.NotFound(k)
	}
	next := *before
	e, err = o.rule()(&next)
	if err != nil || !e.Written {
		return before, objects.Effect{}, err
	}
	if e.Gone {
		return nil, e, nil
	}
	return &next, e, nil
}

func (o op) wanted() objects.Wanted {
	return objects.Wanted{IfMatch: o.ifMatch, Labels: o.labels, Spec: o.spec}
}

func (o op) rule() objects.Rule {
	switch o.verb {
	case "put":
		return objects.Replace(o.wanted())
	case "merge":
		labels, _ := json.Marshal(o.labels)
		if len(o.labels) == 0 {
			labels = nil
		}
		return objects.Merge(objects.Patch{IfMatch: o.ifMatch, Labels: labels, Spec: o.spec})
	case "delete":
		return objects.RequestDeletion
	case "status":
		return objects.PatchStatus(o.patch)
	case "retry":
		return objects.RequestRetry
	case "pause", "resume":
		return objects.SetPaused(o.verb == "pause")
	}
	return func(*apiclient.Raw) (objects.Effect, error) { return objects.Effect{}, nil } // get
}

// chooser makes random ops that mean something to the object as the client last saw it.
type chooser struct{ rng *rand.Rand }

func pick[T any](c chooser, of ...T) T { return of[c.rng.IntN(len(of))] }

func (c chooser) op(seen *apiclient.Raw) op {
	o := op{verb: pick(c, "create", "create", "get", "put", "put", "put", "merge", "merge", "delete",
		"status", "status", "status", "status", "retry", "pause", "resume")}
	switch o.verb {
	case "create", "put", "merge":
		o.spec, o.labels = c.spec(o.verb == "merge"), c.labels()
		if seen != nil && o.verb != "create" && c.rng.IntN(2) == 0 {
			o.ifMatch = seen.Revision + pick[int64](c, 0, 0, 0, 1)
		}
	case "status":
		o.patch = c.patch(seen)
	}
	return o
}

func (c chooser) spec(isPatch bool) json.RawMessage {
	doc := map[string]any{"size": c.rng.IntN(3)}
	if c.rng.IntN(2) == 0 {
		doc["deep"] = map[string]any{pick(c, "a", "b"): c.rng.IntN(2)}
	}
	if isPatch && c.rng.IntN(2) == 0 {
		doc["deep"] = pick[any](c, nil, map[string]any{"a": nil})
	}
	data, _ := json.Marshal(doc)
	return data
}

func (c chooser) labels() map[string]string {
	labels := map[string]string{}
	for _, l := range []string{"a", "b"} {
		if c.rng.IntN(2) == 0 {
			labels[l] = pick(c, "1", "2")
		}
	}
	return labels
}

// patch makes what a controller writes: mostly one that is up to date.
func (c chooser) patch(seen *apiclient.Raw) apiclient.StatusPatch {
	p := apiclient.StatusPatch{UID: "somebody else's", Fence: 1 + c.rng.Uint64N(3)}
	generation := int64(1)
	if seen != nil {
		p.UID, generation = seen.UID, seen.Generation
		p.Fence = seen.Reconciliation.Fence + pick[uint64](c, 0, 0, 1, 2)
		if p.Fence > 0 && c.rng.IntN(6) == 0 {
			p.Fence--
		}
		if c.rng.IntN(3) == 0 {
			p.Revision = seen.Revision
		}
	}
	if c.rng.IntN(3) > 0 {
		p.Status = json.RawMessage(fmt.Sprintf(`{"done":%d}`, c.rng.IntN(3)))
	}
	if c.rng.IntN(3) > 0 {
		p.Reconciliation = &apiclient.Reconciliation{
			ObservedGeneration: generation,
			State:              pick(c, apiclient.StateReady, apiclient.StateReady, apiclient.StateRetrying, apiclient.StateReconciling),
			NextAttempt:        pick(c, nil, nil, &longAgo, &notSoon),
			Failures:           c.rng.IntN(3),
		}
		if seen != nil {
			p.Reconciliation.HandledRetry = seen.RetryRequest
		}
	}
	p.AddFinalizers = pick(c, nil, nil, []string{"x"}, []string{"x", "y"})
	p.RemoveFinalizers = pick(c, nil, []string{"x"}, []string{"y", "x"})
	return p
}

// Whether an object is owed a reconcile must not depend on when a test runs.
var (
	longAgo = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	notSoon = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
)

// refusals are the errors that a rule may answer with.
var refusals = []error{apiclient.ErrNotFound, apiclient.ErrExists, apiclient.ErrFenced, apiclient.ErrConflict, apiclient.ErrInvalid}

// refusal is which of them an error is, or nil.
func refusal(err error) error {
	i := slices.IndexFunc(refusals, func(r error) bool { return errors.Is(err, r) })
	if i < 0 {
		return nil
	}
	return refusals[i]
}

// text is an object in one form, so that two are the same if their texts are.
func text(o *apiclient.Raw) string {
	plain := *o
	plain.Spec, plain.Status = canonical(o.Spec), canonical(o.Status)
	plain.Labels = maps.Clone(o.Labels)
	data, err := json.Marshal(plain)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func canonical(doc json.RawMessage) json.RawMessage {
	var v any
	if err := json.Unmarshal(doc, &v); err != nil {
		return doc
	}
	data, _ := json.Marshal(v)
	return data
}
