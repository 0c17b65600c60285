package workload

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

const one = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n"

// A definition says what is in it, tells the instances that may go on, and keeps the generation that all have come to.
func TestDefinitionTellsItsInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := byHand(t)
		d := &Definition{Name: "web", UID: "d", Generation: 1, Spec: DefinitionSpec{Manifests: one + "---\n" + strings.Replace(one, "name: m", "generateName: n-", 1), Rollout: Rollout{AtOnce: 1, Patience: 600}}}
		at := func(generation int64) InstanceStatus { return InstanceStatus{DefinitionGeneration: generation} }
		h.instance("a", "web", at(1))
		h.instance("b", "web", at(1))
		h.instance("other", "api", at(1))
		call := func() reconcilertest.Outcome[DefinitionSpec, DefinitionStatus] {
			t.Helper()
			o := reconcilertest.Call(t, h.reconcileDefinition, d)
			d = o.Object
			return o
		}
		require.NoError(t, call().Err)
		require.Equal(t, []string{"ConfigMap m", "ConfigMap n-*"}, d.Status.Resources)
		require.Len(t, d.Status.Kept, 1)
		require.Equal(t, 2, d.Status.Rollout.Instances)
		require.Empty(t, h.heard())

		d.Generation = 2
		d.Spec.Manifests = one
		o := call()
		require.Equal(t, "0 of 2 instances are up to date", d.Reconciliation.LastError)
		requireAbout(t, 15*time.Second, next(o))
		require.Equal(t, []string{"workload-instances/a: generation 2 of definition web"}, h.heard())
		require.Len(t, d.Status.Kept, 2, "not all have come to the next")
		a := h.instance("a", "web", at(2))
		a.Reconciliation = apiclient.Reconciliation{State: apiclient.StateStalled, LastError: "no room"}
		keeps(h, h.instances, a)
		o = call()
		require.Equal(t, "the rollout is stopped: instance a: no room", d.Reconciliation.LastError)
		requireAbout(t, time.Minute, next(o))
		require.Empty(t, h.heard())
		h.instance("a", "web", at(2))
		h.instance("b", "web", at(2))
		require.NoError(t, call().Err)
		require.Len(t, d.Status.Kept, 1)
		require.EqualValues(t, 2, d.Status.Kept[0].Generation)

		d.Generation, d.Spec.Manifests = 3, "kind: x"
		call()
		require.Equal(t, apiclient.StateStalled, d.Reconciliation.State)
		require.Empty(t, d.Status.Resources, "nobody knows what is in it")

		o = reconcilertest.Call(t, h.cleanupDefinition, d)
		require.Equal(t, "in use by 2 instances, a among them", o.Object.Reconciliation.LastError)
		requireAbout(t, stillInUse, next(o))
		require.NoError(t, reconcilertest.Call(t, h.cleanupDefinition, &Definition{Name: "unused"}).Err)
	})
}

// Instances hear of a generation when it is stored that they may go there: what they look at when they hear of it says so.
func TestInstancesAreToldOfWhatIsStored(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		h := byHand(t)
		cfg := apiclient.Config{URL: "http://api.test", HTTP: &http.Client{Transport: handled{w.API()}}}
		var err error
		h.Controller, err = New(Config{API: cfg})
		require.NoError(t, err)
		told := 0
		h.notify = func(ctx context.Context, kind, _, _ string) error {
			if kind == Instances {
				told++
				d, err := h.definitions.Get(ctx, "web")
				assert.NoError(t, err)
				if assert.NotNil(t, d.Status.Rollout) {
					assert.Equal(t, &RolloutStatus{Generation: d.Generation, Released: "a", All: true, ReleasedAt: d.Status.Rollout.ReleasedAt, Instances: 1}, d.Status.Rollout)
				}
			}
			return nil
		}
		close(h.bound)
		h.instance("a", "web", InstanceStatus{DefinitionGeneration: 7})
		_, err = h.definitions.Put(t.Context(), "web", DefinitionSpec{Manifests: one, Rollout: Rollout{Patience: 600}})
		require.NoError(t, err)
		w.Start("only", h.Controllers()[1])
		w.Advance(time.Minute)
		require.NotZero(t, told)
	})
}

