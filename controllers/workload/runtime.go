package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

// lookedAt is how often a cluster is looked at.
const lookedAt = 30 * time.Second

// reconcileRuntime looks at a cluster. That it does not answer is a state of the world, not a failure: it is looked at again
// in a while, and its instances hear when it is back.
func (c *Controller) reconcileRuntime(ctx context.Context, r *Runtime) (reconciler.Result, error) {
	was := r.Status.Healthy
	version, cluster, err := c.look(ctx, r)
	if err != nil {
		r.Status.Healthy, r.Status.Message = false, clip(err.Error())
	} else {
		r.Status.Healthy, r.Status.Message, r.Status.Version, r.Status.Cluster = true, "", version, cluster
	}
	if was != r.Status.Healthy || r.Status.Since == nil {
		now := time.Now().UTC()
		r.Status.Since = &now
	}
	changed := r.Reconciliation.ObservedGeneration != r.Generation
	if r.Status.Healthy && (!was || changed) {
		all, err := c.instancesOf(ctx, "runtime", r.Name)
		if err != nil {
			return reconciler.Result{}, err
		}
		for _, in := range all {
			if err := c.ask(ctx, Instances, in.Name, "the cluster of runtime "+r.Name+" answers"); err != nil {
				return reconciler.Result{}, err
			}
		}
	}
	switch {
	case errors.Is(err, errOtherCluster):
		return reconciler.Result{}, wait(lookedAt, "%w", err)
	case errors.Is(err, errRuntime):
		if r.Spec.KubeconfigFile != "" { // the file may be mended
			return reconciler.Result{}, wait(lookedAt, "%w", err)
		}
		return reconciler.Result{}, reconciler.Terminal(err)
	case err != nil:
		return reconciler.Result{}, wait(lookedAt/2, "the cluster does not answer: %w", err)
	}
	return reconciler.Result{RequeueAfter: lookedAt + rand.N(lookedAt/4)}, nil
}

func (c *Controller) look(ctx context.Context, r *Runtime) (version, uid string, err error) {
	cl, err := c.cluster(r)
	if err != nil {
		return "", "", err
	}
	if version, err = cl.hello(ctx); err != nil {
		return "", "", err
	}
	if uid, err = cl.identify(ctx); err != nil {
		return "", "", err
	}
	return version, uid, checkCluster(r, uid)
}

// cleanupRuntime lets go of a cluster when no instance needs it.
func (c *Controller) cleanupRuntime(ctx context.Context, r *Runtime) (reconciler.Result, error) {
	all, err := c.instancesOf(ctx, "runtime", r.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	if len(all) > 0 {
		return reconciler.Result{}, wait(stillInUse, "%s", inUse(all))
	}
	c.disconnect(func(runtime string) bool { return runtime == r.Name })
	return reconciler.Result{}, nil
}

// stillInUse is how often somebody looks whether something is still in use that is to be deleted.
const stillInUse = 5 * time.Second

// inUse says who keeps something from being deleted.
func inUse(all []*Instance) string {
	if len(all) == 1 {
		return fmt.Sprintf("in use by instance %s", all[0].Name)
	}
	return fmt.Sprintf("in use by %d instances, %s among them", len(all), all[0].Name)
}
