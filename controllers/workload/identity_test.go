package workload_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// A runtime that is pointed at another cluster by mistake takes nothing there, and leaves nothing behind when it is pointed back;
// one that says that this is the cluster now begins there anew.
func TestClusterIsNotMistakenForAnother(t *testing.T) {
	here, there := kubetest.Start(t), kubetest.Own(t)
	i := install(t, 2)
	i.cluster("main")
	i.define("web", web)
	in := i.ready("web")
	r, err := i.runtimes.WaitFor(t.Context(), "main", func(r *workload.Runtime) bool { return r.Status.Cluster != "" })
	require.NoError(t, err)
	require.Equal(t, r.Status.Cluster, in.Status.Cluster)
	before, err := there.Objects(t.Context())
	require.NoError(t, err)

	spec := workload.RuntimeSpec{Kubeconfig: kubeconfigOf(t, there.Config())}
	_, err = i.runtimes.Put(t.Context(), "main", spec)
	require.NoError(t, err)
	moved, err := i.runtimes.WaitFor(t.Context(), "main", func(r *workload.Runtime) bool { return r.Status.Cluster != in.Status.Cluster })
	require.NoError(t, err)
	lost := i.fails("web", "leads to another cluster")
	require.Equal(t, "runtime main: it leads to another cluster, "+moved.Status.Cluster+", and what this instance has is in cluster "+in.Status.Cluster+
		": lead it back there, or, to leave behind what is there, set spec.cluster of the runtime to "+moved.Status.Cluster, lost.Reconciliation.LastError)
	untouched(t, there, before)

	i.cluster("main")
	i.ready("web")
	spec.Cluster = in.Status.Cluster
	_, err = i.runtimes.Put(t.Context(), "main", spec)
	require.NoError(t, err)
	r, err = i.runtimes.WaitFor(t.Context(), "main", func(r *workload.Runtime) bool { return !r.Status.Healthy })
	require.NoError(t, err)
	require.Equal(t, "it leads to another cluster: cluster "+in.Status.Cluster+" is wanted, and "+moved.Status.Cluster+" answers: correct spec.cluster or the address", r.Status.Message)

	spec.Cluster = moved.Status.Cluster
	_, err = i.runtimes.Put(t.Context(), "main", spec)
	require.NoError(t, err)
	in = i.until("web", func(in *workload.Instance) bool { return in.Ready() && in.Status.Cluster == moved.Status.Cluster })
	_, err = there.Client().CoreV1().ConfigMaps(in.Status.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	left, err := here.Client().CoreV1().ConfigMaps(in.Status.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err, "it was left behind, as the runtime says")
	i.remove("web")
	untouched(t, there, before)
	require.NoError(t, here.Client().CoreV1().Namespaces().Delete(t.Context(), left.Namespace, metav1.DeleteOptions{}))
	i.eventually(func() string { // other tests look at all that is there
		_, err := here.Client().CoreV1().Namespaces().Get(t.Context(), left.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return "namespace " + left.Namespace + " is there"
	})
}

// An instance whose cluster is no more can be given up.
func TestInstanceOfADeadClusterIsAbandoned(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	kube := kubetest.Start(t)
	link := kube.Link(t)
	_, err := i.runtimes.Put(t.Context(), "main", workload.RuntimeSpec{Kubeconfig: kubeconfigOf(t, link.Over(kube.Config()))})
	require.NoError(t, err)
	i.define("web", web)
	in := i.ready("web")
	link.Cut()
	_, err = i.instances.Delete(t.Context(), "web")
	require.NoError(t, err)
	i.until("web", func(in *workload.Instance) bool {
		return strings.Contains(in.Reconciliation.LastError, "runtime main: ")
	})
	require.Eventually(t, func() bool { // others write its status meanwhile
		now, err := i.instances.Get(t.Context(), "web")
		require.NoError(t, err)
		_, err = i.instances.Patch(t.Context(), "web", map[string]any{"onDelete": workload.OnDeleteAbandon}, apiclient.IfRevision(now.Revision))
		return err == nil
	}, patience, 10*time.Millisecond)
	i.until("web", func(in *workload.Instance) bool { return in == nil })
	_, err = i.runtimes.Delete(t.Context(), "main")
	require.NoError(t, err)
	_, err = i.runtimes.WaitFor(t.Context(), "main", func(r *workload.Runtime) bool { return r == nil })
	require.NoError(t, err)
	left, err := kube.Client().CoreV1().ConfigMaps(in.Status.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, in.UID, left.Labels[workload.LabelInstance])
	require.NoError(t, kube.Client().CoreV1().Namespaces().Delete(t.Context(), left.Namespace, metav1.DeleteOptions{}))
}
