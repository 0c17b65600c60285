package workload_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// R37: an instance's namespace is chosen once: it stays the same over failures and retries, another replica, and changes of all
// that may change; and what was deployed into it is not deployed again.
func TestNamespaceIsChosenOnce(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t).Client()
	i := install(t, 0)
	stop := i.start("first")
	i.cluster("main")
	const wrong = "\n---\napiVersion: v1\nkind: Service\nmetadata: {name: wrong}\nspec: {ports: [{port: 99999}]}\n"
	i.define("web", paint+wrong)
	in := i.until("web", func(in *workload.Instance) bool { return in != nil && in.Reconciliation.Failures >= 3 })
	namespace := in.Status.Namespace
	require.True(t, strings.HasPrefix(namespace, "web-"), namespace)
	m, err := kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	same := func(in *workload.Instance) {
		t.Helper()
		require.Equal(t, namespace, in.Status.Namespace)
		all, err := kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{LabelSelector: workload.LabelInstance + "=" + in.UID})
		require.NoError(t, err)
		require.Len(t, all.Items, 1)
		require.Equal(t, namespace, all.Items[0].Name)
		now, err := kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), "web", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, m.UID, now.UID, "it was deployed again")
	}
	same(in)

	stop()
	_, err = i.definitions.Put(t.Context(), "web", workload.DefinitionSpec{Manifests: paint, Variables: []workload.Variable{{Name: "v"}}})
	require.NoError(t, err)
	_, err = i.instances.Patch(t.Context(), "web", map[string]any{"variables": map[string]string{"v": "1"}, "labels": map[string]string{"a": "b"}})
	require.NoError(t, err)
	_, err = i.instances.Patch(t.Context(), "web", map[string]any{"drift": "report"})
	require.NoError(t, err)
	stop = i.start("second")
	same(i.ready("web"))
	same(i.retried("web"))
	stop()
	i.start("third")
	same(i.retried("web"))

	_, err = i.instances.Patch(t.Context(), "web", map[string]any{"drift": "repair"})
	require.NoError(t, err)
	i.ready("web")
	require.NoError(t, kube.CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}))
	in = i.until("web", func(in *workload.Instance) bool {
		return in.Ready() && len(in.Status.Drift) > 0 && in.Status.Ready == "2/2"
	})
	require.Equal(t, namespace, in.Status.Namespace, "the same is made again")
	i.remove("web")
	i.define("web", paint)
	require.NotEqual(t, namespace, i.ready("web").Status.Namespace, "another instance, if of the same name")
	i.remove("web")
}

// going makes a namespace that was deleted and stays, until free is called.
func going(t *testing.T, name string) (free func()) {
	t.Helper()
	kube := kubetest.Start(t).Client().CoreV1()
	_, err := kube.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = kube.ConfigMaps(name).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, kube.Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}))
	return func() {
		t.Helper()
		_, err := kube.ConfigMaps(name).Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
}

// A namespace that is still going when an instance comes is waited for, and said to be what is waited for; then the instance
// makes its own.
func TestNamespaceThatIsGoingIsWaitedFor(t *testing.T) {
	kube := kubetest.Start(t)
	document := func(name string) string {
		return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n---\n" + strings.Replace(paint, "name: web}", "name: web, namespace: "+name+"}", 1)
	}
	for name, c := range map[string]struct {
		manifests string
		spec      func(*workload.InstanceSpec)
		because   string
	}{
		"going-by-spec":     {paint, func(s *workload.InstanceSpec) { s.Namespace = "going-by-spec" }, "because it is being terminated"},
		"going-by-document": {document("going-by-document"), func(*workload.InstanceSpec) {}, "Namespace going-by-document: conflict: it is there already"},
		"going-adopted":     {document("going-adopted"), func(s *workload.InstanceSpec) { s.Adopt = true }, "because it is being terminated"},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := kube.Objects(t.Context())
			require.NoError(t, err)
			i := install(t, 1)
			i.cluster("main")
			free := going(t, name)
			i.define(name, c.manifests, c.spec)
			in := i.until(name, func(in *workload.Instance) bool { return in != nil && in.Status.Waiting != "" })
			require.Contains(t, in.Status.Waiting, c.because)
			require.Contains(t, in.Reconciliation.LastError, c.because)
			free()
			i.ready(name)
			there, err := kube.Client().CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, in.UID, there.Labels[workload.LabelInstance])
			i.remove(name)
			untouched(t, kube, before)
		})
	}
}

// An instance whose definition makes a namespace that another instance's deletion has not finished with waits for it.
func TestNamespaceOfInstanceThatGoesIsWaitedFor(t *testing.T) {
	kube := kubetest.Start(t)
	before, err := kube.Objects(t.Context())
	require.NoError(t, err)
	i := install(t, 1)
	i.cluster("main")
	const own = "apiVersion: v1\nkind: Namespace\nmetadata: {name: handed-on}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, namespace: handed-on}\n"
	i.define("first", own)
	i.ready("first")
	maps := kube.Client().CoreV1().ConfigMaps("handed-on")
	hold := func(finalizers string) {
		t.Helper()
		_, err := maps.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{FieldManager: "somebody"})
		require.NoError(t, err)
	}
	hold(`["example.com/hold"]`)
	_, err = i.instances.Delete(t.Context(), "first")
	require.NoError(t, err)
	i.until("first", func(in *workload.Instance) bool { return strings.Contains(in.Status.Waiting, "example.com/hold") })
	_, err = i.instances.Put(t.Context(), "second", workload.InstanceSpec{Definition: "first", Runtime: "main"})
	require.NoError(t, err)
	in := i.until("second", func(in *workload.Instance) bool { return in != nil && in.Status.Waiting != "" })
	require.Contains(t, in.Status.Waiting, "Namespace handed-on: conflict: it belongs to instance first")
	hold("null")
	i.until("first", func(in *workload.Instance) bool { return in == nil })
	i.ready("second")
	i.remove("second")
	untouched(t, kube, before)
}

// A namespace that somebody else has is not taken by a definition that has it, unless it is to be adopted; when it is gone the
// instance makes its own.
func TestNamespaceOfSomebodyElse(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t)
	namespaces := kube.Client().CoreV1().Namespaces()
	i := install(t, 1)
	i.cluster("main")
	taken := kube.Namespace(t)
	const document = "apiVersion: v1\nkind: Namespace\nmetadata: {name: NAME}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, namespace: NAME}\n"
	i.define("newcomer", strings.ReplaceAll(document, "NAME", taken))
	in := i.until("newcomer", func(in *workload.Instance) bool { return in != nil && in.Status.Waiting != "" })
	require.Contains(t, in.Status.Waiting, "Namespace "+taken+": conflict: it is there already and belongs to somebody else: set adopt to take it over")
	there, err := namespaces.Get(t.Context(), taken, metav1.GetOptions{})
	require.NoError(t, err)
	require.NotContains(t, there.Labels, workload.LabelInstance)
	require.NoError(t, namespaces.Delete(t.Context(), taken, metav1.DeleteOptions{}))
	i.ready("newcomer")
	there, err = namespaces.Get(t.Context(), taken, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, in.UID, there.Labels[workload.LabelInstance])
	i.remove("newcomer")
}
