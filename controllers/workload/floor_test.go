package workload

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
)

// Floor is what instances cost at least: the server-side applies of their resources, by client-go alone, on the test binary's
// cluster and with no limit of requests.
type Floor struct{ client dynamic.Interface }

// NewFloor connects.
func NewFloor(tb testing.TB) *Floor {
	tb.Helper()
	client, err := dynamic.NewForConfig(kubetest.Start(tb).Config())
	require.NoError(tb, err)
	return &Floor{client}
}

// Apply applies resources, one after the other.
func (f *Floor) Apply(ctx context.Context, all []*unstructured.Unstructured) error {
	for _, u := range all {
		gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind()) // of the plain kinds that are used here
		var of dynamic.ResourceInterface = f.client.Resource(gvr)
		if u.GetNamespace() != "" {
			of = f.client.Resource(gvr).Namespace(u.GetNamespace())
		}
		if _, err := of.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "floor"}); err != nil {
			return err
		}
	}
	return nil
}

// ApplyAll applies what several instances would have, that many at once, and returns how long it took.
func (f *Floor) ApplyAll(ctx context.Context, instances [][]*unstructured.Unstructured, atOnce int) (time.Duration, error) {
	var working errgroup.Group
	working.SetLimit(atOnce)
	began := time.Now()
	for _, all := range instances {
		working.Go(func() error { return f.Apply(ctx, all) })
	}
	err := working.Wait()
	return time.Since(began), err
}

// AtOnce is how many instances one replica works on at once in one cluster.
const AtOnce = atOnce

// Times are how long each of some took.
type Times []time.Duration

// Percentile is the time within which so many percent were done.
func (t Times) Percentile(p int) time.Duration {
	if len(t) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t))
	return sorted[(len(sorted)-1)*p/100]
}

// Sum is all of it.
func (t Times) Sum() (all time.Duration) {
	for _, d := range t {
		all += d
	}
	return all
}
