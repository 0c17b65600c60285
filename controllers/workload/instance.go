package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// reconcileInstance makes a cluster as an instance says.
func (c *Controller) reconcileInstance(ctx context.Context, in *Instance) (reconciler.Result, error) {
	wasReady := in.Ready()
	if in.Status.UpdatingSince == nil && !wasReady {
		in.Status.UpdatingSince = now()
	}
	cl, leave, err := c.use(ctx, in)
	if busy := errors.Is(err, errBusy) || errors.Is(err, errSlow); busy && wasReady { // it stays so
		return reconciler.Result{RequeueAfter: time.Second + rand.N(4*time.Second)}, nil
	}
	if err != nil {
		return reconciler.Result{}, err
	}
	defer leave()
	wanted, generation, err := c.plan(ctx, in, cl)
	if generation != 0 && generation != in.Status.UpdatingTo { // what an earlier one took is not held against it
		in.Status.UpdatingTo, in.Status.UpdatingSince = generation, now()
	}
	if err != nil {
		return reconciler.Result{}, c.outcome(in, err)
	}
	if wanted == nil { // it is neither at the generation before nor may it go to the next
		return reconciler.Result{}, wait(time.Minute, "waiting for its turn in the rollout of definition %s", in.Spec.Definition)
	}
	if err := claim(ctx, in, wanted); err != nil {
		return reconciler.Result{}, err
	}
	a := newApplying(cl, in, c.neighboursOf(in))
	if err := a.all(ctx, wanted); err != nil {
		if !unreachable(err) {
			err = errors.Join(err, a.pruneHooks(ctx, wanted))
		}
		a.report(ctx, wanted, !unreachable(err))
		return reconciler.Result{}, c.outcome(in, err)
	}
	leaving, err := a.prune(ctx, wanted)
	if err != nil {
		return reconciler.Result{}, c.outcome(in, err)
	}
	before := in.Status.DefinitionGeneration
	in.Status.DefinitionGeneration = generation
	waiting := a.report(ctx, wanted, true)
	if waiting == "" {
		waiting = a.tell(leaving)
	}
	in.Status.Waiting = waiting
	if waiting != "" {
		return reconciler.Result{}, wait(15*time.Second, "%s", waiting)
	}
	in.Status.UpdatingSince = nil
	if before != generation || !wasReady { // the rollout may go on
		c.tellOthers(ctx, in, "instance "+in.Name+" is ready")
	}
	return reconciler.Result{RequeueAfter: lookAgain + rand.N(lookAgain)}, nil
}

// tellOthers tells those who wait for an instance, when they can see what they are told of.
func (c *Controller) tellOthers(ctx context.Context, in *Instance, what string) {
	reconciler.WhenStored(ctx, func() {
		c.telling.add(Definitions, in.Spec.Definition, what)
		if in.Labels[LabelWorkload] != "" {
			c.telling.add(Workloads, in.Name, what)
		}
	})
}

// lookAgain is how often a replica looks at an instance that is ready: it costs no request to the cluster, and a replica that
// has just started watches nothing until it does.
const lookAgain = 5 * time.Minute

func now() *time.Time {
	at := time.Now().UTC()
	return &at
}

// neighboursOf lists the instances that have their resources in the cluster of an instance.
func (c *Controller) neighboursOf(in *Instance) func(context.Context) ([]*Instance, error) {
	return func(ctx context.Context) (all []*Instance, err error) {
		for other, err := range c.instances.All(ctx) {
			if err != nil {
				return nil, err
			}
			if other.UID != in.UID && (other.Status.Cluster == in.Status.Cluster || other.Spec.Runtime == in.Spec.Runtime) {
				all = append(all, other)
			}
		}
		return all, nil
	}
}

