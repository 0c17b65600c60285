package workload

import (
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

// write is a request that has changed something in a kube: before became after, nil if it was deleted.
type write struct {
	attempt       reconciler.Attempt
	replica       string
	method        string
	key           kubeKey
	before, after *unstructured.Unstructured
}

// watching says what is wrong with a write at the moment it takes effect. Callers hold mu.
func (k *kube) watching(w write) {
	blame := func(format string, args ...any) {
		k.wrong = append(k.wrong, fmt.Sprintf("%s of %s by %s (fence %d): ", w.method, w.key, w.replica, w.attempt.Fence)+fmt.Sprintf(format, args...))
	}
	if highest := k.fences[w.attempt.Name]; w.attempt.Fence < highest {
		blame("it is late, after a request with fence %d", highest)
	}
	if f := k.foreign[w.key]; f != nil && f == w.before {
		blame("it is somebody else's")
	}
	if left := k.left[w.key]; left != nil && left == w.before && w.after != nil {
		blame("drift is to be left alone")
	}
	in := k.stored(w.attempt.Name)
	if in == nil {
		blame("its instance is gone")
		return
	}
	if w.after == nil {
		k.watchingDelete(in, w, blame)
		return
	}
	if !slices.ContainsFunc(in.Status.Resources, func(r Resource) bool {
		return r.Name == w.key.name && r.Namespace == w.key.namespace && r.Kind == w.after.GetKind()
	}) {
		blame("it is in no inventory")
	}
	if w.before == nil && w.key.rank() == shopWeb.rank() && k.objects[shopSettings] == nil {
		blame("what it needs is not there yet")
	}
}

// watchingDelete says what is wrong with a deletion: what is wanted instead is there before, and of an instance that goes, the
// last phase goes first. What is replaced may be pruned by a run that began before its instance was to go.
func (k *kube) watchingDelete(in *Instance, w write, blame func(string, ...any)) {
	instead := map[kubeKey]kubeKey{shopLeft: shopRight, shopRight: shopLeft}[w.key]
	switch {
	case k.objects[instead] != nil:
		return
	case in.DeletedAt == nil:
		blame("%s is not there yet", instead)
	}
	for key, u := range k.objects {
		if in.DeletedAt != nil && key.rank() > w.key.rank() && u.GetLabels()[LabelInstance] == in.UID {
			blame("%s is still there", key)
		}
	}
}

// wrongs is what was wrong with writes, and with what there is now: exactly what is wanted of an instance, nil if there is none,
// is there, and what is somebody else's is as it was.
func (k *kube) wrongs(in *Instance) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	wrong := slices.Clone(k.wrong)
	blame := func(key kubeKey, format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("%s "+format, append([]any{key}, args...)...))
	}
	wanted := map[kubeKey]string{}
	if in != nil {
		wanted = ofShop(in)
	}
	for key, rev := range wanted {
		switch u := k.objects[key]; {
		case u == nil:
			blame(key, "is not there")
		case u.GetLabels()[LabelInstance] != in.UID:
			blame(key, "bears the label of %q, want %q", u.GetLabels()[LabelInstance], in.UID)
		case revOf(u) != rev:
			blame(key, "has rev %q, want %q", revOf(u), rev)
		}
	}
	for key, u := range k.objects {
		_, want := wanted[key]
		if f := k.foreign[key]; !want && f == nil {
			blame(key, "is left, of %q", u.GetLabels()[LabelInstance])
		}
	}
	for key, f := range k.foreign {
		if _, want := wanted[key]; !want && !reflect.DeepEqual(k.objects[key], f) {
			blame(key, "was somebody else's, and is not as it was")
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}
