package workload_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
	"github.com/evenkeel-io/evenkeel/controllers/internal/proc"
	"github.com/evenkeel-io/evenkeel/controllers/workload"
)

// program builds the command evenkeel, with the race detector if the tests have it.
func program(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "evenkeel")
	args := []string{"build", "-buildvcs=false", "-o", path}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(t.Context(), "go", append(args, "../cmd/evenkeel")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// fleet are replicas of the controller that are processes.
type fleet struct {
	*installation
	program string
	all     map[string]*proc.Process
	kills   int
}

// launch starts so many replicas.
func launch(i *installation, replicas int) *fleet {
	i.Helper()
	f := &fleet{installation: i, program: program(i.TB), all: map[string]*proc.Process{}}
	i.Cleanup(func() {
		for name, p := range f.all {
			if err := p.Kill(); err != nil {
				i.Errorf("stop %s: %s", name, err)
			} else if i.Failed() {
				i.Logf("%s said:\n%s", name, p.Said())
			}
		}
	})
	for n := range replicas {
		require.NoError(i, f.run(fmt.Sprintf("replica-%d", n)))
	}
	return f
}

func (f *fleet) run(name string) error {
	cmd := exec.Command(f.program, "workload", "--api", f.api.URL, "--nats", f.nats, "--probe", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1")
	p, err := proc.Start(context.WithoutCancel(f.Context()), name, cmd, "the workload controller is up", nil)
	if err == nil {
		f.all[name] = p
	}
	return err
}

// kill is kill -9 of a replica, which is not there any more afterwards.
func (f *fleet) kill(name string) error {
	p := f.all[name]
	delete(f.all, name)
	f.kills++
	return p.Kill()
}

// killWhile kills one replica after the other at random moments, at least one, while something is done, and starts each again.
// All are up afterwards.
func (f *fleet) killWhile(do func()) {
	f.Helper()
	ctx, stop := context.WithCancel(f.Context())
	names := make([]string, 0, len(f.all))
	for name := range f.all {
		names = append(names, name)
	}
	var killing sync.WaitGroup
	killing.Go(func() {
		for n := 0; n == 0 || ctx.Err() == nil; n++ {
			pause(ctx, rand.N(4*time.Second))
			name := names[rand.N(len(names))]
			err := f.kill(name)
			if err == nil {
				pause(ctx, rand.N(time.Second))
				err = f.run(name)
			}
			if err != nil {
				f.Errorf("kill and start: %s", err)
				return
			}
		}
	})
	defer killing.Wait() // also if do gives up
	defer stop()
	do()
}

// number reads a number from the environment.
func number(t *testing.T, name string, standard int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return standard
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	return n
}

// ship is what each instance of the fleet is in a colour. With the colour changes everything that can be left behind: a value,
// an image, and the name of something that no namespace takes with it.
func ship(colour string) string {
	return strings.ReplaceAll(`
apiVersion: v1
kind: ConfigMap
metadata: {name: ship}
data: {colour: COLOUR}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "${id}-COLOUR"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: ship}
spec:
  selector: {matchLabels: {app: ship}}
  template:
    metadata: {labels: {app: ship}}
    spec: {containers: [{name: ship, image: "example.com/ship:COLOUR"}]}
`, "COLOUR", colour)
}

// TestClusterRollout is the life of EVENKEEL_INSTANCES instances while replicas are killed at random moments (kill -9 of
// processes), and the API server of their cluster once: they come to be, some for a moment only, they go to a new generation
// and, before all have, to the next one, and they go. In between the cluster has what is wanted, and at the end nothing.
func TestClusterRollout(t *testing.T) {
	n := number(t, "EVENKEEL_INSTANCES", 12)
	kube := kubetest.Own(t)
	before, err := kube.Objects(t.Context())
	require.NoError(t, err)
	i := install(t, 0)
	_, err = i.runtimes.Put(t.Context(), "main", workload.RuntimeSpec{Kubeconfig: kubeconfigOf(t, kube.Config())})
	require.NoError(t, err)
	f := launch(i, 3)
	part := func(name string, do func()) {
		began, kills := time.Now(), f.kills
		f.killWhile(do)
		t.Logf("%s of %d instances: %d kills in %s", name, n, f.kills-kills, time.Since(began).Round(time.Second))
	}
	f.paint("blue", n)
	part("creation", func() {
		f.create(n)
		f.rolledOut("blue", n, n)
	})
	f.painted(kube, "blue", n)
	part("rollout", func() {
		f.paint("green", n)
		f.rolledOut("green", n, n/2)
		f.paint("red", n)
		f.rolledOut("red", n, n/3)
		require.NoError(t, kube.Kill(kubetest.APIServer))
		require.NoError(t, kube.Restart(kubetest.APIServer))
		f.rolledOut("red", n, n)
	})
	f.painted(kube, "red", n)
	part("deletion", f.deleteAll)
	untouched(t, kube, before)
}

func (f *fleet) paint(colour string, n int) {
	f.Helper()
	_, err := f.definitions.Put(f.Context(), "fleet", workload.DefinitionSpec{
		Manifests: ship(colour), Variables: []workload.Variable{{Name: "id"}}, Rollout: workload.Rollout{AtOnce: max(5, n/10)},
	})
	require.NoError(f, err)
}

// create declares the instances, and others for a moment only: what was begun of them is not to stay.
func (f *fleet) create(n int) {
	f.Helper()
	put := func(name string) {
		_, err := f.instances.Put(f.Context(), name, workload.InstanceSpec{Definition: "fleet", Runtime: "main", Variables: map[string]string{"id": name}})
		require.NoError(f, err)
	}
	for k := range n {
		put(fmt.Sprintf("fleet-%03d", k))
		if k%2 == 0 {
			name := fmt.Sprintf("short-%03d", k)
			put(name)
			pause(f.Context(), rand.N(500*time.Millisecond))
			_, err := f.instances.Delete(f.Context(), name)
			require.NoError(f, err)
		}
	}
	f.left(n)
}

// left waits until no more than so many instances are left.
func (f *fleet) left(n int) {
	f.Helper()
	f.eventually(func() string {
		left := 0
		for _, err := range f.instances.All(f.Context()) {
			require.NoError(f, err)
			left++
		}
		if left > n {
			return fmt.Sprintf("%d instances are left", left)
		}
		return ""
	})
}

// rolledOut waits until so many of n instances have come to a colour, and, if that is all of them, until nothing is left to do.
func (f *fleet) rolledOut(colour string, n, some int) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), patient)
	defer cancel()
	_, err := f.definitions.WaitFor(ctx, "fleet", func(d *workload.Definition) bool {
		ro := d.Status.Rollout
		return strings.Contains(d.Spec.Manifests, colour) && ro != nil && ro.Generation == d.Generation && ro.Updated >= some && (some < n || d.Ready())
	})
	if err != nil {
		d, _ := f.definitions.Get(f.Context(), "fleet")
		f.Fatalf("%s\nit is: %+v %+v", err, d.Reconciliation, d.Status.Rollout)
	}
}

