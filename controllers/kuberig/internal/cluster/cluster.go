// Package cluster runs a Kubernetes cluster of one machine: each component is a child process, and the same program as its
// parent, which has a command for each of them.
//
// [Run] makes a folder with everything that belongs to the cluster (certificates, settings, data, logs), starts the
// components in their order, and waits until the cluster is of use. When it returns, none of them runs any more; and if this
// process is killed, they end by themselves.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// The components, and the commands of the program that they are.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok"
)

// HoldAnnotation on a pod keeps it from becoming ready.
const HoldAnnotation = "evenkeel.io/hold-pod"

// order is the one in which components start. They stop in the opposite one.
var order = []string{Etcd, APIServer, ControllerManager, Scheduler, Kwok}

// cluster is one that runs. Its methods are called by one goroutine.
type cluster struct {
	Options
	folder   string // absolute
	owned    bool   // the folder is ours to remove
	self     string // the program
	ports    ports
	admin    *admin
	given    []byte                  // what was written to Kubeconfig
	fail     context.CancelCauseFunc // called when a component ends by itself
	children map[string]*child       // those that were started, by name
	watchers sync.WaitGroup          // of the children
	began    time.Time
}

// Run runs a cluster until ctx ends, or in control mode until the input does, which are both no error. The folder remains
// after an error, if there are logs in it.
func Run(ctx context.Context, o Options) (err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	c := &cluster{Options: o, fail: fail, children: map[string]*child{}, began: time.Now()}
	defer func() {
		err = errors.Join(err, c.stop(err != nil))
	}()
	if err := c.start(ctx); err != nil {
		return ended(ctx, err)
	}
	if !o.Control {
		c.explain()
		<-ctx.Done()
		return ended(ctx, context.Cause(ctx))
	}
	return ended(ctx, c.obey(ctx))
}

// ended is the error that a run ends with: none if it was asked to end.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil || err == nil {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(cause, errEnded) {
		return cause // what failed meanwhile failed because of it
	}
	return nil
}

// start gets everything up, step by step.
func (c *cluster) start(ctx context.Context) error {
	steps := []struct {
		what string
		do   func(context.Context) error
	}{
		{"certificates and settings", func(context.Context) error { return c.prepare() }},
		{Etcd, func(ctx context.Context) error { return c.launch(ctx, Etcd, c.etcdListens) }},
		{APIServer, func(ctx context.Context) error { return c.launch(ctx, APIServer, c.apiReady) }},
		{"controller manager, scheduler, kwok", c.launchRest},
		{fmt.Sprintf("nodes ready: %d", c.Nodes), c.nodesReady},
		{"default service account", c.accountExists},
	}
	for _, s := range steps {
		if err := s.do(ctx); err != nil {
			return err
		}
		c.say("  %-36s %5.1fs\n", s.what, time.Since(c.began).Seconds())
	}
	return nil
}

// prepare makes the folder and what the components read from it.
func (c *cluster) prepare() (err error) {
	if err := c.makeFolder(); err != nil {
		return err
	}
	c.say("a Kubernetes cluster in %s\n", c.folder)
	if c.self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if c.ports, err = freePorts(); err != nil {
		return err
	}
	keys, err := writeKeys(c.folder)
	if err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	if c.admin, err = newAdmin(keys, c.ports.api); err != nil {
		return err
	}
	if err := c.writeKubeconfigs(keys); err != nil {
		return err
	}
	stages, err := c.Stages()
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("kwok.yaml"), []byte(stages), 0o600)
}

// makeFolder makes sure of an empty folder: a cluster that was begun by another process is not continued, because its
// addresses and certificates are that one's.
func (c *cluster) makeFolder() (err error) {
	if c.Dir == "" {
		c.owned = true
		c.folder, err = os.MkdirTemp("", "evenkeel-kube-")
		return err
	}
	if c.folder, err = filepath.Abs(c.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.folder, 0o700); err != nil {
		return err
	}
	found, err := os.ReadDir(c.folder)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("the folder %s is not empty, and a cluster begins anew: name another with --dir, or none", c.folder)
	}
	return nil
}

// path is that of a file of the cluster.
func (c *cluster) path(name string) string { return filepath.Join(c.folder, name) }

// launch starts a component and waits until it is ready.
func (c *cluster) launch(ctx context.Context, name string, ready func(context.Context) error) error {
	if err := c.spawn(name); err != nil {
		return err
	}
	return c.within(ctx, name, ready)
}

// launchRest starts those that wait for the API by themselves. That they work shows in the nodes and the account.
func (c *cluster) launchRest(context.Context) error {
	for _, name := range []string{ControllerManager, Scheduler, Kwok} {
		if err := c.spawn(name); err != nil {
			return err
		}
	}
	return nil
}

// stop ends all components, and removes what is of no use without them; the folder stays if one of them failed.
func (c *cluster) stop(failed bool) error {
	grace := stopWithin
	if failed || c.Control {
		grace = 0 // nobody is interested in what they still have to do
	} else {
		c.say("\nstopping\n")
	}
	for _, name := range slices.Backward(order) {
		if ch := c.children[name]; ch != nil {
			ch.stop(grace)
		}
	}
	c.watchers.Wait()
	err := c.removeKubeconfig()
	if c.owned && c.folder != "" && (!failed || len(c.children) == 0) {
		err = errors.Join(err, os.RemoveAll(c.folder))
	}
	return err
}

func (c *cluster) say(format string, args ...any) { fmt.Fprintf(c.Progress, format, args...) }

// explain says what can be done with the cluster.
func (c *cluster) explain() {
	config := c.Kubeconfig
	if config == "" {
		config = c.path(adminFile)
	}
	c.say(`ready

  export KUBECONFIG=%s
  %s kubectl get nodes          (any other kubectl does as well)

Logs are in %s.
No container runs here: pods are ready at once because kwok says so, unless they have the annotation %s.
Ctrl-C stops the cluster`, config, c.self, c.path("logs"), HoldAnnotation)
	if c.owned {
		c.say(", and removes all of it")
	}
	c.say(".\n")
}
