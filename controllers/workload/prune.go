package workload

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

// pruneHooks removes admission webhooks and policies that are not wanted any more: they may be what keeps everything else from
// being applied.
func (a *applying) pruneHooks(ctx context.Context, all []wanted) error {
	wanted := map[resourceKey]bool{}
	for _, w := range all {
		wanted[w.key()] = true
	}
	var hooks []Resource
	others := slices.DeleteFunc(a.in.Status.Resources, func(r Resource) bool {
		leaves := !wanted[r.key()] && phase(r.gvk().GroupKind()) == phaseHooks
		if leaves {
			hooks = append(hooks, r)
		}
		return leaves
	})
	_, err := a.remove(ctx, &hooks)
	a.in.Status.Resources = slices.Concat(others, hooks)
	a.index()
	return err
}

// prune removes what is in the inventory and not wanted any more. It returns what it still waits for. The inventory is in the
// order of what is wanted afterwards, what is leaving behind it.
func (a *applying) prune(ctx context.Context, all []wanted) (waiting string, err error) {
	order := map[resourceKey]int{}
	for i, w := range all {
		order[w.key()] = i
	}
	var kept, leaving []Resource
	for _, r := range a.in.Status.Resources {
		if _, ok := order[r.key()]; ok {
			kept = append(kept, r)
		} else {
			leaving = append(leaving, r)
		}
	}
	slices.SortFunc(kept, func(x, y Resource) int { return cmp.Compare(order[x.key()], order[y.key()]) })
	waiting, err = a.remove(ctx, &leaving)
	a.in.Status.Resources = slices.Concat(kept, leaving)
	a.index()
	return waiting, err
}

// remove deletes resources in the opposite order of that in which they are applied, and takes those that are gone off the
// list. What is in the way of a later phase's end is waited for, over several reconciles.
func (a *applying) remove(ctx context.Context, list *[]Resource) (waiting string, err error) {
	rs := *list
	slices.SortStableFunc(rs, func(x, y Resource) int {
		return cmp.Compare(phase(y.gvk().GroupKind()), phase(x.gvk().GroupKind()))
	})
	defer func() { *list = slices.DeleteFunc(rs, func(r Resource) bool { return r.Status == statusGone }) }()
	for i := range rs {
		r := &rs[i]
		if waiting != "" && phase(r.gvk().GroupKind()) != phase(rs[i-1].gvk().GroupKind()) {
			break
		}
		if ctx.Err() != nil {
			return waiting, context.Cause(ctx)
		}
		why, err := a.removeOne(ctx, r)
		if err != nil {
			return waiting, fmt.Errorf("delete %s: %w", r.key(), err)
		}
		if waiting == "" {
			waiting = why
		}
	}
	return waiting, nil
}

// owns reports whether a resource is the instance's: it bears its label, or it is the one that was applied and bears none.
func (a *applying) owns(s *seen, r *Resource) bool {
	owner := s.GetLabels()[LabelInstance]
	return owner == a.in.UID || owner == "" && string(s.GetUID()) == r.UID
}

// keeps says who keeps a resource from being deleted: what others have would go with it.
func (a *applying) keeps(ctx context.Context, k resourceKey) (who string, err error) {
	switch k.GroupKind {
	case namespaceKind.GroupKind():
		return a.inhabitant(ctx, k)
	case phases[phaseCRDs][0]:
		return a.foreign(ctx, k.name)
	}
	return "", nil
}

// inhabitant says who lives in a namespace that is to go: with it would go what they have there.
func (a *applying) inhabitant(ctx context.Context, k resourceKey) (who string, err error) {
	for i := range a.in.Status.Resources {
		if r := &a.in.Status.Resources[i]; r.Namespace == k.name && r.Status != statusGone {
			return r.key().String() + " is in it", nil
		}
	}
	others, err := a.neighbours(ctx)
	if err != nil {
		return "", err
	}
	for _, other := range others {
		waits := func(r Resource) bool { return r.key() == k && r.UID == "" }
		if slices.ContainsFunc(other.Status.Resources, waits) { // it is to make one when this one is gone
			continue
		}
		if other.Status.Namespace == k.name {
			return "instance " + other.Name + " is in it", nil
		}
		for i := range other.Status.Resources {
			if other.Status.Resources[i].Namespace == k.name {
				return "instance " + other.Name + " has resources in it", nil
			}
		}
	}
	return "", nil
}

// waitGone is how often what has to go is looked at, besides when a watch tells.
const waitGone = 2 * time.Second

// statusGone marks an entry that leaves the inventory.
const statusGone = "gone"

