package workload

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// These tests need no cluster and no server: they show how to test a controller that reads other kinds, writes to them and asks
// for their reconciles.

// alone is a controller whose functions are called one by one.
func alone(t *testing.T) *Controller {
	t.Helper()
	c, err := New(Config{API: apiclient.Config{URL: "http://127.0.0.1:1"}})
	require.NoError(t, err)
	return c
}

// How to test a function: call it on an object.
func TestDefinitionIsChecked(t *testing.T) {
	out := reconcilertest.Call(t, alone(t).reconcileDefinition, &Definition{Name: "web", Spec: DefinitionSpec{Manifests: "kind: x"}})
	require.Equal(t, apiclient.StateStalled, out.Object.Reconciliation.State)
	require.EqualError(t, out.Err, "the manifests are wrong: document 1 (line 1): apiVersion and kind are missing")
}

// What cannot be right is not tried again; what may become right is.
func TestRuntimeThatIsWrong(t *testing.T) {
	for want, spec := range map[apiclient.State]RuntimeSpec{
		apiclient.StateStalled: {Endpoint: "https://192.0.2.1"},
		apiclient.StateWaiting: {KubeconfigFile: "not-there-yet"},
	} {
		out := reconcilertest.Call(t, alone(t).reconcileRuntime, &Runtime{Name: "main", Spec: spec})
		require.Equal(t, want, out.Object.Reconciliation.State)
		require.False(t, out.Object.Status.Healthy)
		require.Equal(t, out.Err.Error(), out.Object.Status.Message)
	}
}

// world is a replica of the controller in a World, and clients of its API.
type world struct {
	*reconcilertest.World
	controller  *Controller
	definitions *apiclient.Client[DefinitionSpec, DefinitionStatus]
	instances   *apiclient.Client[InstanceSpec, InstanceStatus]
	workloads   *apiclient.Client[WorkloadSpec, WorkloadStatus]
	runtimes    *apiclient.Client[RuntimeSpec, RuntimeStatus]
}

// leads has a runtime lead to a cluster.
func (w *world) leads(t *testing.T, name string, to *cluster) {
	t.Helper()
	r, err := w.runtimes.Put(t.Context(), name, somewhere)
	require.NoError(t, err)
	_, to.version, err = connection(&r.Spec, "")
	require.NoError(t, err)
	w.controller.mu.Lock()
	defer w.controller.mu.Unlock()
	w.controller.clusters[name] = to
}

// inWorld runs a test in virtual time: minutes of waiting take milliseconds.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		api := apiclient.Config{URL: "http://api", HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			answer := httptest.NewRecorder()
			w.API().ServeHTTP(answer, r)
			return answer.Result(), nil
		})}}
		c, err := New(Config{API: api, Editor: &api})
		require.NoError(t, err)
		replica := w.Start("a", c.Controllers()...)
		ctx, stop := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			c.Run(ctx, replica.Runner.Notify)
		}()
		defer func() {
			stop()
			<-stopped
		}()
		f(t, &world{
			w, c, reconcilertest.Client[DefinitionSpec, DefinitionStatus](w, Definitions), reconcilertest.Client[InstanceSpec, InstanceStatus](w, Instances),
			reconcilertest.Client[WorkloadSpec, WorkloadStatus](w, Workloads), reconcilertest.Client[RuntimeSpec, RuntimeStatus](w, Runtimes),
		})
	})
}

// A workload is made into a definition and an instance, says what the instance waits for, and takes both with it.
func TestWorkloadIsMadeIntoBoth(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		_, err := w.workloads.Create(ctx, "shop", WorkloadSpec{Manifests: pair, Runtime: "nowhere", Namespace: "n", Labels: map[string]string{"team": "a"}, Drift: DriftReport})
		require.NoError(t, err)
		w.Advance(10 * time.Second)
		d, err := w.definitions.Get(ctx, "shop")
		require.NoError(t, err)
		require.Equal(t, DefinitionSpec{Manifests: pair}, d.Spec)
		require.Equal(t, []string{"Deployment.apps web", "ConfigMap web"}, d.Status.Resources)
		in, err := w.instances.Get(ctx, "shop")
		require.NoError(t, err)
		require.Equal(t, InstanceSpec{Definition: "shop", Runtime: "nowhere", Namespace: "n", Labels: map[string]string{"team": "a"}, Drift: DriftReport}, in.Spec)
		shop, err := w.workloads.Get(ctx, "shop")
		require.NoError(t, err)
		require.Equal(t, apiclient.StateWaiting, shop.Reconciliation.State)
		require.Equal(t, "runtime nowhere does not exist", shop.Reconciliation.LastError)

		_, err = w.workloads.Delete(ctx, "shop")
		require.NoError(t, err)
		w.RunUntilSettled()
		for _, err := range []error{get(ctx, w.definitions), get(ctx, w.instances), get(ctx, w.workloads)} {
			require.ErrorIs(t, err, apiclient.ErrNotFound)
		}
		w.AssertOneWriter()
	})
}

