package workload

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
)

// R39: a watch that is cut off is not believed for ever, although client-go takes it for one that has ended and begins anew; and when
// the cluster is back, what changed meanwhile is looked at.
func TestWatchThatIsCutOffIsNotBelieved(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t)
	link := kube.Link(t)
	var mu sync.Mutex
	told := map[string]string{}
	c, err := connect(link.Over(kube.Config()), "test", func(instance, reason string) {
		mu.Lock()
		defer mu.Unlock()
		told[instance] = reason
	})
	require.NoError(t, err)
	t.Cleanup(c.close)
	in := &Instance{Name: "cut", UID: "cut", Spec: InstanceSpec{Namespace: kube.Namespace(t)}}
	all := planned(t, c, in)
	settled(t, c, in, all)

	link.Cut()
	require.Eventually(t, func() bool {
		_, err = converge(t.Context(), c, in, all)
		return err != nil
	}, patience, 100*time.Millisecond)
	require.True(t, unreachable(err), "%v", err)
	require.NoError(t, kube.Client().CoreV1().ConfigMaps(in.Spec.Namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	mu.Lock()
	clear(told)
	mu.Unlock()
	link.Heal()
	require.Eventually(t, func() bool {
		_, err := c.hello(t.Context())
		return err == nil
	}, patience, 100*time.Millisecond)
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.HasSuffix(told["cut"], "answers again") || strings.HasSuffix(told["cut"], "is gone")
	}, patience, 50*time.Millisecond)
	settled(t, c, in, all)
	require.Equal(t, "it was deleted", in.Status.Drift[0].What)
}

// Why resources are not ready is asked for a few seconds, not for as long as each request may take.
func TestSilentClusterIsNotAskedWhy(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t)
	link := kube.Link(t)
	cfg, lists := link.Over(kube.Config()), new(atomic.Int64)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/pods") || strings.HasSuffix(r.URL.Path, "/events") {
				lists.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	c, err := connect(cfg, "test", nothing)
	require.NoError(t, err)
	t.Cleanup(c.close)
	in := &Instance{Name: "why", UID: "why", Spec: InstanceSpec{Namespace: kube.Namespace(t)}}
	docs, err := parse(strings.Join([]string{
		strings.ReplaceAll(unready, "NAME", "a"), strings.ReplaceAll(unready, "NAME", "b"), strings.ReplaceAll(unready, "NAME", "c"),
	}, "---\n"))
	require.NoError(t, err)
	all, err := render(in, &DefinitionSpec{}, docs, in.Spec.Namespace, c.scope)
	require.NoError(t, err)
	for _, w := range all {
		in.Status.Resources = append(in.Status.Resources, Resource{Group: "apps", Version: "v1", Kind: "Deployment", Namespace: w.GetNamespace(), Name: w.GetName()})
	}
	require.Eventually(t, func() bool {
		waiting, err := converge(t.Context(), c, in, all)
		require.NoError(t, err)
		return strings.Contains(waiting, "Unschedulable")
	}, patience, 100*time.Millisecond)

	a := newApplying(c, in, nobody)
	require.NoError(t, a.all(t.Context(), all))
	link.Silence()
	lists.Store(0)
	require.Contains(t, a.report(t.Context(), all, true), "Deployment.apps a in "+in.Spec.Namespace+" is InProgress: ")
	require.EqualValues(t, 1, lists.Load(), "the first one took all the time there is")
	require.NoError(t, c.health.isDown(), "which says nothing of the cluster")
	lists.Store(0)
	a.report(t.Context(), all, false)
	require.Zero(t, lists.Load())
}

const unready = `apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec: {nodeSelector: {no: node}, containers: [{name: web, image: example.com/web}]}
`

// The label with the name of an instance is anybody's to write.
func TestWhatIsNoNameIsNotAskedFor(t *testing.T) {
	var asked []string
	ws := newWatches(nil, func(instance, _ string) { asked = append(asked, instance) })
	for _, name := range []string{"Not.A_Name", "", "a-name"} {
		s := &seen{}
		s.Object = map[string]any{}
		s.SetLabels(map[string]string{LabelInstanceName: name})
		ws.tell(s, nil)
	}
	require.Equal(t, []string{"a-name"}, asked)
}

// When several reconciles wait for what the cluster serves and it does not answer, the first of them has waited for all.
func TestDiscoveryIsNotTriedByOneAfterTheOther(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t)
	link := kube.Link(t)
	cfg, asked := link.Over(kube.Config()), new(atomic.Int64)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return counter{next, asked} })
	c, err := connect(cfg, "test", nothing)
	require.NoError(t, err)
	t.Cleanup(c.close)
	link.Silence()
	var waiting sync.WaitGroup
	for range atOnce {
		waiting.Go(func() {
			_, known, err := c.mapping(namespaceKind)
			if known || err == nil {
				t.Error("a cluster that is silent has said what it serves")
			}
		})
	}
	waiting.Wait()
	require.LessOrEqual(t, asked.Load(), int64(2), "one discovery asks for two documents")
}
