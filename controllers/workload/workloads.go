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
	labels := map[string]string{LabelWorkload: w.UID}
	if d, err := c.definitions.Get(ctx, w.Name); err == nil && d.Labels[LabelWorkload] != w.UID {
		return reconciler.Result{}, wait(time.Minute, "there is a definition %s already, and it is not this workload's", w.Name)
	} else if err != nil && !errors.Is(err, apiclient.ErrNotFound) {
		return reconciler.Result{}, err
	}
	in, err := c.instances.Get(ctx, w.Name)
	switch {
	case errors.Is(err, apiclient.ErrNotFound):
	case err != nil:
		return reconciler.Result{}, err
	case in.Labels[LabelWorkload] != w.UID:
		return reconciler.Result{}, wait(time.Minute, "there is an instance %s already, and it is not this workload's", w.Name)
	}
	if _, err := c.editor.definitions.Put(ctx, w.Name, DefinitionSpec{Manifests: w.Spec.Manifests}, apiclient.WithLabels(labels)); err != nil {
		return reconciler.Result{}, err
	}
	in, err = c.editor.instances.Put(ctx, w.Name, InstanceSpec{
		Definition: w.Name, Runtime: w.Spec.Runtime, Namespace: w.Spec.Namespace, Labels: w.Spec.Labels, Drift: w.Spec.Drift,
	}, apiclient.WithLabels(labels))
	if err != nil {
		return reconciler.Result{}, err
	}
	w.Status = WorkloadStatus{Namespace: in.Status.Namespace, Ready: in.Status.Ready, Waiting: in.Status.Waiting}
	if !in.Ready() {
		text := why(in)
		if text == "" {
			text = "the instance is " + string(in.Reconciliation.State)
		}
		return reconciler.Result{}, wait(2*time.Second, "%s", text)
	}
	return reconciler.Result{RequeueAfter: time.Minute}, nil
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
