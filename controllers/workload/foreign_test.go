package workload_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// With a definition of resources go all of them: it stays while there is one that is somebody else's, also if that belongs to
// another resource of theirs. What belongs to a resource of the instance goes with it.
func TestForeignCustomResourcesAreKept(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	kube := kubetest.Start(t)
	i.define("kinds", strings.ReplaceAll(baskets, "shop.example.com", "kept.example.com")+"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: ours}\n")
	in := i.ready("kinds")
	namespace := kube.Namespace(t)
	basket := func(name, ownerUID string) {
		t.Helper()
		text := fmt.Sprintf("apiVersion: kept.example.com/v1\nkind: Basket\nmetadata: {name: %s, namespace: %s}\nspec: {apples: 3}\n", name, namespace)
		if ownerUID != "" {
			text = strings.Replace(text, "}", fmt.Sprintf(", ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: any, uid: %s}]}", ownerUID), 1)
		}
		require.NoError(t, kube.Apply(t.Context(), text))
	}
	ours := in.Status.Resources[len(in.Status.Resources)-1]
	require.Equal(t, "ours", ours.Name)
	namespace = in.Status.Namespace // owners are of the same one
	basket("derived", ours.UID)
	namespace = kube.Namespace(t)
	owner, err := kube.Client().CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "any"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	basket("theirs", string(owner.UID))
	_, err = i.instances.Delete(t.Context(), "kinds")
	require.NoError(t, err)
	in = i.until("kinds", func(in *workload.Instance) bool { return strings.Contains(in.Status.Waiting, "somebody else's") })
	require.Equal(t, "CustomResourceDefinition.apiextensions.k8s.io baskets.kept.example.com stays: Basket.kept.example.com theirs in "+namespace+
		" is somebody else's and would go with it", in.Status.Waiting)
	require.NoError(t, kube.Client().CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}))
	i.until("kinds", func(in *workload.Instance) bool { return in == nil })
}

// A namespace that was there before and was adopted is let go of, not deleted: others have things in it.
func TestAdoptedNamespaceStays(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	kube := kubetest.Start(t)
	namespace := kube.Namespace(t)
	maps := kube.Client().CoreV1().ConfigMaps(namespace)
	_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	i.define("adopter", "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: ours}\n",
		func(s *workload.InstanceSpec) { s.Namespace, s.Adopt = namespace, true })
	i.ready("adopter")
	i.remove("adopter")
	_, err = maps.Get(t.Context(), "theirs", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = maps.Get(t.Context(), "ours", metav1.GetOptions{})
	require.Error(t, err)
	n, err := kube.Client().CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, n.DeletionTimestamp)
	require.NotContains(t, n.Labels, workload.LabelInstance)
}

// Two runtimes may lead to one cluster, with other credentials, say. A namespace that goes in spite of everything is made anew by
// whoever is in it.
func TestNamespaceIsSharedAcrossRuntimes(t *testing.T) {
	t.Parallel()
	i := install(t, 2)
	i.cluster("main")
	i.cluster("other")
	shared := func(runtime string) func(*workload.InstanceSpec) {
		return func(s *workload.InstanceSpec) { s.Namespace, s.Runtime = "shared-across", runtime }
	}
	i.define("owner", web, shared("main"))
	require.Equal(t, "4/4", i.ready("owner").Status.Ready)
	i.define("guest", strings.ReplaceAll(web, "name: web}", "name: guest}"), shared("other"))
	require.Equal(t, "3/3", i.ready("guest").Status.Ready)
	_, err := i.instances.Delete(t.Context(), "owner")
	require.NoError(t, err)
	in := i.until("owner", func(in *workload.Instance) bool { return strings.Contains(in.Status.Waiting, "stays") })
	require.Equal(t, "Namespace shared-across stays: instance guest is in it", in.Status.Waiting)
	_, err = i.instances.Patch(t.Context(), "owner", map[string]any{"onDelete": workload.OnDeleteAbandon})
	require.Error(t, err, "not without its revision")
	require.NoError(t, kubetest.Start(t).Client().CoreV1().Namespaces().Delete(t.Context(), "shared-across", metav1.DeleteOptions{}))
	i.until("owner", func(in *workload.Instance) bool { return in == nil })
	require.Equal(t, "4/4", i.until("guest", func(in *workload.Instance) bool { return in.Ready() && in.Status.Ready == "4/4" }).Status.Ready)
	i.remove("guest")
}

// What drift: report leaves alone it leaves alone also where it has adopted.
func TestReportedDriftOfWhatWasAdopted(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	kube := kubetest.Start(t)
	namespace := kube.Namespace(t)
	maps := kube.Client().CoreV1().ConfigMaps(namespace)
	_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"colour": "green"}},
		metav1.CreateOptions{FieldManager: "before"})
	require.NoError(t, err)
	const manifests = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {colour: blue, size: small}\n"
	i.define("adopter", manifests, func(s *workload.InstanceSpec) {
		s.Namespace, s.Adopt, s.Drift = namespace, true, workload.DriftReport
	})
	i.ready("adopter")
	colour := func(want string) {
		t.Helper()
		m, err := maps.Get(t.Context(), "m", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, want, m.Data["colour"])
	}
	colour("blue")
	m, err := maps.Get(t.Context(), "m", metav1.GetOptions{})
	require.NoError(t, err)
	m.Data["colour"] = "red"
	_, err = maps.Update(t.Context(), m, metav1.UpdateOptions{FieldManager: "a-hand"})
	require.NoError(t, err)
	i.until("adopter", func(in *workload.Instance) bool { return len(in.Status.Drift) == 1 })
	_, err = i.definitions.Patch(t.Context(), "adopter", map[string]any{"manifests": strings.Replace(manifests, "small", "large", 1)})
	require.NoError(t, err)
	in := i.until("adopter", func(in *workload.Instance) bool {
		return len(in.Status.Drift) == 1 && strings.Contains(in.Status.Drift[0].What, "conflict")
	})
	require.Contains(t, in.Status.Drift[0].What, "a-hand")
	colour("red")
	i.remove("adopter")
}

// A job that the cluster cleans up after it has completed is not run again.
func TestCompletedJobIsNotRunAgain(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	i.define("job", `
apiVersion: batch/v1
kind: Job
metadata: {name: migrate}
spec:
  ttlSecondsAfterFinished: 1
  template: {spec: {restartPolicy: Never, containers: [{name: migrate, image: example.com/migrate}]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: m}
`)
	in := i.until("job", func(in *workload.Instance) bool {
		return in != nil && in.Ready() && in.Status.Ready == "3/3" && strings.Contains(fmt.Sprint(in.Status.Resources), "was cleaned up")
	})
	jobs := kubetest.Start(t).Client().BatchV1().Jobs(in.Status.Namespace)
	retried, err := i.instances.Retry(t.Context(), "job")
	require.NoError(t, err)
	in = i.until("job", func(in *workload.Instance) bool { return in.Reconciliation.HandledRetry == retried.RetryRequest })
	require.True(t, in.Ready())
	require.Empty(t, in.Status.Drift)
	all, err := jobs.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, all.Items)
	i.remove("job")
}
