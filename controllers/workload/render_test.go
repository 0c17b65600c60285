package workload

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// known knows every kind, and some that are in no namespace.
func known(gvk schema.GroupVersionKind) (namespaced, known bool, err error) {
	switch gvk.Kind {
	case "Unheard":
		return false, false, nil
	case "Namespace", "CustomResourceDefinition", "ClusterRole", "ValidatingWebhookConfiguration", "ClusterRoleBinding":
		return false, true, nil
	}
	return true, true, nil
}

func rendered(t *testing.T, in *Instance, d DefinitionSpec) ([]wanted, error) {
	t.Helper()
	docs, err := parse(d.Manifests)
	require.NoError(t, err)
	return render(in, &d, docs, "home", known)
}

//go:fix inline
func TestVariablesAreFilledIn(t *testing.T) {
	d := DefinitionSpec{
		Manifests: `apiVersion: v1
kind: Thing
metadata: {name: "${name}-x"}
spec:
  whole: ${count}
  text: "n=${count} $${count} ${other} ${name}"
  flag: ${flag}
  list: ["${name}", 1, {"${name}": "${name}"}]
`,
		Variables: []Variable{
			{Name: "name", Default: new("a")}, {Name: "count", Type: "integer"}, {Name: "flag", Type: "boolean", Default: new("true")},
		},
	}
	in := &Instance{Name: "i", UID: "u", Spec: InstanceSpec{Variables: map[string]string{"count": "3"}}}
	all, err := rendered(t, in, d)
	require.NoError(t, err)
	require.Equal(t, "a-x", all[0].GetName())
	require.Equal(t, map[string]any{
		"whole": int64(3), "text": "n=3 ${count} ${other} a", "flag": true,
		"list": []any{"a", int64(1), map[string]any{"${name}": "a"}},
	}, all[0].Object["spec"])

	for want, given := range map[string]map[string]string{
		"spec.variables.count: it has no default":                  {},
		`spec.variables.count: want a whole number`:                {"count": "many"},
		`spec.variables.flag: want true or false`:                  {"count": "1", "flag": "yes"},
		"spec.variables.more: the definition has no such variable": {"count": "1", "more": "1"},
	} {
		in.Spec.Variables = given
		_, err := rendered(t, in, d)
		require.ErrorIs(t, err, errVariables)
		require.ErrorContains(t, err, want)
	}
	in.Spec.Variables, in.Spec.SecretVariables = map[string]string{"count": "3"}, map[string]string{"name": "b", "count": "4"}
	all, err = rendered(t, in, d)
	require.NoError(t, err)
	require.Equal(t, "b-x", all[0].GetName())
	require.Equal(t, int64(3), all[0].Object["spec"].(map[string]any)["whole"])
	in.Spec.SecretVariables["flag"] = "hunter2"
	_, err = rendered(t, in, d)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hunter2")
}

// What an inventory says of a document does not let anybody guess what is secret in it, and changes when that does.
func TestSecretsAreInNoSum(t *testing.T) {
	d := DefinitionSpec{
		Manifests: "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {p: '${p}'}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {q: '${q}'}\n",
		Variables: []Variable{{Name: "p"}, {Name: "q"}},
	}
	sums := func(generation int64, p, q string) [2]string {
		t.Helper()
		all, err := rendered(t, &Instance{Name: "i", UID: "u", Generation: generation, Spec: InstanceSpec{
			SecretVariables: map[string]string{"p": p, "q": "not this one"}, Variables: map[string]string{"q": q},
		}}, d)
		require.NoError(t, err)
		require.Equal(t, map[string]any{"p": base64.StdEncoding.EncodeToString([]byte(p))}, all[0].Object["data"])
		return [2]string{all[0].hash, all[1].hash}
	}
	first := sums(1, "a", "b")
	require.Equal(t, first, sums(1, "another", "b"), "the secret is not in it")
	next := sums(2, "another", "b")
	require.NotEqual(t, first[0], next[0], "whoever changes it makes a generation")
	require.Equal(t, first[1], next[1], "nothing secret is in this one")
	require.NotEqual(t, next[1], sums(2, "another", "c")[1])
}

// TestWhatVariablesComeToIsChecked, before anything is claimed that no cluster takes.
func TestWhatVariablesComeToIsChecked(t *testing.T) {
	for manifests, want := range map[string]string{
		"apiVersion: v1\nkind: A\nmetadata: {name: '${empty}'}\n":               "metadata.name: want a text that is not empty",
		"apiVersion: v1\nkind: A\nmetadata: {name: '${n}'}\n":                   "metadata.name: want a text that is not empty",
		"apiVersion: v1\nkind: A\nmetadata: {name: '${slash}'}\n":               `metadata.name "a/b"`,
		"apiVersion: v1\nkind: A\nmetadata: {name: a, namespace: '${slash}'}\n": `metadata.namespace "a/b"`,
		"apiVersion: v1\nkind: A\nmetadata: {name: a, labels: {x: '${n}'}}\n":   "metadata.labels: want texts",
		"apiVersion: v1\nkind: A\nmetadata: {name: a, annotations: {x: [1]}}\n": "metadata.annotations: want texts",
	} {
		_, err := rendered(t, &Instance{Name: "i", UID: "u"}, DefinitionSpec{Manifests: manifests, Variables: []Variable{
			{Name: "empty", Default: new("")}, {Name: "slash", Default: new("a/b")}, {Name: "n", Type: "integer", Default: new("3")},
		}})
		require.ErrorIs(t, err, errManifests, manifests)
		require.ErrorContains(t, err, want)
	}
}

