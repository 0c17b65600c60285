package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/requeue"
)

// Config says what the controller works with.
type Config struct {
	// API is how to reach the Evenkeel API, with a token of the role controller for all four kinds.
	API apiclient.Config
	// Editor is the same with a token of the role editor for definitions and instances, which [Workloads] are made into. Nil
	// leaves that kind alone.
	Editor *apiclient.Config
	// Kubeconfigs is the folder of the files that [RuntimeSpec].KubeconfigFile names. Empty: there is none.
	Kubeconfigs string
}

// Controller reconciles the four kinds. It is used by one runner.
type Controller struct {
	cfg         Config
	runtimes    *apiclient.Client[RuntimeSpec, RuntimeStatus]
	definitions *apiclient.Client[DefinitionSpec, DefinitionStatus]
	instances   *apiclient.Client[InstanceSpec, InstanceStatus]
	editor      *editor // nil: no workloads

	// connect makes a connection to a cluster.
	connect func(cfg *rest.Config, version string, changed func(instance, reason string)) (*cluster, error)
	bound   chan struct{} // closed when notify is known
	notify  func(ctx context.Context, kind, name, reason string) error
	telling *telling
	parsed  parsed

	mu       sync.Mutex
	clusters map[string]*cluster // by the name of their runtime
}

// New makes a controller.
func New(cfg Config) (*Controller, error) {
	c := &Controller{cfg: cfg, connect: connect, bound: make(chan struct{}), clusters: map[string]*cluster{}}
	var errs [3]error
	c.runtimes, errs[0] = apiclient.New[RuntimeSpec, RuntimeStatus](cfg.API, Runtimes)
	c.definitions, errs[1] = apiclient.New[DefinitionSpec, DefinitionStatus](cfg.API, Definitions)
	c.instances, errs[2] = apiclient.New[InstanceSpec, InstanceStatus](cfg.API, Instances)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	if cfg.Editor != nil {
		var err error
		if c.editor, err = newEditor(*cfg.Editor); err != nil {
			return nil, fmt.Errorf("workload: %w", err)
		}
	}
	c.telling = newTelling(c.ask)
	return c, nil
}

// Controllers are what a runner reconciles with. Call [Controller.Run] beside the runner.
func (c *Controller) Controllers() []reconciler.Controller {
	runtimes := reconciler.ForWithCleanup(Runtimes, c.reconcileRuntime, c.cleanupRuntime)
	runtimes.Workers, runtimes.Timeout = 32, time.Minute // a cluster that is silent takes one for some seconds
	definitions := reconciler.ForWithCleanup(Definitions, c.reconcileDefinition, c.cleanupDefinition)
	instances := reconciler.ForWithCleanup(Instances, c.reconcileInstance, c.cleanupInstance)
	instances.Workers, instances.Timeout = 64, 10*time.Minute
	instances.Backoff = requeue.Backoff{Cap: time.Minute} // what it waits for may be a click away
	all := []reconciler.Controller{runtimes, definitions, instances}
	if c.editor != nil {
		all = append(all, reconciler.ForWithCleanup(Workloads, c.reconcileWorkload, c.cleanupWorkload))
	}
	return all
}

// Run passes on what the clusters tell of, until ctx is done, and closes their connections. notify asks for a reconcile
// ([reconciler.Runner.Notify]). It is called once.
func (c *Controller) Run(ctx context.Context, notify func(ctx context.Context, kind, name, reason string) error) {
	c.notify = notify
	close(c.bound)
	var running sync.WaitGroup
	running.Go(func() { c.telling.run(ctx) })
	running.Go(func() { c.tidy(ctx) })
	running.Wait()
	c.disconnect(func(string) bool { return true })
}

// ask asks for a reconcile, as soon as Run has been called.
func (c *Controller) ask(ctx context.Context, kind, name, reason string) error {
	select {
	case <-c.bound:
		return c.notify(ctx, kind, name, reason)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// tidyEvery is how often what is known of objects that have gone is dropped: another replica may have cleaned them up.
const tidyEvery = 10 * time.Minute

func (c *Controller) tidy(ctx context.Context) {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.forgetGone(ctx)
		}
	}
}

// forgetGone closes the connections of runtimes that are no more. If they cannot be listed it closes none.
func (c *Controller) forgetGone(ctx context.Context) {
	there := map[string]bool{}
	for r, err := range c.runtimes.All(ctx) {
		if err != nil {
			return
		}
		there[r.Name] = true
	}
	c.disconnect(func(runtime string) bool { return !there[runtime] })
}

