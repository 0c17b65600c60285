package workload_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// island is one ConfigMap of an instance's name.
const island = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"${id}\"}\ndata: {colour: blue}\n"

// islands are instances of one definition in one namespace of a cluster.
type islands struct {
	*installation
	kube                           *kubetest.Cluster
	definition, runtime, namespace string
}

func (s *islands) put(name string) {
	s.Helper()
	_, err := s.instances.Put(s.Context(), name, workload.InstanceSpec{
		Definition: s.definition, Runtime: s.runtime, Namespace: s.namespace, Variables: map[string]string{"id": name},
	})
	require.NoError(s, err)
}

// make defines the islands, and creates so many.
func (s *islands) make(n int) {
	s.Helper()
	_, err := s.definitions.Put(s.Context(), s.definition, workload.DefinitionSpec{Manifests: island, Variables: []workload.Variable{{Name: "id"}}})
	require.NoError(s, err)
	for k := range n {
		s.put(fmt.Sprintf("%s-%d", s.definition, k))
	}
	for k := range n {
		s.ready(fmt.Sprintf("%s-%d", s.definition, k))
	}
}

// colours are those of the maps in the cluster.
func (s *islands) colours() map[string]string {
	s.Helper()
	maps, err := s.kube.Client().CoreV1().ConfigMaps(s.namespace).List(s.Context(), metav1.ListOptions{LabelSelector: workload.LabelInstance})
	require.NoError(s, err)
	all := map[string]string{}
	for _, m := range maps.Items {
		all[m.Name] = m.Data["colour"]
	}
	return all
}

// TestClusterCutOff is a cluster that cannot be reached for EVENKEEL_CUT, because connections to it are reset, or because
// nothing that is sent arrives: the instances of others become ready as ever, its own say why they do not, and when it is back
// they become what they were made meanwhile, and what was changed in the cluster meanwhile is repaired.
func TestClusterCutOff(t *testing.T) {
	lasting := 5 * time.Second
	if text := os.Getenv("EVENKEEL_CUT"); text != "" {
		var err error
		lasting, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	for name, off := range map[string]func(*kubetest.Link){"reset": (*kubetest.Link).Cut, "silent": (*kubetest.Link).Silence} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // with the other one: both wait most of the time
			cutOff(t, off, lasting)
		})
	}
}

// crowd is more instances than a replica has workers: they must not all wait for the same cluster.
const crowd = 70

func cutOff(t *testing.T, off func(*kubetest.Link), lasting time.Duration) {
	ctx, kube := t.Context(), kubetest.Start(t)
	i := install(t, 1)
	links := map[string]*kubetest.Link{"far": kube.Link(t), "near": kube.Link(t)}
	for name, link := range links {
		_, err := i.runtimes.Put(ctx, name, workload.RuntimeSpec{Kubeconfig: kubeconfigOf(t, link.Over(kube.Config()))})
		require.NoError(t, err)
	}
	far := &islands{i, kube, "far", "far", kube.Namespace(t)}
	still := &islands{i, kube, "still", "far", kube.Namespace(t)}
	near := &islands{i, kube, "near", "near", kube.Namespace(t)}
	far.make(crowd)
	still.make(3)
	near.make(0)

	off(links["far"])
	healed := time.Now().Add(lasting)
	_, err := i.definitions.Patch(ctx, "far", map[string]any{"manifests": strings.Replace(island, "blue", "red", 1)})
	require.NoError(t, err)
	_, err = i.instances.Delete(ctx, "far-0")
	require.NoError(t, err)
	far.put("far-new")
	maps := kube.Client().CoreV1().ConfigMaps(still.namespace)
	_, err = maps.Patch(ctx, "still-0", types.MergePatchType, []byte(`{"data":{"colour":"green"}}`), metav1.PatchOptions{FieldManager: "a-hand"})
	require.NoError(t, err)
	require.NoError(t, maps.Delete(ctx, "still-1", metav1.DeleteOptions{}))
	_, err = i.definitions.WaitFor(ctx, "far", func(d *workload.Definition) bool { // all have been told
		return d.Status.Rollout.Generation == 2 && d.Status.Rollout.Instances == crowd
	})
	require.NoError(t, err)

	round := 0
	serve := func() {
		name := fmt.Sprintf("near-%d", round)
		near.put(name)
		i.ready(name)
		round++
	}
	for range 3 {
		serve()
	}
	i.until("far-1", func(in *workload.Instance) bool {
		return strings.HasPrefix(in.Reconciliation.LastError, "runtime far: ")
	})
	for round < 10 || time.Now().Before(healed) {
		serve()
		_, err := i.instances.Delete(ctx, fmt.Sprintf("near-%d", round-1))
		require.NoError(t, err)
	}
	require.Len(t, far.colours(), crowd)
	for name, colour := range far.colours() {
		require.Equal(t, "blue", colour, name)
	}
	for _, name := range []string{"far-0", "far-1", "far-new"} {
		in, err := i.instances.Get(ctx, name)
		require.NoError(t, err)
		require.False(t, in.Ready(), name)
	}
	_, err = i.runtimes.Retry(ctx, "far")
	require.NoError(t, err)
	_, err = i.runtimes.WaitFor(ctx, "far", func(r *workload.Runtime) bool { return !r.Status.Healthy && r.Status.Message != "" })
	require.NoError(t, err)
	t.Logf("%d instances of another cluster became ready while this one was cut off", round)

	links["far"].Heal()
	far.converged()
	i.until("still-0", func(in *workload.Instance) bool { return in.Ready() && len(in.Status.Drift) == 1 })
	in := i.until("still-1", func(in *workload.Instance) bool { return in.Ready() && len(in.Status.Drift) == 1 })
	require.Equal(t, "it was deleted", in.Status.Drift[0].What)
	require.Equal(t, map[string]string{"still-0": "blue", "still-1": "blue", "still-2": "blue"}, still.colours())
	_, err = i.runtimes.WaitFor(ctx, "far", func(r *workload.Runtime) bool { return r.Status.Healthy })
	require.NoError(t, err)
}

// converged waits until the cluster has what was declared while it was cut off.
func (s *islands) converged() {
	s.Helper()
	for k := 1; k < crowd; k++ {
		s.until(fmt.Sprintf("%s-%d", s.definition, k), func(in *workload.Instance) bool { return in.Ready() && in.Status.DefinitionGeneration == 2 })
	}
	s.until(s.definition+"-0", func(in *workload.Instance) bool { return in == nil })
	s.ready(s.definition + "-new")
	all := s.colours()
	require.Len(s, all, crowd) // one has gone, one has come
	for name, colour := range all {
		require.Equal(s, "red", colour, name)
	}
	_, err := s.kube.Client().CoreV1().ConfigMaps(s.namespace).Get(s.Context(), s.definition+"-0", metav1.GetOptions{})
	require.True(s, apierrors.IsNotFound(err), err)
}