func get[S, T any](ctx context.Context, c *apiclient.Client[S, T]) error {
	_, err := c.Get(ctx, "shop")
	return err
}

// What bears its name already and is not its own, a workload leaves alone, also when it goes.
func TestWorkloadTakesNothingOver(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		theirs, err := w.instances.Create(ctx, "shop", InstanceSpec{Definition: "theirs", Runtime: "nowhere"})
		require.NoError(t, err)
		_, err = w.workloads.Create(ctx, "shop", WorkloadSpec{Manifests: pair, Runtime: "nowhere"})
		require.NoError(t, err)
		w.Advance(10 * time.Second)
		shop, err := w.workloads.Get(ctx, "shop")
		require.NoError(t, err)
		require.Equal(t, "there is an instance shop already, and it is not this workload's", shop.Reconciliation.LastError)
		require.ErrorIs(t, get(ctx, w.definitions), apiclient.ErrNotFound, "half of it is not made")

		_, err = w.workloads.Delete(ctx, "shop")
		require.NoError(t, err)
		w.Advance(10 * time.Second)
		require.ErrorIs(t, get(ctx, w.workloads), apiclient.ErrNotFound)
		now, err := w.instances.Get(ctx, "shop")
		require.NoError(t, err)
		require.Equal(t, theirs.Spec, now.Spec)
		require.Nil(t, now.DeletedAt)
	})
}

// A definition stays while an instance needs it, says who does, and goes when that has gone.
func TestDefinitionInUseStays(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		_, err := w.definitions.Create(ctx, "shop", DefinitionSpec{Manifests: pair})
		require.NoError(t, err)
		_, err = w.instances.Create(ctx, "shop", InstanceSpec{Definition: "shop", Runtime: "nowhere"})
		require.NoError(t, err)
		w.Advance(time.Second)
		_, err = w.definitions.Delete(ctx, "shop")
		require.NoError(t, err)
		w.Advance(time.Minute)
		d, err := w.definitions.Get(ctx, "shop")
		require.NoError(t, err)
		require.Equal(t, "in use by instance shop", d.Reconciliation.LastError)
		_, err = w.instances.Delete(ctx, "shop")
		require.NoError(t, err)
		w.Advance(time.Second)
		require.ErrorIs(t, get(ctx, w.definitions), apiclient.ErrNotFound, "the instance has told it")
	})
}

// A workload is ready when what it says is deployed, not when what it said before is.
func TestWorkloadIsNotReadyTooEarly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		_, err := w.workloads.Create(ctx, "shop", WorkloadSpec{Manifests: "kind: x", Runtime: "nowhere"})
		require.NoError(t, err)
		w.Advance(10 * time.Second)
		shop, err := w.workloads.Get(ctx, "shop")
		require.NoError(t, err)
		require.Equal(t, apiclient.StateStalled, shop.Reconciliation.State)
		require.Contains(t, shop.Reconciliation.LastError, "apiVersion and kind are missing")
		_, err = w.workloads.Patch(ctx, "shop", map[string]any{"manifests": pair})
		require.NoError(t, err)
		w.Advance(10 * time.Second)
		shop, err = w.workloads.Get(ctx, "shop")
		require.NoError(t, err)
		require.Equal(t, apiclient.StateWaiting, shop.Reconciliation.State)

		d, err := w.definitions.Get(ctx, "shop")
		require.NoError(t, err)
		require.Equal(t, pair, d.Spec.Manifests)
		_, err = w.definitions.Put(ctx, "shop", DefinitionSpec{Manifests: "kind: y"}, apiclient.WithLabels(d.Labels))
		require.NoError(t, err)
		w.Advance(time.Minute)
		d, err = w.definitions.Get(ctx, "shop")
		require.NoError(t, err)
		require.Equal(t, pair, d.Spec.Manifests, "what somebody changes is put back")
	})
}

