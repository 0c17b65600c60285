package workload

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubetesting "k8s.io/client-go/testing"
)

// pod is one of the app web.
func pod(name string, status map[string]any) *unstructured.Unstructured {
	u := resource("v1", "Pod", "home", name, "")
	u.SetLabels(map[string]string{"app": "web"})
	u.Object["status"] = status
	return u
}

func container(name, reason, message string) any {
	waiting := map[string]any{}
	if reason != "" {
		waiting["reason"] = reason
	}
	if message != "" {
		waiting["message"] = message
	}
	return map[string]any{"name": name, "state": map[string]any{"waiting": waiting}}
}

var runs any = map[string]any{"name": "runs", "state": map[string]any{"running": map[string]any{}}}

// What a pod waits for is said in the order in which it has to come: a node, its init containers, its containers.
func TestPodsSayWhatTheyWaitFor(t *testing.T) {
	scheduled := func(status string) any {
		return map[string]any{"type": "PodScheduled", "status": status, "reason": "Unschedulable", "message": "no node"}
	}
	initial, main := container("migrate", "ImagePullBackOff", "no such image"), container("web", "PodInitializing", "")
	for want, status := range map[string]map[string]any{
		"pod p: Unschedulable: no node": {"conditions": []any{scheduled("False")}, "containerStatuses": []any{main}},
		"pod p: container migrate: ImagePullBackOff: no such image": {
			"conditions": []any{scheduled("True")}, "containerStatuses": []any{main}, "initContainerStatuses": []any{runs, initial},
		},
		"pod p: container web: PodInitializing": {"containerStatuses": []any{runs, main}},
		"":                                      {"containerStatuses": []any{runs, container("web", "", "")}},
	} {
		require.Equal(t, want, podWaits(pod("p", status)))
	}
}

// event is a warning about a resource, unless its type says otherwise.
func event(name, uid, kind, last, first, reason string) *unstructured.Unstructured {
	u := resource("v1", "Event", "home", name, "")
	u.Object["involvedObject"] = map[string]any{"uid": uid}
	u.Object["type"], u.Object["reason"], u.Object["message"] = kind, reason, "it is said"
	if last != "" {
		u.Object["lastTimestamp"] = last
	}
	if first != "" {
		u.Object["eventTime"] = first
	}
	return u
}

// tells has the cluster find events by their fields, as an API server does.
func (s *standIn) tells(events ...*unstructured.Unstructured) {
	s.fake.PrependReactor("list", "events", func(action kubetesting.Action) (bool, runtime.Object, error) {
		all := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "EventList"}}
		wanted := action.(kubetesting.ListAction).GetListRestrictions().Fields
		for _, e := range events {
			uid, _, _ := unstructured.NestedString(e.Object, "involvedObject", "uid")
			if wanted.Matches(fields.Set{"involvedObject.uid": uid, "type": e.Object["type"].(string)}) {
				all.Items = append(all.Items, *e)
			}
		}
		return true, all, nil
	})
}

// What is not ready is explained by its pods and by the latest warning of each; what cannot be read is left out.
func TestWhatIsNotReadyIsExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		a := s.has()
		d := resource("apps/v1", "Deployment", "home", "web", "i")
		d.SetUID("d")
		d.Object["spec"] = map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}}
		deployment := look(d)
		require.Empty(t, a.explain(t.Context(), deployment))
		for i := range 5 {
			p := pod(fmt.Sprintf("p%d", i), map[string]any{"containerStatuses": []any{container("web", "Waits", "")}})
			p.SetUID(types.UID(fmt.Sprintf("p%d", i)))
			s.put(t, podResource, p)
		}
		other := pod("other", map[string]any{"containerStatuses": []any{container("web", "Waits", "")}})
		other.SetLabels(nil)
		s.put(t, podResource, other)
		require.Equal(t, "pod p0: container web: Waits; pod p1: container web: Waits; pod p2: container web: Waits", a.explain(t.Context(), deployment))
		s.tells(
			event("a", "d", "Warning", "2001-02-03T04:05:06Z", "", "Earlier"),
			event("b", "d", "Warning", "", "2001-02-03T04:05:08.500000Z", "Latest"),
			event("b2", "d", "Warning", "2001-02-03T04:05:08Z", "", "OfTheSameSecond"),
			event("c", "d", "Warning", "", "2001-02-03T04:05:07.000000Z", "Between"),
			event("d", "d", "Normal", "2001-02-03T04:05:09Z", "", "Fine"),
			event("e", "p1", "Warning", "", "2001-02-03T04:05:07.000000Z", "OfAPod"),
			event("f", "p1", "Warning", "2001-02-03T04:05:06Z", "", "Before"),
			event("g", "p2", "Warning", "2001-02-03T04:05:08Z", "", "Latest"),
			event("h", "p4", "Warning", "2001-02-03T04:05:08Z", "", "NotLookedAt"),
		)
		require.Equal(t, "pod p0: container web: Waits; pod p1: container web: Waits; pod p2: container web: Waits; "+
			"Latest: it is said; OfAPod: it is said", a.explain(t.Context(), deployment))

		s.fails("list", "events", func() error { return apierrors.NewForbidden(eventResource.GroupResource(), "", errOnce) })
		require.Equal(t, "pod p0: container web: Waits; pod p1: container web: Waits; pod p2: container web: Waits", a.explain(t.Context(), deployment))
		s.fails("list", "pods", func() error { return apierrors.NewForbidden(podResource.GroupResource(), "", errOnce) })
		require.Empty(t, a.explain(t.Context(), deployment))
	})
}

