package workload

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// reconcileDefinition checks the manifests and takes the rollout a step further. Every instance that becomes ready asks for
// the next step; whether one has failed is looked at every 15 seconds.
func (c *Controller) reconcileDefinition(ctx context.Context, d *Definition) (reconciler.Result, error) {
	docs, err := c.parsed.parse(d, d.Generation, d.Spec.Manifests)
	if err != nil {
		d.Status.Resources = nil
		return reconciler.Result{}, reconciler.Terminal(err)
	}
	d.Status.Resources = d.Status.Resources[:0]
	for _, doc := range docs {
		name := doc.GetName()
		if name == "" {
			name = doc.GetGenerateName() + "*"
		}
		d.Status.Resources = append(d.Status.Resources, resourceKey{doc.GroupVersionKind().GroupKind(), doc.GetNamespace(), name}.String())
	}
	all, err := c.instancesOf(ctx, "definition", d.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	released := rollOut(d, all, time.Now())
	ro := d.Status.Rollout
	if err := keep(d, all); err != nil {
		return reconciler.Result{}, err
	}
	// Instances may go to the generation once that is stored: what they are told of must be there when they look.
	if len(released) > 0 {
		if err := reconciler.Checkpoint(ctx, d); err != nil {
			return reconciler.Result{}, err
		}
	}
	for _, in := range released {
		if err := c.ask(ctx, Instances, in.Name, fmt.Sprintf("generation %d of definition %s", d.Generation, d.Name)); err != nil {
			return reconciler.Result{}, err
		}
	}
	switch {
	case ro.Stopped != "":
		return reconciler.Result{}, wait(time.Minute, "the rollout is stopped: %s", ro.Stopped)
	case ro.Updated < ro.Instances:
		return reconciler.Result{}, wait(15*time.Second, "%d of %d instances are up to date", ro.Updated, ro.Instances)
	}
	return reconciler.Result{}, nil
}

// rollOut counts how far the instances have come, and releases as many further ones as may be on their way. They are in the
// order of their names. It returns those that may have to be told.
func rollOut(d *Definition, all []*Instance, now time.Time) (released []*Instance) {
	before := d.Status.Rollout
	ro := &RolloutStatus{Generation: d.Generation, Instances: len(all)}
	if before != nil && before.Generation == d.Generation {
		ro.Released, ro.All, ro.ReleasedAt = before.Released, before.All, before.ReleasedAt
	}
	d.Status.Rollout = ro
	pace := d.Spec.Rollout
	underway := 0
	var behind []*Instance
	for _, in := range all {
		switch {
		case in.DeletedAt != nil:
			ro.Instances--
		case upToDate(d, in):
			ro.Updated++
		case in.Status.DefinitionGeneration != 0 && !ro.All && in.Name > ro.Released:
			behind = append(behind, in)
		case failed(in, d, now):
			ro.Failed++
			if ro.Stopped == "" && ro.Failed > pace.MaxFailed {
				ro.Stopped = fmt.Sprintf("instance %s: %s", in.Name, why(in))
			}
		default:
			underway++
			released = append(released, in) // it may not have been told
		}
	}
	if ro.All || ro.Stopped != "" && len(behind) > 0 {
		return released
	}
	ro.Stopped = ""
	for _, in := range behind {
		if pace.AtOnce > 0 && underway >= pace.AtOnce {
			return released
		}
		underway++
		ro.Released, ro.ReleasedAt = in.Name, new(now.UTC())
		released = append(released, in)
	}
	ro.All = true
	return released
}

// upToDate reports whether an instance is ready with the latest generation.
func upToDate(d *Definition, in *Instance) bool {
	return in.Status.DefinitionGeneration == d.Generation && in.Ready()
}

// defaultPatience is how long an instance may take to be ready, in seconds: that of the schema, which fills it in only where a
// rollout is given.
const defaultPatience = 600

// failed reports whether an instance has failed, or taken too long: since it began, or, if it has not, since it might have.
func failed(in *Instance, d *Definition, now time.Time) bool {
	r := &in.Reconciliation
	if r.State == apiclient.StateStalled || r.State == apiclient.StateRetrying && r.Failures >= 3 {
		return true
	}
	since := in.Status.UpdatingSince
	if at := in.Status.DefinitionGeneration; at != 0 && at != d.Generation && in.Status.UpdatingTo != d.Generation {
		since = d.Status.Rollout.ReleasedAt
	}
	return since != nil && now.Sub(*since) > time.Duration(cmp.Or(d.Spec.Rollout.Patience, defaultPatience))*time.Second
}

func why(in *Instance) string {
	if in.Reconciliation.LastError != "" {
		return clip(in.Reconciliation.LastError)
	}
	if in.Status.Waiting == "" && in.Reconciliation.State == apiclient.StatePaused {
		return "it is paused"
	}
	return in.Status.Waiting
}

// maxKept is how many generations are kept: the latest, and the last ones that instances have.
const maxKept = 3

// keep keeps the latest spec, and those that instances have, for when a rollout has not reached them.
func keep(d *Definition, all []*Instance) error {
	had := map[int64]bool{}
	for _, in := range all {
		had[in.Status.DefinitionGeneration] = true
	}
	kept := slices.DeleteFunc(d.Status.Kept, func(k Kept) bool { return k.Generation != d.Generation && !had[k.Generation] })
	if !slices.ContainsFunc(kept, func(k Kept) bool { return k.Generation == d.Generation }) {
		spec, err := pack(&d.Spec)
		if err != nil {
			return err
		}
		kept = append(kept, Kept{Generation: d.Generation, Spec: spec})
	}
	d.Status.Kept = kept[max(0, len(kept)-maxKept):]
	return nil
}

func pack(spec *DefinitionSpec) ([]byte, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// maxUnpacked bounds a spec that was kept, in bytes.
const maxUnpacked = 64 << 20

// assigned is the spec that an instance is to be made by now, and its generation: the latest one if the rollout has reached
// it, and else the one that it has. It is nil if that is not known any more: then the instance stays as it is.
func assigned(d *Definition, in *Instance) (*DefinitionSpec, int64, error) {
	ro := d.Status.Rollout
	at := in.Status.DefinitionGeneration
	released := ro != nil && ro.Generation == d.Generation && (ro.All || in.Name <= ro.Released)
	if at == 0 || at == d.Generation || released {
		return &d.Spec, d.Generation, nil
	}
	i := slices.IndexFunc(d.Status.Kept, func(k Kept) bool { return k.Generation == at })
	if i < 0 {
		return nil, 0, nil
	}
	spec, err := unpack(d.Status.Kept[i].Spec)
	if err != nil {
		return nil, 0, fmt.Errorf("definition %s: status.kept: generation %d: %w", d.Name, at, err)
	}
	return spec, at, nil
}

func unpack(packed []byte) (*DefinitionSpec, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(z, maxUnpacked))
	if err != nil {
		return nil, err
	}
	spec := new(DefinitionSpec)
	return spec, json.Unmarshal(data, spec)
}

// cleanupDefinition waits until no instance needs it.
func (c *Controller) cleanupDefinition(ctx context.Context, d *Definition) (reconciler.Result, error) {
	all, err := c.instancesOf(ctx, "definition", d.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	if len(all) > 0 {
		return reconciler.Result{}, wait(stillInUse, "%s", inUse(all))
	}
	return reconciler.Result{}, nil
}
