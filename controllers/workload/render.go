package workload

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Labels of everything that is applied.
const (
	// LabelInstance has the uid of the instance. What has another one, or none, is not touched.
	LabelInstance = "evenkeel.io/instance"
	// LabelInstanceName has its name.
	LabelInstanceName = "evenkeel.io/instance-name"
)

// wanted is a resource as it is to be.
type wanted struct {
	*unstructured.Unstructured
	// from is the document that it comes from, for people.
	from string
	// hash stands for all of it. What is secret shows in it as the generation of the instance: a sum of a secret lets guess it.
	hash string
}

// key names it in an inventory.
func (w wanted) key() resourceKey {
	return resourceKey{w.GroupVersionKind().GroupKind(), w.GetNamespace(), w.GetName()}
}

// resourceKey names a resource in a cluster, whatever its version.
type resourceKey struct {
	schema.GroupKind
	namespace, name string
}

func (k resourceKey) String() string {
	text := k.Kind + " " + k.name
	if k.Group != "" {
		text = k.Kind + "." + k.Group + " " + k.name
	}
	if k.namespace != "" {
		text += " in " + k.namespace
	}
	return text
}

func (r *Resource) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
}

func (r *Resource) key() resourceKey {
	return resourceKey{r.gvk().GroupKind(), r.Namespace, r.Name}
}

// scopes says of a kind whether its resources are in namespaces. known is false for a kind that the cluster has not heard of.
type scopes func(schema.GroupVersionKind) (namespaced, known bool, err error)

// render makes of documents what is wanted for an instance, in the order in which it is applied.
func render(in *Instance, definition *DefinitionSpec, docs []document, namespace string, scope scopes) ([]wanted, error) {
	given := maps.Clone(in.Spec.SecretVariables)
	if given == nil {
		given = map[string]string{}
	}
	maps.Copy(given, in.Spec.Variables)
	vs, err := valuesFor(definition.Variables, given)
	if err != nil {
		return nil, err
	}
	shown := vs.hiding(in)
	own := definedScopes(docs)
	all := make([]wanted, 0, len(docs))
	seen := map[resourceKey]string{}
	generated := map[string]int{}
	for _, d := range docs {
		u := d.DeepCopy()
		vs.fill(u.Object)
		sum := ""
		if shown != nil {
			sum = shown.sumOf(d, u, in.Generation)
		}
		inData(u)
		gvk := u.GroupVersionKind()
		namespaced, known := own[gvk.GroupKind()]
		if !known {
			if namespaced, known, err = scope(gvk); err != nil {
				return nil, err
			}
		}
		if !known {
			return nil, fmt.Errorf("%s: the cluster knows no %s of %s, and no document defines it", d, gvk.Kind, gvk.GroupVersion())
		}
		if err := checkFilled(u); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", errManifests, d, err)
		}
		switch {
		case !namespaced:
			u.SetNamespace("")
		case u.GetNamespace() == "":
			u.SetNamespace(namespace)
		}
		generateName(in, u, generated)
		label(in, u)
		w := wanted{u, d.String(), cmp.Or(sum, hashOf(u.Object))}
		if before, ok := seen[w.key()]; ok {
			return nil, fmt.Errorf("%s: with the instance's variables it is the same as %s", d, before)
		}
		seen[w.key()] = d.String()
		all = append(all, w)
	}
	inOrder(all)
	return all, nil
}

// inData moves stringData of a secret to its data, as the API server does: it keeps no account of whose the data is then, so that
// nobody would notice when somebody changes it.
func inData(u *unstructured.Unstructured) {
	texts, ok := u.Object["stringData"].(map[string]any)
	if !ok || u.GroupVersionKind() != (schema.GroupVersionKind{Version: "v1", Kind: "Secret"}) {
		return
	}
	data, ok := u.Object["data"].(map[string]any)
	if !ok {
		data = map[string]any{}
	}
	for k, v := range texts {
		text, ok := v.(string)
		if !ok {
			return // the API server says what is wrong
		}
		data[k] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	u.Object["data"] = data
	delete(u.Object, "stringData")
}

// checkFilled checks what variables may have come to.
func checkFilled(u *unstructured.Unstructured) error {
	for field, name := range map[string]string{"name": u.GetName(), "namespace": u.GetNamespace()} {
		if wrong := content.IsPathSegmentName(name); len(wrong) > 0 {
			return fmt.Errorf("metadata.%s %q: %s", field, name, wrong[0])
		}
	}
	if u.GetName() == "" && u.GetGenerateName() == "" {
		return errors.New("metadata.name: want a text that is not empty")
	}
	for _, field := range []string{"labels", "annotations"} {
		if _, _, err := unstructured.NestedStringMap(u.Object, "metadata", field); err != nil {
			return fmt.Errorf("metadata.%s: want texts", field)
		}
	}
	return nil
}

// definedScopes are those of the kinds that the documents themselves define.
func definedScopes(docs []document) map[schema.GroupKind]bool {
	all := map[schema.GroupKind]bool{}
	for _, d := range docs {
		if d.GroupVersionKind().GroupKind() != phases[phaseCRDs][0] {
			continue
		}
		group, _, _ := unstructured.NestedString(d.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(d.Object, "spec", "names", "kind")
		scope, _, _ := unstructured.NestedString(d.Object, "spec", "scope")
		all[schema.GroupKind{Group: group, Kind: kind}] = scope != "Cluster"
	}
	return all
}

// generateName gives a name to what has only the beginning of one: always the same for an instance, so that a repetition
// does not make another.
func generateName(in *Instance, u *unstructured.Unstructured, count map[string]int) {
	prefix := u.GetGenerateName()
	if u.GetName() != "" || prefix == "" {
		return
	}
	id := u.GetKind() + "/" + u.GetNamespace() + "/" + prefix
	count[id]++
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", in.UID, id, count[id]))
	u.SetGenerateName("")
	u.SetName(prefix[:min(len(prefix), 53)] + hex.EncodeToString(sum[:5]))
}

// label puts labels on a resource. What its document says of the well-known ones stays.
func label(in *Instance, u *unstructured.Unstructured) {
	labels := map[string]string{
		"app.kubernetes.io/managed-by": "evenkeel",
		"app.kubernetes.io/name":       in.Spec.Definition,
		"app.kubernetes.io/instance":   in.Name,
	}
	maps.Copy(labels, u.GetLabels())
	maps.Copy(labels, in.Spec.Labels)
	labels[LabelInstance] = in.UID
	labels[LabelInstanceName] = in.Name
	u.SetLabels(labels)
}

func hashOf(object map[string]any) string {
	data, _ := json.Marshal(object) // keys are in order; what was decoded encodes
	return sumOf(data)
}

// sumOf stands for data: 96 bits of a sum, as text.
func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// namespaceOf is the namespace that an instance without one gets.
func namespaceOf(in *Instance) string {
	sum := sha256.Sum256([]byte(in.UID))
	return in.Name[:min(len(in.Name), 52)] + "-" + hex.EncodeToString(sum[:5])
}
