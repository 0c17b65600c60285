package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// explained is how many resources that are not ready are looked into.
	explained = 3
	// explainTimeout bounds the time that this takes: it is a help, and no cluster that is slow may keep a worker with it.
	explainTimeout = 5 * time.Second
	// maxReason bounds what is told of one, in bytes.
	maxReason = 500
)

// report writes into the inventory how each resource is. It returns what the instance waits for, empty if it is ready.
//
// ask is whether the cluster may be asked why.
func (a *applying) report(ctx context.Context, all []wanted, ask bool) (waiting string) {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	ready, counted, looked := 0, 0, 0
	for _, w := range all {
		e := a.entries[w.key()]
		if e == nil { // the namespace, which is somebody else's
			continue
		}
		counted++
		e.Status, e.Reason = a.statusOf(w.key())
		if s := a.latest[w.key()]; s != nil {
			e.Completed = hasCompleted(s)
		}
		if e.Status == string(status.CurrentStatus) {
			ready++
			continue
		}
		if s := a.latest[w.key()]; s != nil && ask && looked < explained {
			looked++
			if why := a.explain(ctx, s); why != "" {
				e.Reason += ": " + why
			}
		}
		e.Reason = a.tell(e.Reason)
		if waiting == "" {
			waiting = fmt.Sprintf("%s is %s: %s", w.key(), e.Status, e.Reason)
		}
	}
	a.in.Status.Ready = fmt.Sprintf("%d/%d", ready, counted)
	return waiting
}

func (a *applying) statusOf(k resourceKey) (word, reason string) {
	if why := a.drifted[k]; why != "" {
		return "Drifted", why
	}
	if a.cleaned[k] {
		return string(status.CurrentStatus), "it has completed, and was cleaned up"
	}
	s := a.latest[k]
	if s == nil {
		return string(status.NotFoundStatus), "it was not applied"
	}
	result, err := status.Compute(&s.Unstructured)
	if err != nil {
		return string(status.UnknownStatus), err.Error()
	}
	if result.Status == status.CurrentStatus {
		return string(result.Status), ""
	}
	return string(result.Status), result.Message
}

// tell is what may be told of a text: without secrets, and not too long.
func (a *applying) tell(text string) string { return clip(withoutSecrets(a.in, text)) }

func clip(text string) string {
	if len(text) <= maxReason {
		return text
	}
	return strings.ToValidUTF8(text[:maxReason], "") + " …"
}

var jobKind = schema.GroupKind{Group: "batch", Kind: "Job"}

// hasCompleted reports whether a resource is a job that has run to its end.
func hasCompleted(s *seen) bool {
	return s.GroupVersionKind().GroupKind() == jobKind && condition(&s.Unstructured, "Complete")
}

// cleansUp reports whether the cluster removes what is wanted once it is done.
func cleansUp(w wanted) bool {
	_, found, _ := unstructured.NestedFieldNoCopy(w.Object, "spec", "ttlSecondsAfterFinished")
	return found && w.GroupVersionKind().GroupKind() == jobKind
}

var (
	podResource   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	eventResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}
)

// explain says what the pods of a workload wait for, and of what its latest warning was. It is a help: what cannot be read
// is left out.
func (a *applying) explain(ctx context.Context, s *seen) string {
	var why []string
	uids := []string{string(s.GetUID())}
	if selector, ok := podSelector(s); ok {
		// An error leaves out what it could not read.
		_ = a.list(ctx, podResource, s.GetNamespace(), metav1.ListOptions{LabelSelector: selector}, func(pod *unstructured.Unstructured) error {
			if text := podWaits(pod); text != "" && len(why) < explained {
				why = append(why, text)
				uids = append(uids, string(pod.GetUID()))
			}
			return nil
		})
	}
	if s.GetNamespace() != "" {
		for _, uid := range uids {
			if text := a.lastWarning(ctx, s.GetNamespace(), uid); text != "" && !slices.Contains(why, text) {
				why = append(why, text)
			}
		}
	}
	return strings.Join(why, "; ")
}

// podSelector selects the pods of a workload.
func podSelector(s *seen) (string, bool) {
	switch s.GroupVersionKind().GroupKind() {
	case schema.GroupKind{Kind: "Pod"}:
		return labels.SelectorFromSet(s.GetLabels()).String(), len(s.GetLabels()) > 0
	case schema.GroupKind{Group: "apps", Kind: "Deployment"}, schema.GroupKind{Group: "apps", Kind: "StatefulSet"},
		schema.GroupKind{Group: "apps", Kind: "DaemonSet"}, schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}, jobKind:
	default:
		return "", false
	}
	match, _, _ := unstructured.NestedStringMap(s.Object, "spec", "selector", "matchLabels")
	return labels.SelectorFromSet(match).String(), len(match) > 0
}

// podWaits says what a pod waits for.
func podWaits(pod *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(pod.Object, "status", "conditions")
	for _, one := range conditions {
		c, _ := one.(map[string]any)
		if c["type"] == "PodScheduled" && c["status"] == "False" {
			return fmt.Sprintf("pod %s: %v: %v", pod.GetName(), c["reason"], c["message"])
		}
	}
	for _, field := range []string{"initContainerStatuses", "containerStatuses"} {
		containers, _, _ := unstructured.NestedSlice(pod.Object, "status", field)
		for _, one := range containers {
			c, _ := one.(map[string]any)
			reason, found, _ := unstructured.NestedString(c, "state", "waiting", "reason")
			if !found {
				continue
			}
			text := fmt.Sprintf("pod %s: container %v: %s", pod.GetName(), c["name"], reason)
			if message, _, _ := unstructured.NestedString(c, "state", "waiting", "message"); message != "" {
				text += ": " + message
			}
			return text
		}
	}
	return ""
}

// lastWarning is the latest warning event of a resource.
func (a *applying) lastWarning(ctx context.Context, namespace, uid string) (text string) {
	var latest time.Time
	selector := fields.Set{"involvedObject.uid": uid, "type": "Warning"}.AsSelector().String()
	// An error leaves out what it could not read.
	_ = a.list(ctx, eventResource, namespace, metav1.ListOptions{FieldSelector: selector}, func(event *unstructured.Unstructured) error {
		noted, _, _ := unstructured.NestedString(event.Object, "lastTimestamp")
		if noted == "" {
			noted, _, _ = unstructured.NestedString(event.Object, "eventTime")
		}
		at, _ := time.Parse(time.RFC3339, noted) // one without a time is older than any
		if at.Before(latest) {
			return nil
		}
		latest = at
		reason, _, _ := unstructured.NestedString(event.Object, "reason")
		message, _, _ := unstructured.NestedString(event.Object, "message")
		text = reason + ": " + message
		return nil
	})
	return text
}