// Where an instance is at home and whether it may be here.
func TestInstanceIsAtHomeInOneCluster(t *testing.T) {
	for name, c := range map[string]struct {
		home, wanted, here string
		resources          int
		then               string // home afterwards
		waits              string
	}{
		"first":                  {"", "", "a", 0, "a", ""},
		"nobody may know":        {"", "", "", 3, "", ""},
		"at home":                {"a", "", "a", 3, "a", ""},
		"elsewhere":              {"a", "", "b", 3, "a", "it leads to another cluster, b, and what this instance has is in cluster a"},
		"elsewhere with nothing": {"a", "", "b", 0, "b", ""},
		"known no more":          {"a", "", "", 3, "a", "may not read any more which cluster this is"},
		"moved":                  {"a", "b", "b", 3, "b", ""},
		"not the one":            {"a", "a", "b", 3, "a", "cluster a is wanted, and b answers"},
		"nobody may know one":    {"a", "a", "", 3, "a", "the controller may not read the namespace kube-system"},
	} {
		t.Run(name, func(t *testing.T) {
			in := &Instance{Status: InstanceStatus{Cluster: c.home, DefinitionGeneration: 7, Resources: make([]Resource, c.resources)}}
			err := settleIn(in, &Runtime{Name: "main", Spec: RuntimeSpec{Cluster: c.wanted}}, c.here)
			require.Equal(t, c.then, in.Status.Cluster)
			if c.waits != "" {
				require.ErrorContains(t, err, c.waits)
				require.Len(t, in.Status.Resources, c.resources)
				return
			}
			require.NoError(t, err)
			if name == "moved" {
				require.Empty(t, in.Status.Resources, "they are in the other cluster")
				require.Zero(t, in.Status.DefinitionGeneration)
			} else {
				require.Len(t, in.Status.Resources, c.resources)
			}
		})
	}
}

// An instance that is ready does not cease to be because its cluster is busy when it is looked at; one that is not waits.
func TestBusyClusterMakesNobodyUnready(t *testing.T) {
	memory := apitest.NewMemory(func(context.Context, string, string, string) error { return nil })
	api := apiclient.Config{URL: "http://api", HTTP: memory.Client()}
	c, err := New(Config{API: api})
	require.NoError(t, err)
	runtimes, err := apiclient.New[RuntimeSpec, RuntimeStatus](api, Runtimes)
	require.NoError(t, err)
	runtime, err := runtimes.Put(t.Context(), "main", RuntimeSpec{Endpoint: "https://192.0.2.1", Token: "t"})
	require.NoError(t, err)
	cl, err := c.cluster(runtime)
	require.NoError(t, err)
	t.Cleanup(cl.close)
	for range atOnce {
		cl.health.slots <- struct{}{}
	}
	in := &Instance{Name: "web", Generation: 1, Spec: InstanceSpec{Definition: "web", Runtime: "main"}}
	out := reconcilertest.Call(t, c.reconcileInstance, in)
	require.Equal(t, apiclient.StateWaiting, out.Object.Reconciliation.State)
	require.ErrorIs(t, out.Err, errBusy)
	in.Reconciliation = apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 1}
	out = reconcilertest.Call(t, c.reconcileInstance, in)
	require.NoError(t, out.Err)
	require.Equal(t, apiclient.StateReady, out.Object.Reconciliation.State)
	require.Positive(t, out.Result.RequeueAfter)
	require.LessOrEqual(t, out.Result.RequeueAfter, 5*time.Second)
}

// A secret that is long shows in no part either.
func TestNothingSecretIsTold(t *testing.T) {
	secret := strings.Repeat("s3cret-", 10)
	a := &applying{in: &Instance{Spec: InstanceSpec{SecretVariables: map[string]string{"p": secret}}}}
	told := a.tell(strings.Repeat("x", maxReason-20) + secret)
	require.NotContains(t, told, "s3cret")
	require.Contains(t, told, hidden)
	require.LessOrEqual(t, len(a.tell(strings.Repeat("x", 10*maxReason))), maxReason+len(" …"))
}

// What somebody makes between the look and the write is not written over.
func TestWorkloadWritesOverNothing(t *testing.T) {
	memory := apitest.NewMemory(func(context.Context, string, string, string) error { return nil })
	api := apiclient.Config{URL: "http://api", HTTP: memory.Client()}
	theirs, err := apiclient.New[DefinitionSpec, DefinitionStatus](api, Definitions)
	require.NoError(t, err)
	late := apiclient.Config{URL: "http://api", HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if strings.Contains(r.URL.Path, Definitions) {
			_, err := theirs.Create(t.Context(), "shop", DefinitionSpec{Manifests: "theirs"})
			require.NoError(t, err)
		}
		return memory.Client().Transport.RoundTrip(r)
	})}}
	c, err := New(Config{API: api, Editor: &late})
	require.NoError(t, err)
	out := reconcilertest.Call(t, c.reconcileWorkload, &Workload{Name: "shop", UID: "u", Spec: WorkloadSpec{Manifests: pair, Runtime: "main"}})
	require.Error(t, out.Err)
	d, err := theirs.Get(t.Context(), "shop")
	require.NoError(t, err)
	require.Equal(t, "theirs", d.Spec.Manifests)
}
