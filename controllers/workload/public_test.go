package workload_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// module is the folder of the sources of a Go module, which public projects have their manifests in.
func module(t *testing.T, version string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", version)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	require.NoError(t, err, "download %s: %s", version, out)
	var m struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &m))
	return m.Dir
}

// read puts files together as one text of documents.
func read(t *testing.T, patterns ...string) string {
	t.Helper()
	var texts []string
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, f := range files {
			if filepath.Base(f) == "kustomization.yaml" {
				continue
			}
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			texts = append(texts, string(text))
		}
	}
	return strings.Join(texts, "\n---\n")
}

// What public projects ship is deployed as it is, changes nothing when nothing changes, and goes without a trace.
func TestPublicProjects(t *testing.T) {
	i := install(t, 2)
	i.cluster("main")
	kube := kubetest.Start(t)
	for name, c := range map[string]struct {
		manifests func() string
		resources int
		change    func(*workload.InstanceSpec)
	}{
		// Definitions of resources of up to 800 kB, rights for the whole cluster, a deployment in a namespace that it names.
		"prometheus-operator": {func() string {
			return strings.ReplaceAll(read(t, module(t, "github.com/prometheus-operator/prometheus-operator@v0.78.2")+"/bundle.yaml"), "namespace: default", "namespace: monitoring") +
				"\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: monitoring}\n" + prometheus
		}, 18, nil},
		// Roles that are aggregated into those of the cluster.
		"argo-rollouts": {func() string {
			return read(t, module(t, "github.com/argoproj/argo-rollouts@v1.8.3")+"/manifests/install.yaml")
		}, 0, nil},
		// Rules of the API server (admission policies in CEL), and resources of the kinds that are defined.
		"gateway-api": {func() string {
			dir := module(t, "sigs.k8s.io/gateway-api@v1.4.0")
			return read(t, dir+"/config/crd/standard/*.yaml") + gateway
		}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			j := *i
			j.TB = t
			before, err := kube.Objects(t.Context())
			require.NoError(t, err)
			j.define(name, c.manifests())
			in := j.ready(name)
			if c.resources > 0 {
				require.Equal(t, fmt.Sprintf("%d/%[1]d", c.resources), in.Status.Ready)
			}
			revision := in.Revision
			_, err = j.instances.Retry(t.Context(), name)
			require.NoError(t, err)
			in = j.until(name, func(in *workload.Instance) bool {
				return in.Reconciliation.HandledRetry == in.RetryRequest && in.Revision > revision+1
			})
			require.True(t, in.Ready())
			require.Empty(t, in.Status.Drift)
			j.remove(name)
			_, err = j.definitions.Delete(t.Context(), name)
			require.NoError(t, err)
			untouched(t, kube, before)
		})
	}
}

const prometheus = `---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: web, namespace: monitoring}
spec: {selector: {matchLabels: {app: web}}, podMetricsEndpoints: [{port: web}]}
`

const gateway = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec: {rules: [{backendRefs: [{name: web, port: 80}]}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-evil}
spec:
  failurePolicy: Fail
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  validations: [{expression: "object.metadata.name != 'evil'"}]
`

// Everything that is in the words of the manifests but not of a plain resource: jobs, claims, lists, names that the server
// would make, several namespaces, fields that the server fills in.
func TestAllSortsOfDocuments(t *testing.T) {
	i := install(t, 1)
	i.cluster("main")
	before, err := kubetest.Start(t).Objects(t.Context())
	require.NoError(t, err)
	i.define("sorts", `
apiVersion: v1
kind: Namespace
metadata: {name: sorts-a}
---
apiVersion: v1
kind: Namespace
metadata: {name: sorts-b}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: sorts-a}, data: {a: "1"}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: sorts-b}, data: {a: "1"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {generateName: made-, namespace: sorts-a}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: sorts-a}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: example.com/db, ports: [{containerPort: 5432}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: sorts-a}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 5432}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: sorts-b}
spec: {schedule: "0 3 * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: example.com/a}]}}}}}
---
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: sorts-b}
stringData: {password: hunter2}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: sorts-b}
spec: {podSelector: {}, policyTypes: [Ingress]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: db, namespace: sorts-a}
spec: {minAvailable: 1, selector: {matchLabels: {app: db}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: db, namespace: sorts-a}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: db}, minReplicas: 2, maxReplicas: 3}
`)
	in := i.ready("sorts")
	for _, r := range in.Status.Resources {
		require.Equal(t, "Current", r.Status, "%+v", r)
	}
	calls, err := dynamic.NewForConfig(kubetest.Start(t).Config())
	require.NoError(t, err)
	made, err := calls.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("sorts-a").
		List(t.Context(), metav1.ListOptions{LabelSelector: workload.LabelInstance})
	require.NoError(t, err)
	require.Len(t, made.Items, 2, "one with a name of ours")
	i.remove("sorts")
	untouched(t, kubetest.Start(t), before)
}

// R31: 60 documents are 60 resources, and 600 are 600.
func TestManyDocuments(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	for _, n := range []int{60, 600} {
		var docs strings.Builder
		for d := range n {
			fmt.Fprintf(&docs, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m-%d}\ndata: {n: \"%d\"}\n", d, d)
		}
		name := fmt.Sprintf("many-%d", n)
		i.define(name, docs.String())
		in := i.ready(name)
		require.Equal(t, fmt.Sprintf("%d/%[1]d", n+1), in.Status.Ready)
		maps, err := kubetest.Start(t).Client().CoreV1().ConfigMaps(in.Status.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: workload.LabelInstance})
		require.NoError(t, err)
		require.Len(t, maps.Items, n)
		i.remove(name)
	}
}
