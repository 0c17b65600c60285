package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// identity is the uid of the cluster's namespace kube-system, which no other cluster has: the usual way to tell clusters
// apart. It is read when there is a new connection, and by every probe. It is empty if this controller may not read it.
func (c *cluster) identity(ctx context.Context) (string, error) {
	c.mu.Lock()
	uid, known := c.uid, c.uid != "" && c.identified == c.dialer.connections()
	c.mu.Unlock()
	if known { // behind the address there is who was there before
		return uid, nil
	}
	return c.identify(ctx)
}

func (c *cluster) identify(ctx context.Context) (string, error) {
	system, err := c.client.Resource(namespaceResource).Get(ctx, "kube-system", metav1.GetOptions{})
	uid := ""
	switch {
	case err == nil:
		uid = string(system.GetUID())
	case apierrors.IsForbidden(err) || isGone(err):
	default:
		return "", c.note(err)
	}
	c.mu.Lock()
	c.uid, c.identified = uid, c.dialer.connections()
	c.mu.Unlock()
	return uid, c.note(nil)
}

// errOtherCluster is of a runtime that leads to another cluster than it should.
var errOtherCluster = errors.New("it leads to another cluster")

// checkCluster refuses a cluster that is not the one that its runtime names.
func checkCluster(r *Runtime, uid string) error {
	want := r.Spec.Cluster
	if want != "" && uid == "" {
		return fmt.Errorf("%w: spec.cluster is set, and the controller may not read the namespace kube-system, which says which cluster it is", errOtherCluster)
	}
	if want != "" && uid != want {
		return fmt.Errorf("%w: cluster %s is wanted, and %s answers: correct spec.cluster or the address", errOtherCluster, want, uid)
	}
	return nil
}

// settleIn makes sure that an instance is at home in the cluster that answers. If it has resources in another one it waits,
// until the runtime leads there again or says that this is the cluster: then it begins here anew.
func settleIn(in *Instance, r *Runtime, uid string) error {
	if err := checkCluster(r, uid); err != nil {
		return wait(time.Minute, "runtime %s: %w", r.Name, err)
	}
	home := &in.Status.Cluster
	switch {
	case *home == uid:
	case uid == "":
		return wait(time.Minute, "runtime %s: what this instance has is in cluster %s, and the controller may not read any more which cluster this is: "+
			"let it get the namespace kube-system", r.Name, *home)
	case *home == "" || len(in.Status.Resources) == 0:
		*home = uid
	case r.Spec.Cluster == uid:
		in.Status.Resources, in.Status.Drift, in.Status.DefinitionGeneration = nil, nil, 0
		*home = uid
	default:
		return wait(time.Minute, "runtime %s: %w, %s, and what this instance has is in cluster %s: lead it back there, or, "+
			"to leave behind what is there, set spec.cluster of the runtime to %[3]s", r.Name, errOtherCluster, uid, *home)
	}
	return nil
}