// cluster is the connection of a runtime. It is made anew when the runtime says so.
func (c *Controller) cluster(runtime *Runtime) (*cluster, error) {
	if cl := c.connectedAs(runtime); cl != nil {
		return cl, nil
	}
	cfg, version, err := connection(&runtime.Spec, c.cfg.Kubeconfigs)
	if err != nil {
		return nil, err
	}
	cl, replaced, err := c.connected(runtime, cfg, version)
	if replaced != nil {
		replaced.close()
	}
	return cl, err
}

// connectedAs is the connection of a runtime if it was made for this very spec, and there is nothing outside of it that may have
// changed.
func (c *Controller) connectedAs(runtime *Runtime) *cluster {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl := c.clusters[runtime.Name]; cl != nil && cl.spec == runtime.Spec && runtime.Spec.KubeconfigFile == "" {
		return cl
	}
	return nil
}

// connected finds the connection of a runtime, or puts one in the place of another, which is to be closed.
func (c *Controller) connected(runtime *Runtime, cfg *rest.Config, version string) (cl, replaced *cluster, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.clusters[runtime.Name]
	if before != nil && before.version == version {
		return before, nil, nil
	}
	cl, err = c.connect(cfg, version, func(instance, reason string) { c.telling.add(Instances, instance, reason) })
	if err != nil {
		return nil, nil, err
	}
	cl.spec = runtime.Spec
	c.clusters[runtime.Name] = cl
	return cl, before, nil
}

// disconnect closes the connections of some runtimes.
func (c *Controller) disconnect(these func(runtime string) bool) {
	var closing []*cluster
	c.mu.Lock()
	for name, cl := range c.clusters {
		if these(name) {
			closing = append(closing, cl)
			delete(c.clusters, name)
		}
	}
	c.mu.Unlock()
	for _, cl := range closing { // which takes a moment
		cl.close()
	}
}

// wait is an outcome: the object is waiting for something that is not its fault. after is when it looks again by itself, if
// nobody wakes it before.
func wait(after time.Duration, format string, args ...any) error {
	return reconciler.Throttled(fmt.Errorf(format, args...), after+rand.N(after/4+1))
}

// use finds the cluster of an instance, and takes one of its slots.
func (c *Controller) use(ctx context.Context, in *Instance) (cl *cluster, leave func(), err error) {
	name := in.Spec.Runtime
	runtime, err := c.runtimes.Get(ctx, name)
	if errors.Is(err, apiclient.ErrNotFound) {
		return nil, nil, wait(30*time.Second, "runtime %s does not exist", name)
	}
	if err != nil {
		return nil, nil, err
	}
	if runtime.DeletedAt != nil && in.DeletedAt == nil {
		return nil, nil, wait(30*time.Second, "runtime %s is being deleted", name)
	}
	cl, err = c.cluster(runtime)
	if err != nil {
		return nil, nil, wait(time.Minute, "runtime %s: %w", name, err)
	}
	next, err := cl.health.enter(ctx, in.Name, cl.greet)
	switch {
	case errors.Is(err, errBusy), errors.Is(err, errSlow):
		return nil, nil, wait(time.Second+rand.N(4*time.Second), "runtime %s: %w", name, err)
	case err != nil:
		return nil, nil, wait(downFor, "runtime %s: the cluster does not answer: %w", name, err)
	}
	leave = func() {
		if name := next(); name != "" {
			_ = c.ask(ctx, Instances, name, "runtime "+runtime.Name+" has room") // or it comes by itself, in some seconds
		}
	}
	uid, err := cl.identity(ctx)
	if err == nil {
		err = settleIn(in, runtime, uid)
	} else if err = fmt.Errorf("runtime %s: %w", name, err); unreachable(err) {
		err = wait(downFor, "%w", err)
	}
	if err != nil {
		leave()
		return nil, nil, err
	}
	return cl, leave, nil
}

// instancesOf lists the instances with a field of that value, in the order of their names.
func (c *Controller) instancesOf(ctx context.Context, field, value string) (all []*Instance, err error) {
	for in, err := range c.instances.All(ctx, apiclient.WithFields("spec."+field+"="+value)) {
		if err != nil {
			return nil, err
		}
		all = append(all, in)
	}
	return all, nil
}
