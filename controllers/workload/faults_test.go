package workload_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// The rights of rbac.yaml are enough for what is in namespaces, and for nothing beyond.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t)
	access := kube.ServiceAccount(t, "evenkeel", "evenkeel", read(t, "rbac.yaml"))
	i := install(t, 1)
	_, err := i.runtimes.Put(t.Context(), "main", workload.RuntimeSpec{Endpoint: access.Host, CA: string(access.CAData), Token: access.BearerToken})
	require.NoError(t, err)
	i.define("web", web)
	i.ready("web")
	i.define("beyond", "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: beyond}\n")
	in := i.fails("beyond", "forbidden")
	require.NotContains(t, in.Reconciliation.LastError, access.BearerToken)
	i.remove("web")
	i.remove("beyond")
}

// Credentials that are revoked show in the runtime, and new ones heal it.
func TestCredentialsAreRenewed(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t)
	i := install(t, 1)
	cfg := kube.Config()
	spec := workload.RuntimeSpec{Endpoint: cfg.Host, CA: string(cfg.CAData), Token: "revoked"}
	_, err := i.runtimes.Put(t.Context(), "main", spec)
	require.NoError(t, err)
	i.define("web", web)
	r, err := i.runtimes.WaitFor(t.Context(), "main", func(r *workload.Runtime) bool { return r.Status.Message != "" })
	require.NoError(t, err)
	require.Contains(t, r.Status.Message, "provide credentials")
	require.NotContains(t, r.Status.Message, "revoked")
	spec.Token, spec.ClientCertificate, spec.ClientKey = "", string(cfg.CertData), string(cfg.KeyData)
	_, err = i.runtimes.Put(t.Context(), "main", spec)
	require.NoError(t, err)
	i.ready("web")
	i.remove("web")
}

// What is kept secret does not show, neither in the API nor in what a cluster says of it.
func TestSecretVariablesStaySecret(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	const manifests = "apiVersion: v1\nkind: Service\nmetadata: {name: \"${name}\"}\nspec: {ports: [{port: 80}]}\n"
	_, err := i.definitions.Put(t.Context(), "svc", workload.DefinitionSpec{Manifests: manifests, Variables: []workload.Variable{{Name: "name"}}})
	require.NoError(t, err)
	_, err = i.instances.Put(t.Context(), "svc", workload.InstanceSpec{
		Definition: "svc", Runtime: "main", SecretVariables: map[string]string{"name": "Hunter2!"}, // which is no name for a service
	})
	require.NoError(t, err)
	in := i.until("svc", func(in *workload.Instance) bool { return in != nil && in.Status.Waiting != "" })
	require.Contains(t, in.Status.Waiting, "REDACTED")
	require.Contains(t, in.Reconciliation.LastError, "REDACTED")
	text := fmt.Sprintf("%+v %+v", in.Status, in.Reconciliation)
	for _, r := range in.Status.Resources {
		text = strings.ReplaceAll(text, r.Name, "") // the inventory has names
	}
	require.NotContains(t, text, "Hunter2!")
	i.remove("svc")
}

// R38: a deletion waits for what does not go, says why, and is over when that is mended.
func TestStuckNamespaceIsExplained(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.cluster("main")
	i.define("web", web)
	in := i.ready("web")
	maps := kubetest.Start(t).Client().CoreV1().ConfigMaps(in.Status.Namespace)
	hold := func(finalizers string) {
		_, err := maps.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{FieldManager: "somebody"})
		require.NoError(t, err)
	}
	hold(`["example.com/hold"]`)
	_, err := i.instances.Delete(t.Context(), "web")
	require.NoError(t, err)
	in = i.until("web", func(in *workload.Instance) bool { return strings.Contains(in.Status.Waiting, "example.com/hold") })
	require.Equal(t, "waiting for ConfigMap web in "+in.Status.Namespace+" to be gone: finalizers example.com/hold", in.Status.Waiting)
	hold("null")
	i.until("web", func(in *workload.Instance) bool { return in == nil })
}