// outcome decides what becomes of an error: what somebody else has to mend is waited for, everything else tried again.
func (c *Controller) outcome(in *Instance, err error) error {
	err = &cleanError{withoutSecrets(in, err.Error()), err}
	in.Status.Waiting = err.Error()
	var notYet *notYetError
	switch {
	case errors.As(err, &notYet):
		return wait(notYetFor(in, time.Now()), "%w", err)
	case errors.Is(err, errManifests), errors.Is(err, errVariables), errors.Is(err, errNotThere):
		return wait(time.Minute, "%w", err) // the definition asks for a reconcile when it changes
	case unreachable(err) && !errors.Is(err, apiclient.ErrUnavailable):
		return wait(downFor, "runtime %s: %w", in.Spec.Runtime, err)
	}
	return err
}

// notYetFor is when to look again at what takes a moment: soon at first, and the later the longer it has been taking.
func notYetFor(in *Instance, now time.Time) time.Duration {
	if in.Status.UpdatingSince == nil {
		return time.Second
	}
	return min(15*time.Second, max(time.Second, now.Sub(*in.Status.UpdatingSince)/4))
}

// cleanError is an error whose text tells no secrets.
type cleanError struct {
	text string
	err  error
}

func (e *cleanError) Error() string { return e.text }
func (e *cleanError) Unwrap() error { return e.err }

// withoutSecrets takes out of a text what an API server may have quoted in it. What is too short to be a secret stays.
func withoutSecrets(in *Instance, text string) string {
	secrets := slices.Collect(maps.Values(in.Spec.SecretVariables))
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) }) // one may be part of another
	for _, v := range secrets {
		if len(v) <= 3 {
			continue
		}
		quoted := strconv.Quote(v)
		text = strings.ReplaceAll(strings.ReplaceAll(text, v, hidden), quoted[1:len(quoted)-1], hidden)
	}
	return text
}

// errNotThere is of what an instance refers to.
var errNotThere = errors.New("it does not exist")

// plan is what is wanted of an instance, in the order in which it is applied, and the generation of its definition. It is nil
// for an instance that has to stay as it is.
func (c *Controller) plan(ctx context.Context, in *Instance, cl *cluster) ([]wanted, int64, error) {
	definition, err := c.definitions.Get(ctx, in.Spec.Definition)
	if errors.Is(err, apiclient.ErrNotFound) {
		return nil, 0, fmt.Errorf("definition %s: %w", in.Spec.Definition, errNotThere)
	}
	if err != nil {
		return nil, 0, err
	}
	spec, generation, err := assigned(definition, in)
	if spec == nil {
		return nil, 0, err
	}
	docs, err := c.parsed.parse(definition, generation, spec.Manifests)
	if err != nil {
		return nil, generation, fmt.Errorf("definition %s: %w", in.Spec.Definition, err)
	}
	own, err := c.namespace(ctx, in, cl)
	if err != nil {
		return nil, generation, err
	}
	all, err := render(in, spec, docs, in.Status.Namespace, cl.scope)
	if err != nil {
		return nil, generation, err
	}
	if own && !slices.ContainsFunc(all, func(w wanted) bool { return w.key() == namespaceKey(in.Status.Namespace) }) {
		all = slices.Insert(all, 0, namespaceFor(in))
	}
	return all, generation, nil
}

// claim writes into the inventory what is going to be applied, before it is: what is applied is found again, and what an entry
// says was applied was, whatever dies.
func claim(ctx context.Context, in *Instance, all []wanted) error {
	known := map[resourceKey]*Resource{}
	for i := range in.Status.Resources {
		known[in.Status.Resources[i].key()] = &in.Status.Resources[i]
	}
	claimed := false
	for _, w := range all {
		gvk := w.GroupVersionKind()
		if r := known[w.key()]; r != nil {
			r.Version = gvk.Version
			if r.Applied != "" && r.Applied != w.hash {
				r.Applied, r.Fields = "", ""
				claimed = true
			}
			continue
		}
		in.Status.Resources = append(in.Status.Resources, Resource{
			Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Namespace: w.GetNamespace(), Name: w.GetName(),
		})
		claimed = true
	}
	if !claimed {
		return nil
	}
	return reconciler.Checkpoint(ctx, in)
}
