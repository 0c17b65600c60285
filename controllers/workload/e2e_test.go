package workload_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: example.com/web:1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {colour: blue}
`

// R38: a change of the manifests takes effect, also on what has left them, and a deletion is over when everything is gone.
func TestDeployedChangedAndRemoved(t *testing.T) {
	i := install(t, 2)
	i.cluster("main")
	before, err := kubetest.Start(t).Objects(t.Context())
	require.NoError(t, err)
	i.define("web", web)
	in := i.ready("web")
	require.Equal(t, "4/4", in.Status.Ready)
	kube := kubetest.Start(t).Client()
	d, err := kube.AppsV1().Deployments(in.Status.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, int32(2), d.Status.AvailableReplicas)
	require.Equal(t, in.UID, d.Labels[workload.LabelInstance])

	_, err = i.definitions.Patch(t.Context(), "web", map[string]any{"manifests": web[:len(web)-len("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {colour: blue}\n")]})
	require.NoError(t, err)
	in = i.until("web", func(in *workload.Instance) bool {
		return in.Ready() && in.Status.Ready == "3/3" && in.Status.DefinitionGeneration == 2
	})
	require.Len(t, in.Status.Resources, 3)
	_, err = kube.CoreV1().ConfigMaps(in.Status.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.Error(t, err)

	i.remove("web")
	untouched(t, kubetest.Start(t), before)
}

// R38: what somebody else changes or deletes is repaired, and it is said who did; or it is only reported.
func TestDriftIsRepairedOrReported(t *testing.T) {
	t.Parallel()
	i := install(t, 2)
	i.cluster("main")
	i.define("mended", web)
	i.define("told", web, func(s *workload.InstanceSpec) { s.Drift = workload.DriftReport })
	kube := kubetest.Start(t).Client()
	break1 := func(namespace string) {
		_, err := kube.AppsV1().Deployments(namespace).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{FieldManager: "a-hand"})
		require.NoError(t, err)
		require.NoError(t, kube.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	}
	mended, told := i.ready("mended"), i.ready("told")
	break1(mended.Status.Namespace)
	break1(told.Status.Namespace)

	mended = i.until("mended", func(in *workload.Instance) bool { return in.Ready() && len(in.Status.Drift) >= 2 })
	d, err := kube.AppsV1().Deployments(mended.Status.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, int32(2), *d.Spec.Replicas)
	_, err = kube.CoreV1().ConfigMaps(mended.Status.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	said := map[string]string{}
	for _, one := range mended.Status.Drift {
		require.True(t, one.Repaired)
		said[one.Resource] = one.What
	}
	require.Equal(t, map[string]string{
		"Deployment.apps web in " + mended.Status.Namespace: "it was changed by a-hand",
		"ConfigMap web in " + mended.Status.Namespace:       "it was deleted",
	}, said)

	told = i.until("told", func(in *workload.Instance) bool { return !in.Ready() && len(in.Status.Drift) == 2 })
	d, err = kube.AppsV1().Deployments(told.Status.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, int32(5), *d.Spec.Replicas)
	require.Contains(t, told.Reconciliation.LastError, "is Drifted: it was ")
	_, err = kube.AppsV1().Deployments(told.Status.Namespace).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{FieldManager: "a-hand"})
	require.NoError(t, err)
	_, err = i.instances.Patch(t.Context(), "told", map[string]any{"drift": "repair"})
	require.NoError(t, err)
	i.ready("told")
}

// Nothing foreign is touched: what is there already is a conflict, and is taken over only on request; what is another
// instance's never.
func TestForeignResourcesAreAConflict(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	kube := kubetest.Start(t)
	namespace := kube.Namespace(t)
	const foreign = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine}\ndata: {colour: blue}\n"
	require.NoError(t, kube.Apply(t.Context(), strings.Replace(foreign, "name: mine", "name: mine, namespace: "+namespace, 1)))
	maps := kube.Client().CoreV1().ConfigMaps(namespace)
	before, err := maps.Get(t.Context(), "mine", metav1.GetOptions{})
	require.NoError(t, err)
	i.define("thief", strings.Replace(foreign, "blue", "red", 1), func(s *workload.InstanceSpec) { s.Namespace = namespace })
	i.fails("thief", "ConfigMap mine in "+namespace+": conflict: it is there already and belongs to somebody else: set adopt to take it over")
	i.remove("thief")
	after, err := maps.Get(t.Context(), "mine", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, before, after)

	i.define("heir", strings.Replace(foreign, "blue", "red", 1), func(s *workload.InstanceSpec) { s.Namespace, s.Adopt = namespace, true })
	i.ready("heir")
	after, err = maps.Get(t.Context(), "mine", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "red", after.Data["colour"])
	i.define("other", foreign, func(s *workload.InstanceSpec) { s.Namespace, s.Adopt = namespace, true })
	i.fails("other", "conflict: it belongs to instance heir")
	i.remove("other")
	_, err = i.instances.Patch(t.Context(), "heir", map[string]any{"onDelete": "keep"})
	require.NoError(t, err)
	i.remove("heir")
	after, err = maps.Get(t.Context(), "mine", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "red", after.Data["colour"])
	require.NotContains(t, after.Labels, workload.LabelInstance)
	_, err = kube.Client().CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
	require.NoError(t, err, "the namespace was there before")
}

const baskets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: baskets.shop.example.com}
spec:
  group: shop.example.com
  scope: Namespaced
  names: {kind: Basket, plural: baskets, singular: basket, listKind: BasketList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// A definition with its custom resources, in any order of the documents, and what keeps an instance from being ready.
func TestCustomResourcesWaitForTheirDefinition(t *testing.T) {
	i := install(t, 1)
	i.cluster("main")
	i.define("custom", "apiVersion: shop.example.com/v1\nkind: Basket\nmetadata: {name: a}\nspec: {apples: 3}\n---"+baskets)
	i.ready("custom")
	i.remove("custom")
	crds, err := kubetest.Start(t).Objects(t.Context())
	require.NoError(t, err)
	for _, o := range crds {
		require.NotContains(t, o.Name, "shop.example.com")
	}
}

// An instance that is not ready says why, in the words of its pods.
func TestWaitingIsExplained(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	held := strings.Replace(web, "metadata: {labels: {app: web}}", `metadata: {labels: {app: web}, annotations: {evenkeel.io/hold-pod: "yes"}}`, 1)
	i.define("held", held)
	in := i.until("held", func(in *workload.Instance) bool {
		return in != nil && in.Status.Waiting != "" && in.Status.Ready == "3/4"
	})
	require.Equal(t, apiclient.StateWaiting, in.Reconciliation.State)
	require.Contains(t, in.Status.Waiting, "Deployment.apps web in "+in.Status.Namespace+" is InProgress: ")
	unschedulable := strings.Replace(web, "spec: {containers:", "spec: {nodeSelector: {no: node}, containers:", 1)
	i.define("nowhere", unschedulable)
	in = i.until("nowhere", func(in *workload.Instance) bool {
		return in != nil && strings.Contains(in.Status.Waiting, "Unschedulable")
	})
	require.Regexp(t, "pod web-.*: Unschedulable: ", in.Status.Waiting)
	_, err := i.definitions.Put(t.Context(), "held", workload.DefinitionSpec{Manifests: web})
	require.NoError(t, err)
	i.ready("held")
}

// What is in use cannot be deleted.
func TestWhatIsInUseStays(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	i.define("web", web)
	i.ready("web")
	ctx := t.Context()
	_, err := i.runtimes.Delete(ctx, "main")
	require.NoError(t, err)
	_, err = i.definitions.Delete(ctx, "web")
	require.NoError(t, err)
	_, err = i.runtimes.WaitFor(ctx, "main", func(r *workload.Runtime) bool { return r.Reconciliation.LastError == "in use by instance web" })
	require.NoError(t, err)
	i.remove("web")
	_, err = i.runtimes.WaitFor(ctx, "main", func(r *workload.Runtime) bool { return r == nil })
	require.NoError(t, err)
	_, err = i.definitions.WaitFor(ctx, "web", func(d *workload.Definition) bool { return d == nil })
	require.NoError(t, err)
}

// A workload is a definition and an instance, and goes with them.
func TestWorkloadInOne(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	_, err := i.workloads.Create(t.Context(), "shop", workload.WorkloadSpec{Manifests: web, Runtime: "main"})
	require.NoError(t, err)
	w, err := i.workloads.WaitFor(t.Context(), "shop", (*workload.Workload).Ready)
	require.NoError(t, err)
	require.Equal(t, "4/4", w.Status.Ready)
	_, err = i.workloads.Delete(t.Context(), "shop")
	require.NoError(t, err)
	_, err = i.workloads.WaitFor(t.Context(), "shop", func(w *workload.Workload) bool { return w == nil })
	require.NoError(t, err)
	_, err = i.instances.Get(t.Context(), "shop")
	require.ErrorIs(t, err, apiclient.ErrNotFound)
	_, err = i.definitions.Get(t.Context(), "shop")
	require.ErrorIs(t, err, apiclient.ErrNotFound)
}

// A cluster that does not answer shows, and heals by itself.
func TestClusterThatIsCutOffHeals(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	kube := kubetest.Start(t)
	link := kube.Link(t)
	text := kubeconfigOf(t, link.Over(kube.Config()))
	_, err := i.runtimes.Put(t.Context(), "main", workload.RuntimeSpec{Kubeconfig: text})
	require.NoError(t, err)
	i.define("web", web)
	in := i.ready("web")
	link.Cut()
	_, err = i.instances.Patch(t.Context(), "web", map[string]any{"labels": map[string]string{"a": "b"}})
	require.NoError(t, err)
	i.until("web", func(in *workload.Instance) bool {
		return strings.Contains(in.Reconciliation.LastError, "runtime main: ")
	})
	_, err = i.runtimes.Retry(t.Context(), "main")
	require.NoError(t, err)
	r, err := i.runtimes.WaitFor(t.Context(), "main", func(r *workload.Runtime) bool { return !r.Status.Healthy })
	require.NoError(t, err)
	require.NotEmpty(t, r.Status.Message)
	link.Heal()
	_, err = i.runtimes.WaitFor(t.Context(), "main", func(r *workload.Runtime) bool { return r.Status.Healthy })
	require.NoError(t, err)
	i.ready("web")
	d, err := kube.Client().AppsV1().Deployments(in.Status.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "b", d.Labels["a"])
}

// Two instances may share a namespace that neither found there: one of them makes it, and it stays for as long as anybody has
// something in it.
func TestNamespaceIsShared(t *testing.T) {
	t.Parallel()
	i := install(t, 2)
	i.cluster("main")
	shared := func(s *workload.InstanceSpec) { s.Namespace = "shared-by-two" }
	other := strings.ReplaceAll(web, "name: web}", "name: other}")
	i.define("one", web, shared)
	i.define("two", other, shared)
	i.ready("one")
	i.ready("two")
	owner, guest := "one", "two"
	if in := i.ready("two"); in.Status.Ready == "4/4" {
		owner, guest = guest, owner
	}
	_, err := i.instances.Delete(t.Context(), owner)
	require.NoError(t, err)
	in := i.until(owner, func(in *workload.Instance) bool { return strings.Contains(in.Status.Waiting, "stays") })
	require.Equal(t, "Namespace shared-by-two stays: instance "+guest+" is in it", in.Status.Waiting)
	i.ready(guest)
	i.remove(guest)
	i.until(owner, func(in *workload.Instance) bool { return in == nil })
}