// The pods of a resource are found by its selector; a pod is its own.
func TestPodsAreSelected(t *testing.T) {
	u := pod("p", nil)
	selector, ok := podSelector(look(u))
	require.True(t, ok)
	require.Equal(t, "app=web", selector)
	for _, apiVersion := range []string{"apps/v1 Deployment", "apps/v1 StatefulSet", "apps/v1 DaemonSet", "apps/v1 ReplicaSet", "batch/v1 Job"} {
		version, kind, _ := strings.Cut(apiVersion, " ")
		u := resource(version, kind, "home", "web", "")
		_, ok := podSelector(look(u.DeepCopy()))
		require.False(t, ok, "that of all pods would be none of its")
		u.Object["spec"] = map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}}
		selector, ok := podSelector(look(u))
		require.True(t, ok, kind)
		require.Equal(t, "app=web", selector)
	}
	_, ok = podSelector(look(configMap("m", "i")))
	require.False(t, ok)
}

// Each resource is counted and said how it is; no more than three are looked into, and no secret is told.
func TestReportIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		var all []wanted
		var resources []Resource
		for i := range 6 {
			u := resource("apps/v1", "Deployment", "home", fmt.Sprintf("d%d", i), "i")
			u.SetUID("same")
			u.Object["metadata"].(map[string]any)["generation"] = int64(2)
			all, resources = append(all, wanted{Unstructured: u}), append(resources, entry(u))
		}
		s.tells(event("a", "same", "Warning", "2001-02-03T04:05:06Z", "", "hunter2"))
		a := s.has(resources[:5]...)
		a.in.Spec.SecretVariables = map[string]string{"p": "hunter2"}
		for _, w := range all {
			a.latest[w.key()] = look(w.DeepCopy())
		}
		delete(a.latest, all[4].key())
		a.drifted[all[0].key()] = "it was changed by a-hand"
		waiting := a.report(t.Context(), all, true)
		require.Equal(t, "Deployment.apps d0 in home is Drifted: it was changed by a-hand: REDACTED: it is said", waiting)
		require.Equal(t, "0/5", a.in.Status.Ready, "what is not in the inventory is somebody else's")
		require.Len(t, s.did("list", "events"), explained)
		require.Contains(t, a.in.Status.Resources[2].Reason, "REDACTED")
		require.NotContains(t, a.in.Status.Resources[3].Reason, "REDACTED")
		require.Equal(t, "NotFound", a.in.Status.Resources[4].Status)
		require.Equal(t, "it was not applied", a.in.Status.Resources[4].Reason)
	})
}

// A text that is too long is cut between two letters.
func TestTextsAreClipped(t *testing.T) {
	short := strings.Repeat("x", maxReason)
	require.Equal(t, short, clip(short))
	require.Equal(t, short+" …", clip(short+"y"))
	long := clip("x" + strings.Repeat("ü", maxReason))
	require.True(t, utf8.ValidString(long))
	require.Equal(t, "x"+strings.Repeat("ü", (maxReason-1)/2)+" …", long)
}