func TestResourcesAreInOrder(t *testing.T) {
	var docs []string
	for _, k := range []string{
		"admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration", "example.com/v1 Custom", "apps/v1 Deployment", "v1 Service", "v1 Secret",
		"rbac.authorization.k8s.io/v1 ClusterRoleBinding", "rbac.authorization.k8s.io/v1 ClusterRole", "apiextensions.k8s.io/v1 CustomResourceDefinition", "v1 Namespace",
	} {
		v, kind, _ := strings.Cut(k, " ")
		docs = append(docs, "apiVersion: "+v+"\nkind: "+kind+"\nmetadata: {name: a}\n")
	}
	all, err := rendered(t, &Instance{Name: "i", UID: "u"}, DefinitionSpec{Manifests: strings.Join(docs, "---\n")})
	require.NoError(t, err)
	var kinds []string
	for _, w := range all {
		kinds = append(kinds, w.GetKind())
	}
	require.Equal(t, []string{
		"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Secret", "Service", "Deployment", "Custom", "ValidatingWebhookConfiguration",
	}, kinds)
}

func TestEverythingIsLabeledAndInItsNamespace(t *testing.T) {
	in := &Instance{Name: "shop", UID: "u-1", Spec: InstanceSpec{Definition: "web", Labels: map[string]string{"team": "a", LabelInstance: "forged"}}}
	all, err := rendered(t, in, DefinitionSpec{Manifests: `
apiVersion: v1
kind: ConfigMap
metadata: {name: a, labels: {app.kubernetes.io/name: own, evenkeel.io/instance: forged}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: elsewhere}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: a, namespace: nonsense}
`})
	require.NoError(t, err)
	require.Equal(t, "", all[0].GetNamespace())
	require.Equal(t, "home", all[1].GetNamespace())
	require.Equal(t, "elsewhere", all[2].GetNamespace())
	require.Equal(t, map[string]string{
		"app.kubernetes.io/managed-by": "evenkeel", "app.kubernetes.io/name": "own", "app.kubernetes.io/instance": "shop",
		"team": "a", LabelInstance: "u-1", LabelInstanceName: "shop",
	}, all[1].GetLabels())
	require.Equal(t, "web", all[2].GetLabels()["app.kubernetes.io/name"])
}

// R37: what gets a name of our making gets the same one at every attempt, and another one for another instance.
func TestNamesAreMadeOnce(t *testing.T) {
	const job = "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: run-}\n"
	names := func(uid string) (all []string) {
		ws, err := rendered(t, &Instance{Name: "i", UID: uid}, DefinitionSpec{Manifests: job + "---\n" + job})
		require.NoError(t, err)
		for _, w := range ws {
			require.Empty(t, w.GetGenerateName())
			all = append(all, w.GetName())
		}
		return all
	}
	first := names("u-1")
	require.Equal(t, first, names("u-1"))
	require.NotEqual(t, first[0], first[1])
	require.NotContains(t, names("u-2"), first[0])
	require.Regexp(t, `^run-[0-9a-f]{10}$`, first[0])
	a, b := namespaceOf(&Instance{Name: strings.Repeat("x", 63), UID: "1"}), namespaceOf(&Instance{Name: strings.Repeat("x", 63), UID: "2"})
	require.NotEqual(t, a, b)
	require.LessOrEqual(t, len(a), 63)
}

func TestUnknownKindsAreNamed(t *testing.T) {
	const custom = "apiVersion: example.com/v1\nkind: Unheard\nmetadata: {name: a}\n"
	_, err := rendered(t, &Instance{Name: "i"}, DefinitionSpec{Manifests: custom})
	require.EqualError(t, err, "document 1 (line 1, Unheard a): the cluster knows no Unheard of example.com/v1, and no document defines it")
	const definition = "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: unheards.example.com}\n" +
		"spec: {group: example.com, scope: Cluster, names: {kind: Unheard}}\n"
	all, err := rendered(t, &Instance{Name: "i"}, DefinitionSpec{Manifests: custom + definition})
	require.NoError(t, err)
	require.Empty(t, all[1].GetNamespace(), "its scope is that of its definition")
	_, err = rendered(t, &Instance{Name: "i"}, DefinitionSpec{
		Manifests: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: '${n}'}\n", Variables: []Variable{{Name: "n", Default: new("a")}},
	})
	require.ErrorContains(t, err, "it is the same as document 1 (line 1, Pod a)")
}

// TestOthersCannotBeSeenInWhatIsKept: of a secret, and of what is large, nothing is kept.
func TestLittleIsKeptOfAResource(t *testing.T) {
	s := look(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "data": map[string]any{"password": "aHVudGVyMg=="}, "stringData": map[string]any{"password": "hunter2"},
		"metadata": map[string]any{"name": "a", "annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "hunter2"}},
	}})
	data, err := s.MarshalJSON()
	require.NoError(t, err)
	require.JSONEq(t, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`, string(data))
}
