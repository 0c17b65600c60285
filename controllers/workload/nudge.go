package workload

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// nudgeEvery is how often the end of a definition is asked for again, at most.
const nudgeEvery = 2 * time.Second

// nudge has the API server look again at a definition of resources that it could not clean up. It does so by itself with
// growing pauses, of minutes after some failures, and fails for as long as it has not read the resources of a definition that
// is new ("storage is (re)initializing", Kubernetes 1.36). An error is of no matter: it is only sooner or later.
func (c *cluster) nudge(ctx context.Context, m *meta.RESTMapping, s *seen) {
	failed := false
	all, _, _ := unstructured.NestedSlice(s.Object, "status", "conditions")
	for _, one := range all {
		condition, _ := one.(map[string]any)
		failed = failed || condition["type"] == "Terminating" && condition["reason"] == "InstanceDeletionFailed"
	}
	now := time.Now()
	c.mu.Lock()
	due := failed && now.Sub(c.nudged[s.GetUID()]) >= nudgeEvery
	if due {
		c.nudged[s.GetUID()] = now
	}
	c.mu.Unlock()
	if !due {
		return
	}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{"evenkeel.io/nudged":%q}}}`, s.GetUID(), now.UTC().Format(time.RFC3339Nano))
	_, _ = c.resource(m, "").Patch(ctx, s.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
}

// forgetNudged drops what is known of a definition that has gone.
func (c *cluster) forgetNudged(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nudged, types.UID(uid))
}
