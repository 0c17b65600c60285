package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

// applying is one reconcile of an instance at work on its cluster.
type applying struct {
	*cluster
	in *Instance
	// entries are those of the inventory.
	entries map[resourceKey]*Resource
	// latest is what is known of each resource: as it was applied just now, or as the watch has it.
	latest map[resourceKey]*seen
	// drifted are resources that others have changed and that stay so, with the reason; before are those of the last reconcile.
	drifted map[resourceKey]string
	before  []Drifted
	// cleaned are jobs that have completed and were cleaned up.
	cleaned map[resourceKey]bool
	// neighbours lists the instances of the same cluster, when a namespace is to be deleted.
	neighbours func(context.Context) ([]*Instance, error)
}

// newApplying begins with the inventory as it is. What stays drifted is found anew by each reconcile; of what was repaired the
// last is kept.
func newApplying(c *cluster, in *Instance, neighbours func(context.Context) ([]*Instance, error)) *applying {
	a := &applying{
		cluster: c, in: in, neighbours: neighbours, before: in.Status.Drift,
		latest: map[resourceKey]*seen{}, drifted: map[resourceKey]string{}, cleaned: map[resourceKey]bool{},
	}
	in.Status.Drift = nil
	for _, d := range a.before {
		if d.Repaired {
			in.Status.Drift = append(in.Status.Drift, d)
		}
	}
	a.index()
	return a
}

// index finds the entries of the inventory.
func (a *applying) index() {
	a.entries = make(map[resourceKey]*Resource, len(a.in.Status.Resources))
	for i := range a.in.Status.Resources {
		r := &a.in.Status.Resources[i]
		a.entries[r.key()] = r
	}
}

// notYetError is of something that takes a moment.
type notYetError struct{ what string }

func (e *notYetError) Error() string { return e.what }

// errConflict is of a resource that belongs to somebody else.
var errConflict = errors.New("conflict")

// maxErrors bounds how many errors of one phase are told.
const maxErrors = 5

// all applies what is wanted, phase by phase: what fails keeps later phases from being begun, and nothing else of its own.
func (a *applying) all(ctx context.Context, wanted []wanted) error {
	for len(wanted) > 0 {
		now := phase(wanted[0].GroupVersionKind().GroupKind())
		n := 0
		var errs []error
		for ; n < len(wanted) && phase(wanted[n].GroupVersionKind().GroupKind()) == now; n++ {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			err := a.one(ctx, wanted[n])
			if err == nil {
				continue
			}
			if errors.Is(err, errConflict) && a.yieldNamespace(wanted[n]) {
				continue
			}
			err = fmt.Errorf("%s: %w", wanted[n].key(), err)
			if unreachable(err) {
				return err
			}
			errs = append(errs, err)
		}
		if len(errs) > maxErrors {
			errs = append(errs[:maxErrors], fmt.Errorf("and %d more", len(errs)-maxErrors))
		}
		if len(errs) > 0 {
			return errors.Join(errs...)
		}
		if now == phaseCRDs {
			if err := a.established(wanted[:n]); err != nil {
				return err
			}
		}
		wanted = wanted[n:]
	}
	return nil
}

// established waits, over several reconciles, until the API server serves what was defined.
func (a *applying) established(definitions []wanted) error {
	for _, w := range definitions {
		s := a.latest[w.key()]
		if s == nil || !condition(&s.Unstructured, "Established") {
			return &notYetError{fmt.Sprintf("waiting for %s to be established", w.key())}
		}
	}
	return nil
}

func condition(u *unstructured.Unstructured, name string) bool {
	all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, one := range all {
		c, _ := one.(map[string]any)
		if c["type"] == name {
			return c["status"] == "True"
		}
	}
	return false
}

