package workload

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// errEnough ends a list.
var errEnough = errors.New("enough")

// foreign names a resource of the kinds of a definition that is not this instance's: with the definition it would go. What
// belongs to another resource, by its owner references, was made by whoever serves the kind, and goes with the rest.
func (a *applying) foreign(ctx context.Context, m *meta.RESTMapping, name string) (who string, err error) {
	definition, err := a.resource(m, "").Get(ctx, name, metav1.GetOptions{})
	if isGone(err) {
		return "", a.note(nil)
	}
	if err != nil {
		return "", a.note(err)
	}
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	err = a.list(ctx, schema.GroupVersionResource{Group: group, Version: servedVersion(definition), Resource: plural}, "", metav1.ListOptions{},
		func(u *unstructured.Unstructured) error {
			if u.GetLabels()[LabelInstance] == a.in.UID || len(u.GetOwnerReferences()) > 0 {
				return nil
			}
			who = keyOf(u).String() + " is somebody else's and would go with it"
			return errEnough
		})
	if isGone(err) || errors.Is(err, errEnough) { // none are served
		return who, nil
	}
	if err != nil {
		return "", fmt.Errorf("look for what is somebody else's: %w", err)
	}
	return "", nil
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
