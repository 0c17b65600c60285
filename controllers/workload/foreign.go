package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// errEnough ends a list.
var errEnough = errors.New("enough")

// foreign names a resource of the kind of a definition that is somebody else's: with the definition it would go.
//
// What belongs to another resource, by its owner references, was made by whoever serves its owner's kind, and goes with the
// owner: if that is the instance's, or of a kind that the instance defines and of which nobody else has made any.
func (a *applying) foreign(ctx context.Context, name string) (who string, err error) {
	theirs, derived, err := a.notOurs(ctx, name)
	if err != nil {
		return "", err
	}
	if theirs != "" {
		return theirs + " is somebody else's and would go with it", nil
	}
	if derived == "" {
		return "", nil
	}
	for i := range a.in.Status.Resources {
		r := &a.in.Status.Resources[i]
		if r.gvk().GroupKind() != phases[phaseCRDs][0] || r.Name == name {
			continue
		}
		theirs, _, err := a.notOurs(ctx, r.Name)
		if err != nil {
			return "", err
		}
		if theirs != "" {
			return derived + " belongs to what is somebody else's and would go with it", nil
		}
	}
	return "", nil
}

// notOurs names a resource of the kind of a definition that somebody else has made, and one that was derived from another.
func (a *applying) notOurs(ctx context.Context, definition string) (theirs, derived string, err error) {
	m, known, err := a.mappingOf(phases[phaseCRDs][0])
	if err != nil || !known {
		return "", "", err
	}
	d, err := a.resource(m, "").Get(ctx, definition, metav1.GetOptions{})
	if isGone(err) {
		return "", "", a.note(nil)
	}
	if err != nil {
		return "", "", a.note(err)
	}
	group, _, _ := unstructured.NestedString(d.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(d.Object, "spec", "names", "plural")
	err = a.list(ctx, schema.GroupVersionResource{Group: group, Version: servedVersion(d), Resource: plural}, "", metav1.ListOptions{},
		func(u *unstructured.Unstructured) error {
			switch {
			case u.GetLabels()[LabelInstance] == a.in.UID:
			case slices.ContainsFunc(u.GetOwnerReferences(), a.isOurs):
				derived = keyOf(u).String()
			default:
				theirs = keyOf(u).String()
				return errEnough
			}
			return nil
		})
	if isGone(err) || errors.Is(err, errEnough) { // none are served
		err = nil
	}
	if err = a.note(err); err != nil {
		return "", "", fmt.Errorf("look for what is somebody else's: %w", err)
	}
	return theirs, derived, nil
}

// isOurs reports whether an owner is in the inventory, or of a group of which a definition is.
func (a *applying) isOurs(owner metav1.OwnerReference) bool {
	gv, _ := schema.ParseGroupVersion(owner.APIVersion) // an API server's
	return slices.ContainsFunc(a.in.Status.Resources, func(r Resource) bool {
		_, group, _ := strings.Cut(r.Name, ".") // the name of a definition is its plural and its group
		return r.UID != "" && r.UID == string(owner.UID) || r.gvk().GroupKind() == phases[phaseCRDs][0] && group == gv.Group
	})
}

// servedVersion is a version in which the resources of a definition are served: that in which they are stored, if it is one of
// them, because nobody has to convert it.
func servedVersion(definition *unstructured.Unstructured) (version string) {
	all, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, one := range all {
		v, _ := one.(map[string]any)
		if name, _ := v["name"].(string); v["served"] == true && (version == "" || v["storage"] == true) {
			version = name
		}
	}
	return version
}
