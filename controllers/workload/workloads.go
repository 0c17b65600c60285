package workload

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// LabelWorkload is on the definition and the instance that a workload is made into, with its uid.
const LabelWorkload = "evenkeel.io/workload"

// editor writes what workloads are made into.
type editor struct {
	definitions *apiclient.Client[DefinitionSpec, DefinitionStatus]
	instances   *apiclient.Client[InstanceSpec, InstanceStatus]
}

func newEditor(cfg apiclient.Config) (*editor, error) {
	definitions, err1 := apiclient.New[DefinitionSpec, DefinitionStatus](cfg, Definitions)
	instances, err2 := apiclient.New[InstanceSpec, InstanceStatus](cfg, Instances)
	return &editor{definitions, instances}, errors.Join(err1, err2)
}

// reconcileWorkload makes a definition and an instance of a workload's name, and tells how the instance is.
func (c *Controller) reconcileWorkload(ctx context.Context, w *Workload) (reconciler.Result, error) {
	d, in, err := c.made(ctx, w)
	if err != nil {
		return reconciler.Result{}, err
	}
	again := 10 * time.Second                                                                        // an instance that is ready tells
	if d == nil || in == nil || w.Status.Made != (Made{w.Generation, d.Generation, in.Generation}) { // it was changed, or they were
		if d, in, err = c.makeBoth(ctx, w, d, in); err != nil {
			return reconciler.Result{}, err
		}
		again = time.Second
	}
	w.Status = WorkloadStatus{
		Made: Made{w.Generation, d.Generation, in.Generation}, Namespace: in.Status.Namespace, Ready: in.Status.Ready, Waiting: in.Status.Waiting,
	}
	switch {
	case d.Reconciliation.State == apiclient.StateStalled && d.Reconciliation.ObservedGeneration == d.Generation:
		return reconciler.Result{}, reconciler.Terminal(errors.New(d.Reconciliation.LastError))
	case !in.Ready():
		return reconciler.Result{}, wait(again, "%s", cmp.Or(why(in), "the instance is "+string(in.Reconciliation.State)))
	case in.Status.DefinitionGeneration != d.Generation:
		return reconciler.Result{}, wait(again, "the instance has generation %d of the definition, and is to have %d", in.Status.DefinitionGeneration, d.Generation)
	}
	return reconciler.Result{RequeueAfter: time.Minute}, nil
}

// made reads what a workload was made into, nil for what is not there. What has its name and is not its own is an error.
func (c *Controller) made(ctx context.Context, w *Workload) (*Definition, *Instance, error) {
	d, err := c.definitions.Get(ctx, w.Name)
	switch {
	case errors.Is(err, apiclient.ErrNotFound):
		d = nil
	case err != nil:
		return nil, nil, err
	case d.Labels[LabelWorkload] != w.UID:
		return nil, nil, wait(time.Minute, "there is a definition %s already, and it is not this workload's", w.Name)
	}
	in, err := c.instances.Get(ctx, w.Name)
	switch {
	case errors.Is(err, apiclient.ErrNotFound):
		in = nil
	case err != nil:
		return nil, nil, err
	case in.Labels[LabelWorkload] != w.UID:
		return nil, nil, wait(time.Minute, "there is an instance %s already, and it is not this workload's", w.Name)
	}
	return d, in, nil
}

// makeBoth writes the definition and the instance of a workload. What is not there is created: a put would write over what
// somebody else makes in this moment.
func (c *Controller) makeBoth(ctx context.Context, w *Workload, d *Definition, in *Instance) (*Definition, *Instance, error) {
	own := apiclient.WithLabels(map[string]string{LabelWorkload: w.UID})
	writeDefinition, writeInstance := c.editor.definitions.Put, c.editor.instances.Put
	if d == nil {
		writeDefinition = c.editor.definitions.Create
	}
	if in == nil {
		writeInstance = c.editor.instances.Create
	}
	d, err := writeDefinition(ctx, w.Name, DefinitionSpec{Manifests: w.Spec.Manifests}, own)
	if err != nil {
		return nil, nil, err
	}
	in, err = writeInstance(ctx, w.Name, InstanceSpec{
		Definition: w.Name, Runtime: w.Spec.Runtime, Namespace: w.Spec.Namespace, Labels: w.Spec.Labels, Drift: w.Spec.Drift,
	}, own)
	return d, in, err
}

// cleanupWorkload deletes the instance, waits until it is gone, and then the definition.
func (c *Controller) cleanupWorkload(ctx context.Context, w *Workload) (reconciler.Result, error) {
	in, err := c.instances.Get(ctx, w.Name)
	if err == nil && in.Labels[LabelWorkload] == w.UID {
		if in, err = c.editor.instances.Delete(ctx, w.Name); err != nil && !errors.Is(err, apiclient.ErrNotFound) {
			return reconciler.Result{}, err
		}
		if in != nil {
			w.Status = WorkloadStatus{Namespace: in.Status.Namespace, Waiting: in.Status.Waiting}
			return reconciler.Result{}, wait(time.Second, "%s", cmp.Or(in.Status.Waiting, "waiting for the instance to be gone"))
		}
	} else if err != nil && !errors.Is(err, apiclient.ErrNotFound) {
		return reconciler.Result{}, err
	}
	d, err := c.definitions.Get(ctx, w.Name)
	if err == nil && d.Labels[LabelWorkload] == w.UID {
		d, err = c.editor.definitions.Delete(ctx, w.Name)
		if err == nil && d != nil {
			return reconciler.Result{}, wait(time.Second, "waiting for the definition to be gone")
		}
	}
	if err != nil && !errors.Is(err, apiclient.ErrNotFound) {
		return reconciler.Result{}, err
	}
	return reconciler.Result{}, nil
}
