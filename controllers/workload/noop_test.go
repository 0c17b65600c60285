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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// nobody has anything in the cluster.
func nobody(context.Context) ([]*Instance, error) { return nil, nil }

// converge applies what is wanted of an instance, as a reconcile does, and returns what it waits for.
func converge(ctx context.Context, c *cluster, in *Instance, all []wanted) (waiting string, err error) {
	a := newApplying(c, in, nobody)
	if err := a.all(ctx, all); err != nil {
		return "", err
	}
	if _, err := a.prune(ctx, all); err != nil {
		return "", err
	}
	return a.report(ctx, all, true), nil
}

// planned is what is wanted of an instance, with its inventory.
func planned(tb testing.TB, c *cluster, in *Instance) []wanted {
	tb.Helper()
	docs, err := parse(pair)
	require.NoError(tb, err)
	all, err := render(in, &DefinitionSpec{}, docs, in.Spec.Namespace, c.scope)
	require.NoError(tb, err)
	enlist(in, all)
	return all
}

// enlist writes the inventory of an instance, as claim does.
func enlist(in *Instance, all []wanted) {
	for _, w := range all {
		gvk := w.GroupVersionKind()
		in.Status.Resources = append(in.Status.Resources, Resource{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Namespace: w.GetNamespace(), Name: w.GetName()})
	}
}

// A reconcile of what is as it should be makes no request, and one of what is not makes one for each resource.
func TestNothingIsReadThatHasNotChanged(t *testing.T) {
	c, requests := counted(t)
	in := &Instance{Name: "quiet", UID: "quiet", Spec: InstanceSpec{Namespace: kubetest.Start(t).Namespace(t)}}
	all := planned(t, c, in)
	until := time.Now().Add(patience)
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

// BenchmarkApply compares an instance of two resources, applied for the first time, with the same two applies by client-go in a
// loop, and gives the time of a reconcile that has nothing to do. BenchmarkInstances has the whole way of an instance.
func BenchmarkApply(b *testing.B) {
	c, requests := counted(b)
	floor, namespace := NewFloor(b), kubetest.Start(b).Namespace(b)
	docs, err := parse(pair)
	require.NoError(b, err)
	instance := func(what string, i int) (*Instance, []wanted) {
		name := fmt.Sprintf("%s-%d", what, i)
		in := &Instance{Name: name, UID: name, Spec: InstanceSpec{Namespace: namespace}}
		all, err := render(in, &DefinitionSpec{}, docs, namespace, c.scope)
		require.NoError(b, err)
		for _, w := range all {
			w.SetName(name)
		}
		enlist(in, all)
		return in, all
	}
	const n = 100
	var ours, bare, idle Times
	var asked int64
	for round := range b.N {
		for i := range n {
			in, all := instance("ours", round*n+i)
			began, before := time.Now(), requests.Load()
			require.NoError(b, newApplying(c, in, nobody).all(b.Context(), all))
			ours = append(ours, time.Since(began))
			asked += requests.Load() - before

			var same []*unstructured.Unstructured
			_, all = instance("bare", round*n+i)
			for _, w := range all {
				same = append(same, w.Unstructured)
			}
			began = time.Now()
			require.NoError(b, floor.Apply(b.Context(), same))
			bare = append(bare, time.Since(began))
		}
		in, all := instance("ours", round*n) // whose watches have caught up
		for _, timed := range []bool{false, true, true, true} {
			began := time.Now()
			_, err := converge(b.Context(), c, in, all)
			require.NoError(b, err)
			if timed {
				idle = append(idle, time.Since(began))
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(ours))/ours.Sum().Seconds(), "instances/s")
	b.ReportMetric(float64(bare.Sum())/float64(ours.Sum()), "vs-client-go")
	b.ReportMetric(float64(bare.Percentile(50))/float64(ours.Percentile(50)), "p50-vs-client-go")
	b.ReportMetric(float64(asked)/float64(len(ours)), "requests/instance")
	b.ReportMetric(float64(idle.Percentile(50).Microseconds()), "noop-us")
}
