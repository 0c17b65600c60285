package workload_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// example is the spec of a file in the folder of examples.
func example[S any](t *testing.T, name string) S {
	t.Helper()
	data, err := os.ReadFile("examples/" + name + ".json")
	require.NoError(t, err)
	var file struct {
		Spec S `json:"spec"`
	}
	require.NoError(t, json.Unmarshal(data, &file))
	return file.Spec
}

// The examples are what the kinds take, and come to what they say.
func TestExamples(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("local")
	ctx := t.Context()
	_, err := i.runtimes.Put(ctx, "berlin", example[workload.RuntimeSpec](t, "runtime"))
	require.NoError(t, err)
	_, err = i.definitions.Put(ctx, "shop", example[workload.DefinitionSpec](t, "definition"))
	require.NoError(t, err)
	_, err = i.instances.Put(ctx, "shop", example[workload.InstanceSpec](t, "instance"))
	require.NoError(t, err)
	_, err = i.workloads.Put(ctx, "web", example[workload.WorkloadSpec](t, "workload"))
	require.NoError(t, err)

	in := i.ready("shop")
	d, err := kubetest.Start(t).Client().AppsV1().Deployments(in.Status.Namespace).Get(ctx, "shop", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, int32(3), d.Status.AvailableReplicas)
	require.Equal(t, "nginx:1.29", d.Spec.Template.Spec.Containers[0].Image)
	_, err = i.workloads.WaitFor(ctx, "web", (*workload.Workload).Ready)
	require.NoError(t, err)
	r, err := i.runtimes.WaitFor(ctx, "berlin", func(r *workload.Runtime) bool { return r.Status.Message != "" })
	require.NoError(t, err)
	require.Equal(t, apiclient.StateWaiting, r.Reconciliation.State)
	require.Contains(t, r.Status.Message, "kubeconfigFile: this controller has no folder of kubeconfigs (--kubeconfigs)")
	i.remove("shop")
	_, err = i.workloads.Delete(ctx, "web")
	require.NoError(t, err)
	_, err = i.workloads.WaitFor(ctx, "web", func(w *workload.Workload) bool { return w == nil })
	require.NoError(t, err)
}
