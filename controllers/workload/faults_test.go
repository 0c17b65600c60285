package workload_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// The rights of rbac.yaml are enough for what is in namespaces, and for nothing beyond.
func TestLeastPrivilege(t *testing.T) {
	kube := kubetest.Start(t)
	access := kube.ServiceAccount(t, "evenkeel", "evenkeel", read(t, "rbac.yaml"))
	i := install(t, 1)
	_, err := i.runtimes.Put(t.Context(), "main", workload.RuntimeSpec{Endpoint: access.Host, CA: string(access.CAData), Token: access.BearerToken})
	require.NoError(t, err)
	i.define("web", web)
	i.ready("web")
	i.define("beyond", "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: beyond}\n")
	in := i.until("beyond", func(in *workload.Instance) bool { return in != nil && in.Reconciliation.LastError != "" })
	require.Contains(t, in.Reconciliation.LastError, "forbidden")
	require.NotContains(t, in.Reconciliation.LastError, access.BearerToken)
	i.remove("web")
	i.remove("beyond")
}

// Credentials that are revoked show in the runtime, and new ones heal it.
func TestCredentialsAreRenewed(t *testing.T) {
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

// A namespace that does not go says why, and goes when that is mended.
func TestStuckNamespaceIsExplained(t *testing.T) {
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

// TestClusterRollout is a rollout to EVENKEEL_INSTANCES instances while replicas are stopped and started and the API server
// is killed: afterwards the cluster has what is wanted, and at the end nothing.
func TestClusterRollout(t *testing.T) {
	n := 12
	if text := os.Getenv("EVENKEEL_INSTANCES"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	kube := kubetest.Own(t)
	before, err := kube.Objects(t.Context())
	require.NoError(t, err)
	i := install(t, 0)
	_, err = i.runtimes.Put(t.Context(), "main", workload.RuntimeSpec{Kubeconfig: kubeconfigOf(t, kube.Config())})
	require.NoError(t, err)
	stop := map[string]func(){"a": i.start("a"), "b": i.start("b"), "c": i.start("c")}
	_, err = i.definitions.Put(t.Context(), "fleet", workload.DefinitionSpec{Manifests: web, Rollout: workload.Rollout{AtOnce: 5}})
	require.NoError(t, err)
	for k := range n {
		_, err := i.instances.Put(t.Context(), fmt.Sprintf("fleet-%03d", k), workload.InstanceSpec{Definition: "fleet", Runtime: "main"})
		require.NoError(t, err)
	}
	updated := func(d *workload.Definition, generation int64) bool {
		return d.Ready() && d.Generation == generation && d.Status.Rollout.Updated == n
	}
	wait := func(generation int64) {
		t.Helper()
		d, err := i.definitions.WaitFor(t.Context(), "fleet", func(d *workload.Definition) bool { return updated(d, generation) })
		require.NoError(t, err, "%+v", d)
	}
	wait(1)

	_, err = i.definitions.Patch(t.Context(), "fleet", map[string]any{"manifests": strings.Replace(web, "colour: blue", "colour: red", 1)})
	require.NoError(t, err)
	for k := range 6 { // while it is under way
		_, err := i.definitions.WaitFor(t.Context(), "fleet", func(d *workload.Definition) bool {
			ro := d.Status.Rollout
			return updated(d, 2) || ro != nil && ro.Generation == 2 && ro.Updated >= k*n/6
		})
		require.NoError(t, err)
		name := []string{"a", "b", "c"}[rand.N(3)]
		stop[name]()
		if k == 2 {
			require.NoError(t, kube.Kill(kubetest.APIServer))
		}
		stop[name] = i.start(name)
		if k == 2 {
			require.NoError(t, kube.Restart(kubetest.APIServer))
		}
	}
	wait(2)
	maps, err := kube.Client().CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{LabelSelector: workload.LabelInstance})
	require.NoError(t, err)
	require.Len(t, maps.Items, n)
	for _, m := range maps.Items {
		require.Equal(t, "red", m.Data["colour"], m.Namespace)
	}
	for in, err := range i.instances.All(t.Context()) {
		require.NoError(t, err)
		_, err = i.instances.Delete(t.Context(), in.Name)
		require.NoError(t, err)
	}
	until := time.Now().Add(10 * time.Minute)
	for {
		left := 0
		for _, err := range i.instances.All(t.Context()) {
			require.NoError(t, err)
			left++
		}
		if left == 0 {
			break
		}
		require.True(t, time.Now().Before(until), "%d instances are left", left)
		<-time.After(100 * time.Millisecond)
	}
	untouched(t, kube, before)
	_, err = i.definitions.Get(t.Context(), "fleet")
	require.NoError(t, err)
	_, err = i.instances.Get(t.Context(), "fleet-000")
	require.ErrorIs(t, err, apiclient.ErrNotFound)
}