// What is being deleted counts no more; what is new goes to the latest generation, whatever its name.
func TestRolloutCountsWhatIsThere(t *testing.T) {
	now := time.Now()
	d, all := fleet(3, 2, Rollout{AtOnce: 1, Patience: 60})
	all[0].DeletedAt = &now
	all[2].Status.DefinitionGeneration = 0
	all[2].Reconciliation.State = apiclient.StatePending
	require.Equal(t, []string{"i-2"}, names(rollOut(d, all, now)), "it is on its way already, and takes the place")
	require.Equal(t, &RolloutStatus{Generation: 2, Instances: 2}, d.Status.Rollout)
	all[2].Status.DefinitionGeneration = 2
	all[2].Reconciliation.State = apiclient.StateReady
	require.Equal(t, []string{"i-1"}, names(rollOut(d, all, now)))
	require.True(t, d.Status.Rollout.All)

	late := &Instance{Name: "z-late", Generation: 1}
	late.Status.DefinitionGeneration = 1 // restored, say
	spec, generation, err := assigned(d, late)
	require.NoError(t, err)
	require.EqualValues(t, 2, generation)
	require.Same(t, &d.Spec, spec)
	require.Equal(t, []string{"i-1", "z-late"}, names(rollOut(d, append(all, late), now)), "all may go")
	d.Generation = 3
	_, generation, err = assigned(d, all[1])
	require.NoError(t, err)
	require.Zero(t, generation, "that all may go was said of the generation before")
}

// A rollout whose failures keep nobody back is not stopped; one error or two are no failure.
func TestRolloutThatHasNobodyToKeepBack(t *testing.T) {
	now := time.Now()
	d, all := fleet(2, 2, Rollout{Patience: 60})
	rollOut(d, all, now)
	require.True(t, d.Status.Rollout.All)
	all[0].Reconciliation = apiclient.Reconciliation{State: apiclient.StateRetrying, Failures: 2}
	rollOut(d, all, now)
	require.Zero(t, d.Status.Rollout.Failed)
	later := now.Add(2 * time.Minute)
	since := later.Add(-time.Second)
	all[0].Status.UpdatingTo, all[0].Status.UpdatingSince = 2, &since
	all[1].Status.DefinitionGeneration = 2
	rollOut(d, all, later)
	require.Zero(t, d.Status.Rollout.Failed, "what it waited before it began is not held against it")
	all[0].Status.UpdatingTo = 1
	rollOut(d, all, later)
	require.Equal(t, 1, d.Status.Rollout.Failed, "it has not begun")

	d, all = fleet(2, 2, Rollout{AtOnce: 1, Patience: 60})
	all[1].Status.DefinitionGeneration = 0
	all[1].Reconciliation.State = apiclient.StateStalled
	all[0].Status.DefinitionGeneration = 2
	rollOut(d, all, now)
	require.Empty(t, d.Status.Rollout.Stopped, "there is nobody to go on with")
	require.True(t, d.Status.Rollout.All)
}

// Manifests are taken apart once for each generation of a definition, and no more is kept than is good.
func TestManifestsAreKeptTakenApart(t *testing.T) {
	var p parsed
	take := func(uid string, generation int64, text string) []document {
		t.Helper()
		docs, err := p.parse(&Definition{UID: uid}, generation, text)
		require.NoError(t, err)
		return docs
	}
	first := take("a", 1, one)
	require.Same(t, first[0].Unstructured, take("a", 1, one)[0].Unstructured)
	other := strings.Replace(one, "name: m", "name: k", 1)
	require.Equal(t, "k", take("a", 2, other)[0].GetName())
	require.Equal(t, "k", take("b", 1, other)[0].GetName())
	require.Equal(t, 3*len(one), p.size)
	_, err := p.parse(&Definition{UID: "c"}, 1, "kind: x")
	require.ErrorIs(t, err, errManifests)
	require.Len(t, p.all, 3)
	take("d", 1, one+strings.Repeat("#", keptParsed-3*len(one)))
	require.Len(t, p.all, 1)
	require.Equal(t, keptParsed-2*len(one), p.size)
	take("d", 2, one+strings.Repeat("#", len(one)))
	require.Len(t, p.all, 2)
}

// handled sends requests to a handler.
type handled struct{ http.Handler }

func (h handled) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}