// one makes one resource as it is wanted. What is so already costs no request.
func (a *applying) one(ctx context.Context, w wanted) error {
	gvk := w.GroupVersionKind()
	m, known, err := a.mapping(gvk)
	if err != nil {
		return err
	}
	if !known {
		return &notYetError{fmt.Sprintf("the cluster does not know %s of %s yet", gvk.Kind, gvk.GroupVersion())}
	}
	there, err := a.watches.get(ctx, m.Resource, w.GetNamespace(), w.GetName())
	if err != nil {
		return a.lost(err)
	}
	entry := a.entries[w.key()] // claim has made one of everything
	ours := there != nil && there.GetLabels()[LabelInstance] == a.in.UID
	same := entry.Applied == w.hash
	if ours {
		a.latest[w.key()] = there
	}
	var f finding
	switch {
	case ours && same && entry.Fields == there.fields && there.GetGeneration() >= entry.Generation:
		entry.calm(time.Now())
		return nil
	case there == nil && same && cleansUp(w) && (entry.Completed || a.watches.sawComplete(m.Resource, entry.UID)):
		entry.Completed, a.cleaned[w.key()] = true, true
		return nil
	case ours && !same:
		f.uid = string(there.GetUID())
	default:
		f, err = a.examine(ctx, m, w, entry)
		if err != nil || f.fine || f.drift != "" && a.stays(entry, f.drift, same, time.Now()) {
			return err
		}
	}
	return a.apply(ctx, m, w, entry, f)
}

// apply sends what is wanted. Fields of others are taken over, unless drift is only to be reported.
func (a *applying) apply(ctx context.Context, m *meta.RESTMapping, w wanted, entry *Resource, f finding) error {
	if f.adopted && !entry.Adopted { // what dies after the apply must not forget it
		entry.Adopted = true
		if err := reconciler.Checkpoint(ctx, a.in); err != nil {
			return err
		}
	}
	entry.Adopted = entry.Adopted && f.uid != ""
	if f.uid == "" && w.from == ownNamespace {
		made, err := a.create(ctx, m, w)
		if apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("%w: it was made in this moment", errConflict)
		}
		if err != nil {
			return err
		}
		f.uid = made
	}
	force := a.in.Spec.Drift != DriftReport || a.in.Spec.Adopt && entry.UID == ""
	applied, err := a.cluster.apply(ctx, m, w, f.uid, force)
	switch {
	case err == nil:
	case apierrors.IsConflict(err) && !force && entry.UID != "":
		a.leave(w.key(), err.Error(), err.Error(), time.Now())
		return nil
	case apierrors.IsNotFound(err) && w.GetNamespace() != "":
		a.inherit(w.GetNamespace())
		return fmt.Errorf("namespace %s: %w", w.GetNamespace(), err)
	default:
		return err
	}
	a.latest[w.key()] = applied
	if entry.Applied != w.hash { // earlier repairs were of something else
		entry.Repairs, entry.RepairedAt = 0, nil
	}
	entry.UID, entry.Applied, entry.Fields, entry.Generation = string(applied.GetUID()), w.hash, applied.fields, applied.GetGeneration()
	if f.drift != "" {
		a.repaired(entry, f.drift, time.Now())
	}
	return nil
}

// lost is of a watch that does not work: what the cluster serves may have changed.
func (a *applying) lost(err error) error {
	if isGone(err) && a.mayRediscover() {
		a.mapper.Reset()
	}
	return a.note(err)
}

// inherit makes the namespace of an instance its own when there is none: it was somebody else's, who has gone. The next reconcile
// makes it.
func (a *applying) inherit(namespace string) {
	k := namespaceKey(namespace)
	if namespace != a.in.Status.Namespace || a.entries[k] != nil {
		return
	}
	a.in.Status.Resources = append(a.in.Status.Resources, Resource{Version: namespaceKind.Version, Kind: namespaceKind.Kind, Name: namespace})
	a.index()
}

// yieldNamespace lets go of the namespace of an instance that somebody else has made in the meantime: it is used, and not owned.
func (a *applying) yieldNamespace(w wanted) bool {
	k := w.key()
	if w.from != ownNamespace || a.entries[k].UID != "" {
		return false
	}
	a.in.Status.Resources = slices.DeleteFunc(a.in.Status.Resources, func(r Resource) bool { return r.key() == k })
	a.index()
	return true
}
