package workload_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// plain is what is ready as soon as it is there, so that nobody's controllers are measured.
const plain = `
apiVersion: v1
kind: ConfigMap
metadata: {name: "${name}"}
data: {colour: blue, text: "0123456789012345678901234567890123456789"}
---
apiVersion: v1
kind: Secret
metadata: {name: "${name}"}
stringData: {password: "0123456789012345678901234567890123456789"}
---
apiVersion: v1
kind: Service
metadata: {name: "${name}"}
spec: {selector: {app: "${name}"}, ports: [{port: 80}]}
`

var plainResources = []string{"configmaps", "secrets", "services"}

// benchLabel is on every resource, with the name of what it is of.
const benchLabel = "bench"

// arrivals is told by watches of the cluster when the last resource of something is there.
type arrivals struct {
	mu   sync.Mutex
	left map[string]int       // by name, of what is expected
	at   map[string]time.Time // by name, of what is there
	some chan struct{}        // holds one token: something has come
}

func watchArrivals(tb testing.TB) *arrivals {
	tb.Helper()
	client, err := dynamic.NewForConfig(kubetest.Start(tb).Config())
	require.NoError(tb, err)
	a := &arrivals{left: map[string]int{}, at: map[string]time.Time{}, some: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	var running sync.WaitGroup
	tb.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for _, resource := range plainResources {
		informer := dynamicinformer.NewFilteredDynamicInformer(client, schema.GroupVersionResource{Version: "v1", Resource: resource}, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
			o.LabelSelector = benchLabel
		}).Informer()
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: a.add})
		require.NoError(tb, err)
		running.Go(func() { informer.Run(ctx.Done()) })
		require.True(tb, cache.WaitForCacheSync(tb.Context().Done(), informer.HasSynced))
	}
	return a
}

func (a *arrivals) add(o any) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	name := u.GetLabels()[benchLabel]
	if a.left[name]--; a.left[name] != 0 {
		return
	}
	a.at[name] = time.Now()
	select {
	case a.some <- struct{}{}:
	default:
	}
}

// expect says what is going to come.
func (a *arrivals) expect(names ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range names {
		a.left[name] = len(plainResources)
	}
}

// wait waits until all are there, and returns how long after its beginning each was.
func (a *arrivals) wait(ctx context.Context, began map[string]time.Time) (took workload.Times, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for name, at := range began {
		for {
			a.mu.Lock()
			there, ok := a.at[name]
			a.mu.Unlock()
			if ok {
				took = append(took, max(0, there.Sub(at))) // it may be there before the answer of its request
				break
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%s has not come: %w", name, context.Cause(ctx))
			case <-a.some:
			}
		}
	}
	return took, nil
}

// instancesBench is one run of BenchmarkInstances.
type instancesBench struct {
	*installation
	arrivals  *arrivals
	floor     *workload.Floor
	namespace string // of all; empty: each has its own
	prefix    string // of all names: the cluster outlives the run
	named     int    // so many names were given
}

func newInstancesBench(b *testing.B, replicas int, shared bool) *instancesBench {
	b.Helper()
	i := install(b, 0)
	bench := &instancesBench{installation: i, arrivals: watchArrivals(b), floor: workload.NewFloor(b), prefix: "i" + strings.ToLower(rand.Text()[:6])}
	if shared {
		bench.namespace = kubetest.Start(b).Namespace(b)
	}
	for n := range replicas {
		i.start(fmt.Sprintf("replica-%d", n))
	}
	// The limit of requests is for the cluster's sake. What it takes is not what the way there costs.
	_, err := i.runtimes.Put(b.Context(), "main", workload.RuntimeSpec{Kubeconfig: kubeconfigOf(b, kubetest.Start(b).Config()), QPS: 10_000, Burst: 10_000})
	require.NoError(b, err)
	_, err = i.definitions.Put(b.Context(), "plain", workload.DefinitionSpec{Manifests: plain, Variables: []workload.Variable{{Name: "name"}}})
	require.NoError(b, err)
	warm := bench.names(8 * replicas) // every replica opens its watches
	_, _, err = bench.ours(b.Context(), warm)
	require.NoError(b, err)
	return bench
}

// names gives names that nothing has.
func (b *instancesBench) names(n int) []string {
	all := make([]string, n)
	for i := range all {
		b.named++
		all[i] = fmt.Sprintf("%s-%d", b.prefix, b.named)
	}
	b.arrivals.expect(all...)
	return all
}

// put declares an instance, with a label that those of one turn share.
func (b *instancesBench) put(ctx context.Context, name string, turn map[string]string) error {
	_, err := b.instances.Put(ctx, name, workload.InstanceSpec{
		Definition: "plain", Runtime: "main", Namespace: b.namespace,
		Variables: map[string]string{"name": name}, Labels: map[string]string{benchLabel: name},
	}, apiclient.WithLabels(turn))
	return err
}

// ours declares instances, by as many clients as a replica works on at once, and waits until all are ready. It returns how long
// that took, and how long after the API's answer each was there.
func (b *instancesBench) ours(ctx context.Context, names []string) (took time.Duration, each workload.Times, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	missing, turn := map[string]bool{}, map[string]string{"turn": names[0]}
	for _, name := range names {
		missing[name] = true
	}
	var mu sync.Mutex
	answered := map[string]time.Time{}
	began := time.Now()
	var working errgroup.Group
	working.SetLimit(workload.AtOnce + 1)
	working.Go(func() error {
		for e, err := range b.instances.Watch(ctx, apiclient.WatchLabeled(turn)) {
			if err != nil {
				return err
			}
			if e.Type == apiclient.EventPut && e.Object.Ready() {
				delete(missing, e.Name)
			}
			if len(missing) == 0 {
				took = time.Since(began)
				return nil
			}
		}
		return nil
	})
	for _, name := range names {
		working.Go(func() error {
			if err := b.put(ctx, name, turn); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			answered[name] = time.Now()
			return nil
		})
	}
	if err := working.Wait(); err != nil {
		return 0, nil, err
	}
	each, err = b.arrivals.wait(ctx, answered)
	return took, each, err
}

