package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

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

	bound   chan struct{} // closed when notify is known
	notify  func(ctx context.Context, kind, name, reason string) error
	telling *telling
	parsed  parsed

	mu       sync.Mutex
	clusters map[string]*cluster // by the name of their runtime
}

// New makes a controller.
func New(cfg Config) (*Controller, error) {
	c := &Controller{cfg: cfg, bound: make(chan struct{}), clusters: map[string]*cluster{}}
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
	c.telling = newTelling(func(ctx context.Context, instance, reason string) error {
		return c.ask(ctx, Instances, instance, reason)
	})
	return c, nil
}

// Controllers are what a runner reconciles with. Call [Controller.Run] beside the runner.
func (c *Controller) Controllers() []reconciler.Controller {
	runtimes := reconciler.ForWithCleanup(Runtimes, c.reconcileRuntime, c.cleanupRuntime)
	runtimes.Timeout = time.Minute
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
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, cl := range c.clusters {
		cl.close()
		delete(c.clusters, name)
	}
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

// forgetGone drops what is known of runtimes and instances that are no more. If they cannot be listed it drops nothing.
func (c *Controller) forgetGone(ctx context.Context) {
	runtimes, uids := map[string]bool{}, map[string]bool{}
	for r, err := range c.runtimes.All(ctx) {
		if err != nil {
			return
		}
		runtimes[r.Name] = true
	}
	for in, err := range c.instances.All(ctx) {
		if err != nil {
			return
		}
		uids[in.UID] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, cl := range c.clusters {
		if runtimes[name] {
			cl.keepApplied(uids)
			continue
		}
		cl.close()
		delete(c.clusters, name)
	}
}

// cluster is the connection of a runtime. It is made anew when the runtime says so.
func (c *Controller) cluster(runtime *Runtime) (*cluster, error) {
	cfg, version, err := connection(&runtime.Spec, c.cfg.Kubeconfigs)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.clusters[runtime.Name]
	if before != nil && before.version == version {
		return before, nil
	}
	cl, err := connect(cfg, version, c.telling.add)
	if err != nil {
		return nil, err
	}
	if before != nil {
		before.close()
	}
	c.clusters[runtime.Name] = cl
	return cl, nil
}

// disconnect closes the connection of a runtime that is gone.
func (c *Controller) disconnect(runtime string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl := c.clusters[runtime]; cl != nil {
		cl.close()
		delete(c.clusters, runtime)
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
	leave, err = cl.enter()
	switch {
	case errors.Is(err, errBusy):
		return nil, nil, wait(time.Second+rand.N(4*time.Second), "runtime %s: %w", name, err)
	case err != nil:
		return nil, nil, wait(downFor, "runtime %s: the cluster does not answer: %w", name, err)
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

// parsed keeps manifests that were taken apart lately.
type parsed struct {
	mu  sync.Mutex
	all map[string][]document
}

// keptParsed is how many definitions are kept taken apart.
const keptParsed = 64

// parse takes manifests apart. The documents are not to be changed.
func (p *parsed) parse(manifests string) ([]document, error) {
	k := hashOf(map[string]any{"manifests": manifests})
	p.mu.Lock()
	defer p.mu.Unlock()
	if docs, ok := p.all[k]; ok {
		return docs, nil
	}
	docs, err := parse(manifests)
	if err != nil {
		return nil, err
	}
	if p.all == nil || len(p.all) >= keptParsed {
		p.all = map[string][]document{}
	}
	p.all[k] = docs
	return docs, nil
}
