package workload_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// usurp takes over a field of the instance's map and one of its deployment with server-side apply, by force.
func usurp(t *testing.T, namespace string) {
	t.Helper()
	client, forced := kubetest.Start(t).Client(), metav1.PatchOptions{FieldManager: "usurper", Force: new(true)}
	_, err := client.CoreV1().ConfigMaps(namespace).Patch(t.Context(), "web", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web"},"data":{"colour":"green","shape":"round"}}`), forced)
	require.NoError(t, err)
	_, err = client.AppsV1().Deployments(namespace).Patch(t.Context(), "web", types.ApplyPatchType,
		[]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":5}}`), forced)
	require.NoError(t, err)
}

// is tells the fields that the usurper takes, and one that was never the instance's.
func is(t *testing.T, namespace string) string {
	t.Helper()
	client := kubetest.Start(t).Client()
	m, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	d, err := client.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	return fmt.Sprintf("%s %s %d", m.Data["colour"], m.Data["shape"], *d.Spec.Replicas)
}

// R38: what another manager takes by force is taken back, and it is said who that was. What was not the instance's stays.
func TestUsurpedFieldsAreTakenBack(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	i.define("web", web)
	in := i.ready("web")
	usurp(t, in.Status.Namespace)
	in = i.until("web", func(in *workload.Instance) bool { return in.Ready() && len(in.Status.Drift) == 2 })
	for _, d := range in.Status.Drift {
		require.Equal(t, "it was changed by usurper", d.What)
		require.True(t, d.Repaired)
	}
	require.Equal(t, "blue round 2", is(t, in.Status.Namespace))
	require.Equal(t, in.Status.Drift, i.retried("web").Status.Drift, "once")
	i.remove("web")
}

// R38: with drift: report it is told, once for each resource, for as long as it is so, and left.
func TestUsurpedFieldsAreReported(t *testing.T) {
	t.Parallel()
	i := install(t, 0)
	stop := i.start("first")
	i.cluster("main")
	i.define("web", web, func(s *workload.InstanceSpec) { s.Drift = workload.DriftReport })
	in := i.ready("web")
	usurp(t, in.Status.Namespace)
	told := func(in *workload.Instance) bool { return !in.Ready() && len(in.Status.Drift) == 2 }
	i.until("web", told)
	for _, name := range []string{"first", "second"} { // also by one that has not seen how it was
		if name == "second" {
			stop()
			i.start(name)
		}
		asked, err := i.instances.Retry(t.Context(), "web")
		require.NoError(t, err)
		in = i.until("web", func(in *workload.Instance) bool {
			return in.Reconciliation.HandledRetry == asked.RetryRequest && told(in)
		})
		for _, d := range in.Status.Drift {
			require.False(t, d.Repaired)
		}
		require.Contains(t, in.Reconciliation.LastError, "is Drifted: ")
		require.Contains(t, in.Reconciliation.LastError, "usurper")
		require.Equal(t, "green round 5", is(t, in.Status.Namespace))
	}
	_, err := i.instances.Patch(t.Context(), "web", map[string]any{"drift": workload.DriftRepair})
	require.NoError(t, err)
	i.ready("web")
	require.Equal(t, "blue round 2", is(t, in.Status.Namespace))
	i.remove("web")
}

// With drift: report a field that was put back to what it should be is no drift any more, whoever it belongs to now.
func TestWhatWasPutBackIsNoDrift(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	i.define("web", paint, func(s *workload.InstanceSpec) { s.Drift = workload.DriftReport })
	in := i.ready("web")
	set := func(colour string) {
		t.Helper()
		_, err := kubetest.Start(t).Client().CoreV1().ConfigMaps(in.Status.Namespace).Patch(t.Context(), "web", types.MergePatchType,
			[]byte(`{"data":{"colour":"`+colour+`"}}`), metav1.PatchOptions{FieldManager: "a-hand"})
		require.NoError(t, err)
	}
	set("green")
	i.until("web", func(in *workload.Instance) bool { return !in.Ready() && len(in.Status.Drift) == 1 })
	set("blue")
	require.Empty(t, i.ready("web").Status.Drift)
	i.remove("web")
}

// Another controller that insists on a field writes it again as often as it is repaired. That is told of no more than a few
// times, keeps nobody else from being served, and does not keep the instance from being deleted.
func TestInsistingControllerDoesNoHarm(t *testing.T) {
	kube := kubetest.Start(t)
	before, err := kube.Objects(t.Context())
	require.NoError(t, err)
	i := install(t, 1)
	i.cluster("main")
	i.define("web", paint)
	in := i.ready("web")
	writes := insist(t, in.Status.Namespace)
	in = i.until("web", func(in *workload.Instance) bool { return strings.Contains(in.Status.Waiting, "again after 4 repairs") })
	require.LessOrEqual(t, writes.Load(), int64(10), "it writes as often as it is repaired")
	require.LessOrEqual(t, len(in.Status.Drift), 10)
	for _, d := range in.Status.Drift {
		require.Equal(t, "it was changed by insister", d.What)
	}
	i.define("beside", paint)
	i.ready("beside")
	i.remove("beside")
	i.remove("web")
	for _, name := range []string{"beside", "web"} {
		_, err := i.definitions.Delete(t.Context(), name)
		require.NoError(t, err)
	}
	untouched(t, kube, before)
}

// insist writes a field of the instance's map whenever it is another's, until the test ends or the map is gone.
func insist(t *testing.T, namespace string) *atomic.Int64 {
	t.Helper()
	maps := kubetest.Start(t).Client().CoreV1().ConfigMaps(namespace)
	ctx, stop := context.WithCancel(t.Context())
	events, err := maps.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "web").String()})
	require.NoError(t, err)
	writes := new(atomic.Int64)
	var insisting sync.WaitGroup
	insisting.Go(func() {
		for e := range events.ResultChan() {
			m, ok := e.Object.(*corev1.ConfigMap)
			if !ok || e.Type == watch.Deleted || m.Data["colour"] == "green" {
				continue
			}
			_, err := maps.Patch(ctx, "web", types.MergePatchType, []byte(`{"data":{"colour":"green"}}`), metav1.PatchOptions{FieldManager: "insister"})
			if err == nil {
				writes.Add(1)
			}
		}
	})
	t.Cleanup(func() {
		stop()
		events.Stop()
		insisting.Wait()
	})
	return writes
}