// bare applies the same by client-go alone, so many at once. Of those that wait for others the time counts from the beginning.
func (b *instancesBench) bare(ctx context.Context, names []string, atOnce int) (took time.Duration, each workload.Times, err error) {
	var all [][]*unstructured.Unstructured
	began := map[string]time.Time{}
	for _, name := range names {
		docs, err := b.resources(name)
		if err != nil {
			return 0, nil, err
		}
		all = append(all, docs)
	}
	now := time.Now()
	for _, name := range names {
		began[name] = now
	}
	if took, err = b.floor.ApplyAll(ctx, all, atOnce); err != nil {
		return 0, nil, err
	}
	each, err = b.arrivals.wait(ctx, began)
	return took, each, err
}

// resources are what an instance of that name has.
func (b *instancesBench) resources(name string) (all []*unstructured.Unstructured, err error) {
	text, namespace := strings.ReplaceAll(plain, "${name}", name), b.namespace
	if namespace == "" {
		namespace = "bare-" + name
		text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + namespace + "}\n---" + text
	}
	for doc := range strings.SplitSeq(text, "---\n") {
		u := &unstructured.Unstructured{}
		if err := sigsyaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			return nil, err
		}
		if u.GetKind() != "Namespace" {
			u.SetNamespace(namespace)
		}
		u.SetLabels(map[string]string{
			benchLabel: name, "app.kubernetes.io/managed-by": "bench", "app.kubernetes.io/name": "plain", "app.kubernetes.io/instance": name,
		})
		all = append(all, u)
	}
	return all, nil
}

// BenchmarkInstances takes instances from the API to the cluster, through the broker and the replicas, beside the same
// server-side applies by client-go alone: one after the other, and as many at once as one replica works on. Ratios are those of
// instances per second, and of times with the floor's above, so that 1 is as good as the floor and less is slower.
func BenchmarkInstances(b *testing.B) {
	for _, shared := range []bool{true, false} {
		for _, replicas := range []int{1, 3} {
			b.Run(fmt.Sprintf("shared-namespace=%t/replicas=%d", shared, replicas), func(b *testing.B) {
				benchmarkInstances(b, newInstancesBench(b, replicas, shared))
			})
		}
	}
}

func benchmarkInstances(b *testing.B, bench *instancesBench) {
	const (
		turns = 2  // of all ways in turn, so that what else the machine does meets all of them
		many  = 60 // instances in one turn
		few   = 15 // of them, one by one
	)
	type way struct {
		wall time.Duration
		each workload.Times
	}
	var ours, single, bare, bareAtOnce way
	add := func(w *way, run func() (time.Duration, workload.Times, error)) {
		b.Helper()
		took, each, err := run()
		require.NoError(b, err)
		w.wall += took
		w.each = append(w.each, each...)
	}
	ctx := b.Context()
	for b.Loop() {
		for range turns {
			add(&bareAtOnce, func() (time.Duration, workload.Times, error) {
				return bench.bare(ctx, bench.names(many), workload.AtOnce)
			})
			add(&ours, func() (time.Duration, workload.Times, error) { return bench.ours(ctx, bench.names(many)) })
			for _, name := range bench.names(few) {
				add(&bare, func() (time.Duration, workload.Times, error) { return bench.bare(ctx, []string{name}, 1) })
			}
			for _, name := range bench.names(few) {
				add(&single, func() (time.Duration, workload.Times, error) { return bench.ours(ctx, []string{name}) })
			}
		}
	}
	rate := func(w way) float64 { return float64(len(w.each)) / w.wall.Seconds() }
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	ratio := func(floor, ours time.Duration) float64 { return floor.Seconds() / ours.Seconds() }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(rate(ours), "instances/s")
	b.ReportMetric(rate(ours)/rate(bare), "vs-client-go")
	b.ReportMetric(rate(ours)/rate(bareAtOnce), "vs-client-go-8")
	b.ReportMetric(ms(ours.each.Percentile(50)), "applied-p50-ms")
	b.ReportMetric(ms(ours.each.Percentile(99)), "applied-p99-ms")
	b.ReportMetric(ratio(bareAtOnce.each.Percentile(50), ours.each.Percentile(50)), "applied-p50-vs-client-go-8")
	b.ReportMetric(ratio(bareAtOnce.each.Percentile(99), ours.each.Percentile(99)), "applied-p99-vs-client-go-8")
	b.ReportMetric(ms(single.each.Percentile(50)), "idle-p50-ms")
	b.ReportMetric(ms(single.each.Percentile(99)), "idle-p99-ms")
	b.ReportMetric(ratio(bare.each.Percentile(50), single.each.Percentile(50)), "idle-p50-vs-client-go")
	b.ReportMetric(ratio(bare.each.Percentile(99), single.each.Percentile(99)), "idle-p99-vs-client-go")
	b.ReportMetric(rate(bare), "client-go/s")
	b.ReportMetric(rate(bareAtOnce), "client-go-8/s")
}
