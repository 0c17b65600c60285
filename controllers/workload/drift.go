package workload

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// finding is what came of a look at a resource that is not as it was left.
type finding struct {
	// uid is that of the resource that is applied onto, empty if it is to be made.
	uid string
	// drift is what somebody else has done to it.
	drift string
	// fine is whether there is nothing to do.
	fine bool
	// adopted is whether it was there already and is taken over.
	adopted bool
}

// examine reads a resource that is not as its entry in the inventory says.
func (a *applying) examine(ctx context.Context, m *meta.RESTMapping, w wanted, entry *Resource) (f finding, err error) {
	live, err := a.live(ctx, m, w.GetNamespace(), w.GetName())
	if err != nil {
		return f, err
	}
	if live == nil {
		delete(a.latest, w.key())
		if entry.UID != "" {
			f.drift = "it was deleted"
		}
		return f, nil
	}
	owner := live.GetLabels()[LabelInstance]
	same := entry.Applied == w.hash
	f.uid = string(live.GetUID())
	switch {
	case owner != "" && owner != a.in.UID: // whatever was ours of it once
		return f, fmt.Errorf("%w: it belongs to instance %s", errConflict, live.GetLabels()[LabelInstanceName])
	case owner == a.in.UID && same && entry.Fields == live.fields: // the watch was behind
		f.fine = true
	case owner == a.in.UID && same:
		f.drift = changedBy(live)
		if a.in.Spec.Drift == DriftReport {
			put, err := a.isAsWanted(ctx, m, w, f.uid)
			if err != nil {
				return f, err
			}
			if put { // it was put back, and belongs to whoever did that: an apply shares it
				f.drift = ""
			}
		}
	case owner == a.in.UID:
	case f.uid == entry.UID:
		f.drift = "its label " + LabelInstance + " was taken off by " + strings.Join(live.others, ", ")
	case !a.in.Spec.Adopt:
		return f, fmt.Errorf("%w: it is there already and belongs to somebody else: set adopt to take it over", errConflict)
	default:
		f.adopted = true
	}
	a.latest[w.key()] = live
	return f, nil
}

// isAsWanted reports whether an apply would change nothing but whose the fields are.
func (a *applying) isAsWanted(ctx context.Context, m *meta.RESTMapping, w wanted, uid string) (bool, error) {
	is, err := a.resource(m, w.GetNamespace()).Get(ctx, w.GetName(), metav1.GetOptions{})
	if err != nil {
		return false, a.note(err)
	}
	u := w.DeepCopy()
	u.SetUID(types.UID(uid))
	would, err := a.resource(m, w.GetNamespace()).Apply(ctx, w.GetName(), u, metav1.ApplyOptions{FieldManager: fieldManager, DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsConflict(err) {
		return false, a.note(nil)
	}
	if err != nil {
		return false, a.note(err)
	}
	for _, u := range []*unstructured.Unstructured{is, would} {
		for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
			unstructured.RemoveNestedField(u.Object, "metadata", field)
		}
	}
	return reflect.DeepEqual(is.Object, would.Object), a.note(nil)
}

func changedBy(s *seen) string {
	if len(s.others) == 0 {
		return "it was changed"
	}
	return "it was changed by " + s.others[0]
}

const (
	// keptDrift is how many repairs are kept.
	keptDrift = 10
	// repairsAtOnce is how many repairs of a resource are made one after the other. After that each waits twice as long as the one
	// before it, from repairPause to repairPauseAtMost: somebody insists, and two who insist would do nothing else.
	repairsAtOnce                  = 3
	repairPause, repairPauseAtMost = 5 * time.Second, 10 * time.Minute
)

// pauseAfter is how long drift is left alone after so many repairs of a resource.
func pauseAfter(repairs int) time.Duration {
	if repairs < repairsAtOnce {
		return 0
	}
	return min(repairPauseAtMost, repairPause<<min(repairs-repairsAtOnce, 16))
}

// stays decides whether drift is left as it is, for now or for good, and tells of that. Where something else is wanted than was
// applied it does not.
func (a *applying) stays(entry *Resource, what string, same bool, now time.Time) bool {
	if !same {
		return false
	}
	why := what
	if a.in.Spec.Drift != DriftReport {
		if entry.RepairedAt == nil {
			return false
		}
		due := entry.RepairedAt.Add(pauseAfter(entry.Repairs))
		if !now.Before(due) {
			return false
		}
		why = fmt.Sprintf("%s, again after %d repairs: the next one is due at %s", what, entry.Repairs, due.Format(time.RFC3339))
	}
	a.leave(entry.key(), what, why, now)
	return true
}

// leave tells of drift that stays.
func (a *applying) leave(k resourceKey, what, why string, now time.Time) {
	what = a.tell(what)
	one := Drifted{Resource: k.String(), What: what, At: now.UTC()}
	if i := slices.IndexFunc(a.before, func(d Drifted) bool {
		return !d.Repaired && d.Resource == one.Resource && d.What == what
	}); i >= 0 {
		one = a.before[i]
	}
	a.in.Status.Drift = append(a.in.Status.Drift, one)
	a.drifted[k] = why
}

// repaired tells of drift that was repaired.
func (a *applying) repaired(entry *Resource, what string, now time.Time) {
	what = a.tell(what)
	now = now.UTC()
	entry.Repairs, entry.RepairedAt = entry.Repairs+1, &now
	one := Drifted{Resource: entry.key().String(), What: what, Repaired: true}
	a.in.Status.Drift = slices.DeleteFunc(a.in.Status.Drift, func(d Drifted) bool {
		same := d.Repaired && d.Resource == one.Resource && d.What == what
		if same {
			one.Times = d.Times
		}
		return same
	})
	one.At = now
	one.Times++
	a.in.Status.Drift = append(a.in.Status.Drift, one)
	old := -keptDrift
	for _, d := range a.in.Status.Drift {
		if d.Repaired {
			old++
		}
	}
	a.in.Status.Drift = slices.DeleteFunc(a.in.Status.Drift, func(d Drifted) bool {
		if !d.Repaired || old <= 0 {
			return false
		}
		old--
		return true
	})
}

// calm forgets repairs of a resource that has stayed as it was left for longer than its next repair would have waited.
func (r *Resource) calm(now time.Time) {
	if r.RepairedAt != nil && now.Sub(*r.RepairedAt) > max(repairPauseAtMost, 2*pauseAfter(r.Repairs)) {
		r.Repairs, r.RepairedAt = 0, nil
	}
}
