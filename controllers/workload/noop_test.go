package workload

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
)

// patchAs changes a resource as somebody else would.
func patchAs(tb testing.TB, resources dynamic.ResourceInterface, name, who, patch string) {
	tb.Helper()
	_, err := resources.Patch(tb.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: who})
	require.NoError(tb, err)
}

// counter counts requests.
type counter struct {
	http.RoundTripper
	n *atomic.Int64
}

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

// counted is a connection to the test binary's cluster whose requests are counted.
func counted(tb testing.TB) (*cluster, *atomic.Int64) {
	tb.Helper()
	cfg, n := kubetest.Start(tb).Config(), new(atomic.Int64)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return counter{next, n} })
	c, err := connect(cfg, "test", func(string, string) {})
	require.NoError(tb, err)
	tb.Cleanup(c.close)
	return c, n
}

const pair = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: example.com/web}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {colour: blue}
`

// converge applies what is wanted of an instance, as a reconcile does, and returns what it waits for.
func converge(ctx context.Context, c *cluster, in *Instance, all []wanted) (waiting string, err error) {
	a := newApplying(c, in)
	if err := a.all(ctx, all); err != nil {
		return "", err
	}
	if _, err := a.prune(ctx, all); err != nil {
		return "", err
	}
	return a.report(ctx, all), nil
}

// planned is what is wanted of an instance, with its inventory.
func planned(tb testing.TB, c *cluster, in *Instance) []wanted {
	tb.Helper()
	docs, err := parse(pair)
	require.NoError(tb, err)
	all, err := render(in, &DefinitionSpec{}, docs, in.Spec.Namespace, c.scope)
	require.NoError(tb, err)
	for _, w := range all {
		gvk := w.GroupVersionKind()
		in.Status.Resources = append(in.Status.Resources, Resource{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Namespace: w.GetNamespace(), Name: w.GetName()})
	}
	return all
}

// A reconcile of what is as it should be makes no request, and one of what is not makes one for each resource.
func TestNothingIsReadThatHasNotChanged(t *testing.T) {
	c, requests := counted(t)
	in := &Instance{Name: "quiet", UID: "quiet", Spec: InstanceSpec{Namespace: kubetest.Start(t).Namespace(t)}}
	all := planned(t, c, in)
	until := time.Now().Add(time.Minute)
	for {
		waiting, err := converge(t.Context(), c, in, all)
		require.NoError(t, err)
		if waiting == "" {
			break
		}
		require.True(t, time.Now().Before(until), waiting)
		<-time.After(50 * time.Millisecond)
	}
	before := requests.Load()
	for range 10 {
		waiting, err := converge(t.Context(), c, in, all)
		require.NoError(t, err)
		require.Empty(t, waiting)
	}
	require.Equal(t, before, requests.Load())
	require.Equal(t, "2/2", in.Status.Ready)

	all[0].Object["data"] = map[string]any{"colour": "red"} // the map comes first
	require.Equal(t, "ConfigMap", all[0].GetKind())
	all[0].hash = hashOf(all[0].Object)
	_, err := converge(t.Context(), c, in, all)
	require.NoError(t, err)
	require.Equal(t, before+1, requests.Load())
}

// BenchmarkApply compares an instance of two resources, applied for the first time, with the same two applies by client-go
// in a loop; and a reconcile that has nothing to do.
func BenchmarkApply(b *testing.B) {
	c, requests := counted(b)
	namespace := kubetest.Start(b).Namespace(b)
	instance := func(what string, i int) *Instance {
		return &Instance{Name: fmt.Sprintf("%s-%d", what, i), UID: fmt.Sprintf("%s-%d", what, i), Spec: InstanceSpec{Namespace: namespace}}
	}
	named := func(all []wanted, i int) []wanted {
		for _, w := range all {
			w.SetName(fmt.Sprintf("%s-%d", w.GetName(), i))
		}
		return all
	}
	const n = 100
	var ours, bare time.Duration
	var asked int64
	for range b.N {
		for i := range n {
			in := instance("ours", i)
			all := named(planned(b, c, in), i)
			for k := range in.Status.Resources {
				in.Status.Resources[k].Name = all[k].GetName()
			}
			began, before := time.Now(), requests.Load()
			a := newApplying(c, in)
			require.NoError(b, a.all(b.Context(), all))
			ours += time.Since(began)
			asked += requests.Load() - before

			all = named(planned(b, c, instance("bare", i)), n+i)
			began = time.Now()
			for _, w := range all {
				m, _, err := c.mapping(w.GroupVersionKind())
				require.NoError(b, err)
				_, err = c.resource(m, namespace).Apply(b.Context(), w.GetName(), w.Unstructured, metav1.ApplyOptions{FieldManager: "bare"})
				require.NoError(b, err)
			}
			bare += time.Since(began)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(b.N*n)/ours.Seconds(), "instances/s")
	b.ReportMetric(bare.Seconds()/ours.Seconds(), "vs-bare")
	b.ReportMetric(float64(asked)/float64(b.N*n), "requests/instance")
}
