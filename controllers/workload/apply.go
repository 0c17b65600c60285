package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// applying is one reconcile of an instance at work on its cluster.
type applying struct {
	*cluster
	in *Instance
	// latest is what is known of each resource: as it was applied just now, or as the watch has it.
	latest map[resourceKey]*seen
	// drifted are resources that others have changed and that stay so.
	drifted map[resourceKey]bool
	// neighbours are the instances of the same runtime, when something is deleted.
	neighbours []*Instance
}

func newApplying(c *cluster, in *Instance) *applying {
	// What stays drifted is found anew by each reconcile; what was repaired is kept, the last of it.
	in.Status.Drift = slices.DeleteFunc(in.Status.Drift, func(d Drifted) bool { return !d.Repaired })
	return &applying{cluster: c, in: in, latest: map[resourceKey]*seen{}, drifted: map[resourceKey]bool{}}
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
			told := len(a.in.Status.Drift)
			err := a.one(ctx, wanted[n])
			if err == nil {
				continue
			}
			a.in.Status.Drift = a.in.Status.Drift[:min(told, len(a.in.Status.Drift))] // nothing was repaired
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
	ours := there != nil && there.GetLabels()[LabelInstance] == a.in.UID
	before, known := a.lastApplied(a.in.UID, w.key())
	same := known && before.hash == w.hash
	if ours {
		a.latest[w.key()] = there
	}
	if ours && same && before.fields == there.fields {
		a.entry(w.key()).UID = string(there.GetUID())
		return nil
	}
	uid := ""
	if ours && !same {
		uid = string(there.GetUID())
	} else {
		done := false
		if uid, done, err = a.examine(ctx, m, w, same, before); done || err != nil {
			return err
		}
	}
	return a.apply(ctx, m, w, uid)
}

// examine reads a resource that is not as this process has left it, or that it has never seen, and decides: to apply it onto
// what has that uid, or what is new; or that there is nothing to do.
func (a *applying) examine(ctx context.Context, m *meta.RESTMapping, w wanted, same bool, before appliedAs) (uid string, done bool, err error) {
	entry := a.entry(w.key())
	live, err := a.live(ctx, m, w.GetNamespace(), w.GetName())
	if err != nil {
		return "", false, err
	}
	if live == nil {
		delete(a.latest, w.key())
		if entry.UID != "" && a.drift(w.key(), "it was deleted") {
			return "", true, nil
		}
		return "", false, nil
	}
	owner := live.GetLabels()[LabelInstance]
	known := entry.UID != "" && string(live.GetUID()) == entry.UID
	switch {
	case owner != "" && owner != a.in.UID: // whatever was ours of it once
		return "", false, fmt.Errorf("%w: it belongs to instance %s", errConflict, live.GetLabels()[LabelInstanceName])
	case owner == a.in.UID:
		a.latest[w.key()] = live
		if same && before.fields == live.fields { // the watch was behind
			return "", true, nil
		}
		if same && a.drift(w.key(), changedBy(live)) {
			return "", true, nil
		}
	case known:
		a.latest[w.key()] = live
		if a.drift(w.key(), "its label "+LabelInstance+" was taken off by "+strings.Join(live.others, ", ")) {
			return "", true, nil
		}
	case !a.in.Spec.Adopt:
		return "", false, fmt.Errorf("%w: it is there already and belongs to somebody else: set adopt to take it over", errConflict)
	}
	return string(live.GetUID()), false, nil
}

func changedBy(s *seen) string {
	if len(s.others) == 0 {
		return "it was changed"
	}
	return "it was changed by " + s.others[0]
}

// keptDrift is how many repairs are kept.
const keptDrift = 10

// drift notes what somebody else has changed. It reports whether that stays.
func (a *applying) drift(k resourceKey, what string) (stays bool) {
	stays = a.in.Spec.Drift == DriftReport
	a.in.Status.Drift = append(a.in.Status.Drift, Drifted{Resource: k.String(), What: what, At: time.Now().UTC(), Repaired: !stays})
	if n := len(a.in.Status.Drift) - keptDrift; n > 0 && !stays {
		a.in.Status.Drift = a.in.Status.Drift[n:]
	}
	if stays {
		a.drifted[k] = true
	}
	return stays
}

// apply sends what is wanted. Fields of others are taken over, unless drift is only to be reported.
func (a *applying) apply(ctx context.Context, m *meta.RESTMapping, w wanted, uid string) error {
	if uid == "" && w.from == ownNamespace {
		made, err := a.create(ctx, m, w)
		if apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("%w: it was made in this moment", errConflict)
		}
		if err != nil {
			return err
		}
		uid = made
	}
	force := a.in.Spec.Drift != DriftReport || a.in.Spec.Adopt
	applied, err := a.cluster.apply(ctx, m, w, uid, force)
	switch {
	case err == nil:
	case apierrors.IsConflict(err) && !force && a.entry(w.key()).UID != "":
		a.drift(w.key(), err.Error())
		return nil
	case apierrors.IsNotFound(err) && w.GetNamespace() != "":
		return fmt.Errorf("namespace %s: %w", w.GetNamespace(), err)
	default:
		return err
	}
	a.latest[w.key()] = applied
	a.entry(w.key()).UID = string(applied.GetUID())
	a.setApplied(a.in.UID, w.key(), appliedAs{hash: w.hash, fields: applied.fields})
	return nil
}

// lost is of a watch that does not work: what the cluster serves may have changed.
func (a *applying) lost(err error) error {
	if isGone(err) && a.mayRediscover() {
		a.mapper.Reset()
	}
	return a.note(err)
}

// yieldNamespace lets go of the namespace of an instance that somebody else has made in the meantime: it is used, and not owned.
func (a *applying) yieldNamespace(w wanted) bool {
	if w.key() != namespaceKey(a.in.Status.Namespace) || w.from != ownNamespace || a.entry(w.key()).UID != "" {
		return false
	}
	a.in.Status.Resources = slices.DeleteFunc(a.in.Status.Resources, func(r Resource) bool { return r.key() == w.key() })
	return true
}

// entry is the entry of the inventory; claim has made one of everything.
func (a *applying) entry(k resourceKey) *Resource {
	for i := range a.in.Status.Resources {
		if a.in.Status.Resources[i].key() == k {
			return &a.in.Status.Resources[i]
		}
	}
	return new(Resource)
}