// removeOne deletes one resource if it is the instance's. It returns what keeps it from being gone.
func (a *applying) removeOne(ctx context.Context, r *Resource) (waiting string, err error) {
	k := r.key()
	m, known, err := a.mappingOf(r.gvk().GroupKind()) // in any version: the one that it was applied in may not be served any more
	if err != nil {
		return "", err
	}
	if !known { // with its definition went all there were
		unserved, err := a.isUnserved(r.gvk().GroupKind())
		if !unserved {
			return fmt.Sprintf("waiting for %s: the cluster does not say where it is", k), err
		}
		r.Status = statusGone
		return "", nil
	}
	if (m.Scope.Name() == meta.RESTScopeNameNamespace) != (r.Namespace != "") { // the kind was defined anew
		r.Status = statusGone
		return "", nil
	}
	// What the watch knows is deleted without another look; that it is gone, the cluster itself has to say.
	there, err := a.watches.get(ctx, m.Resource, r.Namespace, r.Name)
	if r.UID == "" && apierrors.IsForbidden(err) {
		r.Status = statusGone // whoever may not look at it could not apply it
		return "", nil
	}
	if err != nil {
		return "", a.lost(err)
	}
	if there == nil || there.GetLabels()[LabelInstance] != a.in.UID {
		if there, err = a.live(ctx, m, r.Namespace, r.Name); err != nil {
			return "", err
		}
	}
	if there == nil || !a.owns(there, r) {
		r.Status = statusGone // or there is one that is somebody else's
		a.forgetNudged(r.UID)
		return "", nil
	}
	r.UID = string(there.GetUID())
	if there.GetDeletionTimestamp() == nil {
		if r.Adopted && k.GroupKind == namespaceKind.GroupKind() { // with it would go what others have there
			if err := a.unlabel(ctx, m, there); err != nil {
				return "", err
			}
			r.Status = statusGone
			return "", nil
		}
		who, err := a.keeps(ctx, k)
		if err != nil {
			return "", err
		}
		if who != "" {
			r.Status, r.Reason = "Current", who
			return fmt.Sprintf("%s stays: %s", k, who), nil
		}
		if err := a.cluster.remove(ctx, m, r.Namespace, r.Name, r.UID); err != nil {
			return "", err
		}
	}
	if k.GroupKind == phases[phaseCRDs][0] {
		a.nudge(ctx, m, there)
	}
	r.Status, r.Reason = "Terminating", a.tell(stuck(there))
	if r.Reason == "" {
		return fmt.Sprintf("waiting for %s to be gone", k), nil
	}
	return fmt.Sprintf("waiting for %s to be gone: %s", k, r.Reason), nil
}

// stuck says why a resource that was deleted is still there.
func stuck(s *seen) string {
	var why []string
	all, _, _ := unstructured.NestedSlice(s.Object, "status", "conditions")
	for _, one := range all {
		c, _ := one.(map[string]any)
		if text, _ := c["message"].(string); text != "" && tellsOfDeletion(s, c) {
			why = append(why, text)
		}
	}
	if f := s.GetFinalizers(); len(f) > 0 {
		why = append(why, "finalizers "+strings.Join(f, ", "))
	}
	return strings.Join(why, "; ")
}

// tellsOfDeletion reports whether a condition says how far a deletion has come.
func tellsOfDeletion(s *seen, condition map[string]any) bool {
	switch s.GroupVersionKind().GroupKind() {
	case namespaceKind.GroupKind():
		return condition["status"] == "True" // what is left in it, and what could not be deleted
	case phases[phaseCRDs][0]:
		return condition["type"] == "Terminating"
	}
	return false
}

// cleanupInstance removes everything that was applied for an instance, or lets go of it.
func (c *Controller) cleanupInstance(ctx context.Context, in *Instance) (reconciler.Result, error) {
	if len(in.Status.Resources) == 0 || in.Spec.OnDelete == OnDeleteAbandon {
		c.left(ctx, in)
		return reconciler.Result{}, nil
	}
	cl, leave, err := c.use(ctx, in)
	if err != nil {
		return reconciler.Result{}, err
	}
	defer leave()
	a := newApplying(cl, in, c.neighboursOf(in))
	if in.Spec.OnDelete == OnDeleteKeep {
		err = a.letGo(ctx)
	} else {
		in.Status.Waiting, err = a.remove(ctx, &in.Status.Resources)
		in.Status.Waiting = a.tell(in.Status.Waiting)
	}
	switch {
	case err != nil:
		return reconciler.Result{}, c.outcome(in, err)
	case in.Status.Waiting != "":
		in.Status.Ready = ""
		return reconciler.Result{}, wait(waitGone, "%s", in.Status.Waiting)
	}
	c.left(ctx, in)
	return reconciler.Result{}, nil
}

// left tells those that an instance refers to that it has gone: they may be waiting for that.
func (c *Controller) left(ctx context.Context, in *Instance) {
	what := "instance " + in.Name + " is gone"
	c.tellOthers(ctx, in, what)
	reconciler.WhenStored(ctx, func() { c.telling.add(Runtimes, in.Spec.Runtime, what) })
}

// letGo takes the labels off everything, which is then nobody's.
func (a *applying) letGo(ctx context.Context) error {
	for i := range a.in.Status.Resources {
		r := &a.in.Status.Resources[i]
		m, known, err := a.mappingOf(r.gvk().GroupKind())
		if err != nil {
			return err
		}
		if !known {
			if unserved, err := a.isUnserved(r.gvk().GroupKind()); !unserved {
				return fmt.Errorf("let go of %s: %w", r.key(), cmp.Or(err, errNoAnswer))
			}
			continue
		}
		live, err := a.live(ctx, m, r.Namespace, r.Name)
		if err != nil {
			return err
		}
		if live == nil || live.GetLabels()[LabelInstance] != a.in.UID {
			continue
		}
		if err := a.unlabel(ctx, m, live); err != nil {
			return fmt.Errorf("let go of %s: %w", r.key(), err)
		}
	}
	a.in.Status.Resources = nil
	return nil
}
