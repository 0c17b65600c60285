package workload

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var namespaceKind = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}

func namespaceKey(name string) resourceKey {
	return resourceKey{namespaceKind.GroupKind(), "", name}
}

// namespace chooses the namespace of an instance, once. own reports whether it is the instance's: one that was there before
// is somebody else's.
func (c *Controller) namespace(ctx context.Context, in *Instance, cl *cluster) (own bool, err error) {
	if in.Status.Namespace == "" {
		in.Status.Namespace = in.Spec.Namespace
		if in.Status.Namespace == "" {
			in.Status.Namespace = namespaceOf(in)
		}
	}
	name := in.Status.Namespace
	for i := range in.Status.Resources {
		if in.Status.Resources[i].key() == namespaceKey(name) {
			return true, nil
		}
	}
	if in.Spec.Namespace == "" {
		return true, nil
	}
	if in.Status.DefinitionGeneration != 0 || len(in.Status.Resources) > 0 { // it was found to be somebody else's
		return false, nil
	}
	m, known, err := cl.mapping(namespaceKind)
	if !known {
		return false, fmt.Errorf("namespace %s: the cluster does not say whether it is there: %w", name, cmp.Or(err, errNoAnswer))
	}
	there, err := cl.live(ctx, m, "", name)
	if err != nil {
		return false, err
	}
	return there == nil || there.GetLabels()[LabelInstance] == in.UID, nil
}

// ownNamespace is where the namespace of an instance comes from.
const ownNamespace = "the instance's namespace"

// namespaceFor is the namespace of an instance as a resource.
func namespaceFor(in *Instance) wanted {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(namespaceKind)
	u.SetName(in.Status.Namespace)
	label(in, u)
	return wanted{u, ownNamespace, hashOf(u.Object)}
}