// painted checks that the cluster has what n instances are in a colour, and nothing else of theirs.
func (f *fleet) painted(kube *kubetest.Cluster, colour string, n int) {
	f.Helper()
	var wanted, has []string
	for k := range n {
		name := fmt.Sprintf("fleet-%03d", k)
		wanted = append(wanted, "namespace of "+name, "map of "+name+": "+colour, "role of "+name+": "+name+"-"+colour,
			"deployment of "+name+": example.com/ship:"+colour+", 1 available")
	}
	saw := func(what string, o metav1.Object, is string) {
		has = append(has, what+" of "+o.GetLabels()[workload.LabelInstanceName]+is)
	}
	ours := metav1.ListOptions{LabelSelector: workload.LabelInstance}
	namespaces, err := kube.Client().CoreV1().Namespaces().List(f.Context(), ours)
	require.NoError(f, err)
	for _, o := range namespaces.Items {
		saw("namespace", &o, "")
	}
	maps, err := kube.Client().CoreV1().ConfigMaps("").List(f.Context(), ours)
	require.NoError(f, err)
	for _, o := range maps.Items {
		saw("map", &o, ": "+o.Data["colour"])
	}
	roles, err := kube.Client().RbacV1().ClusterRoles().List(f.Context(), ours)
	require.NoError(f, err)
	for _, o := range roles.Items {
		saw("role", &o, ": "+o.Name)
	}
	deployments, err := kube.Client().AppsV1().Deployments("").List(f.Context(), ours)
	require.NoError(f, err)
	for _, o := range deployments.Items {
		saw("deployment", &o, fmt.Sprintf(": %s, %d available", o.Spec.Template.Spec.Containers[0].Image, o.Status.AvailableReplicas))
	}
	slices.Sort(wanted)
	slices.Sort(has)
	require.Equal(f, wanted, has)
}

func (f *fleet) deleteAll() {
	f.Helper()
	for in, err := range f.instances.All(f.Context()) {
		require.NoError(f, err)
		_, err = f.instances.Delete(f.Context(), in.Name)
		require.NoError(f, err)
	}
	f.left(0)
}

// A replica dies while it makes an instance, and the instance is deleted before anybody looks at it again: what was made by
// then is found, though the status of that reconcile was never stored.
func TestClusterForgetsNothingOfTheDead(t *testing.T) {
	kube := kubetest.Start(t)
	before, err := kube.Objects(t.Context())
	require.NoError(t, err)
	i := install(t, 0)
	i.cluster("main")
	f := launch(i, 1)
	arrived, dead := make(chan struct{}), make(chan struct{})
	told := sync.OnceFunc(func() { close(arrived) })
	h := serveHook(t, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		told()
		<-dead
		return refused("whoever asks is dead")
	})
	forget := h.configure(kube, h.configuration("Validating", "short", "CREATE", "deployments"))
	_, err = i.definitions.Put(t.Context(), "short", workload.DefinitionSpec{Manifests: ship("blue"), Variables: []workload.Variable{{Name: "id"}}})
	require.NoError(t, err)
	_, err = i.instances.Put(t.Context(), "short", workload.InstanceSpec{Definition: "short", Runtime: "main", Variables: map[string]string{"id": "short"}})
	require.NoError(t, err)
	select {
	case <-arrived: // the namespace, the role and the map are there
	case <-time.After(patience):
		t.Fatal("nothing is deployed")
	}
	_, err = kube.Client().RbacV1().ClusterRoles().Get(t.Context(), "short-blue", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, f.kill("replica-0"))
	close(dead)
	_, err = i.instances.Delete(t.Context(), "short")
	require.NoError(t, err)
	forget()
	require.NoError(t, f.run("replica-1"))
	i.until("short", func(in *workload.Instance) bool { return in == nil })
	untouched(t, kube, before)
}
