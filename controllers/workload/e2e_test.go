package workload_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	in = i.until("web", func(in *workload.Instance) bool { return in.Ready() && in.Status.Ready == "3/3" && in.Status.DefinitionGeneration == 2 })
	require.Len(t, in.Status.Resources, 3)
	_, err = kube.CoreV1().ConfigMaps(in.Status.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.Error(t, err)

	i.remove("web")
	after, err := kubetest.Start(t).Objects(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after)
}
