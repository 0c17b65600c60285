package workload

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// A namespace that was adopted is let go of; anything else that was adopted goes with the instance.
func TestAdoptedNamespaceIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		home, m := entry(s.put(t, namespaceResource, resource("v1", "Namespace", "", "home", "i"))), entry(s.put(t, mapResource, configMap("m", "i")))
		home.Adopted, m.Adopted = true, true
		a := s.has(home, m)
		for range 2 {
			_, err := a.remove(t.Context(), &a.in.Status.Resources)
			require.NoError(t, err)
			synctest.Wait()
		}
		require.Empty(t, a.in.Status.Resources)
		require.NotNil(t, s.at(namespaceResource, "", "home"))
		require.Empty(t, s.at(namespaceResource, "", "home").GetLabels())
		require.Nil(t, s.at(mapResource, "home", "m"))
	})
}

// That something is adopted is stored before it is taken over, and forgotten when it is made anew: then it is the instance's.
func TestAdoptionIsWrittenDownFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, in := stand(t), instance(InstanceSpec{Adopt: true})
		w := want(in, configMap("m", ""))
		s.put(t, mapResource, configMap("m", ""))
		err := newApplying(s.cluster, in, nobody).all(t.Context(), []wanted{w})
		require.ErrorContains(t, err, "checkpoint: ", "there is none outside of a reconcile")
		require.Empty(t, s.applied())
		o := reconcilertest.Call(t, func(ctx context.Context, in *Instance) (reconciler.Result, error) {
			return reconciler.Result{}, newApplying(s.cluster, in, nobody).all(ctx, []wanted{w})
		}, in)
		require.NoError(t, o.Err)
		in = o.Object
		require.True(t, in.Status.Resources[0].Adopted)
		require.NoError(t, s.fake.Tracker().Delete(mapResource, "home", "m"))
		synctest.Wait()
		require.NoError(t, newApplying(s.cluster, in, nobody).all(t.Context(), []wanted{w}))
		require.False(t, in.Status.Resources[0].Adopted)
	})
}

// The namespace of an instance that was somebody else's and has gone is made its own; another one is not.
func TestNamespaceIsInherited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, in := stand(t), instance(InstanceSpec{Namespace: "home"})
		m, away := want(in, configMap("m", "")), want(in, resource("v1", "ConfigMap", "away", "m", ""))
		gone := apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "x")
		s.refuses(gone, "m")
		for range 2 {
			require.ErrorIs(t, newApplying(s.cluster, in, nobody).all(t.Context(), []wanted{away, m}), gone)
			require.Len(t, in.Status.Resources, 3)
			require.Equal(t, Resource{Version: "v1", Kind: "Namespace", Name: "home"}, in.Status.Resources[2])
		}
	})
}

// A job that has completed is not run again when the cluster has cleaned it up, as it was told; it is when it is another one, when
// it had not completed, and when somebody else deleted it.
func TestJobsThatAreCleanedUp(t *testing.T) {
	for text, c := range map[string]struct {
		ttl, completed, changed bool
		again                   bool
	}{
		"cleaned up":            {true, true, false, false},
		"deleted by somebody":   {false, true, false, true},
		"it had not completed":  {true, false, false, true},
		"something else is due": {true, true, true, true},
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, in := stand(t), instance(InstanceSpec{})
				u := resource("batch/v1", "Job", "home", "migrate", "")
				if c.ttl {
					u.Object["spec"] = map[string]any{"ttlSecondsAfterFinished": int64(1)}
				}
				w := want(in, u)
				all := []wanted{w}
				apply := func() *applying {
					synctest.Wait()
					a := newApplying(s.cluster, in, nobody)
					require.NoError(t, a.all(t.Context(), all))
					a.report(t.Context(), all, true)
					return a
				}
				apply()
				if c.completed {
					u := s.at(jobs, "home", "migrate").DeepCopy()
					u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Complete", "status": "True"}}}
					s.put(t, jobs, u)
				}
				apply()
				require.Equal(t, c.completed, in.Status.Resources[0].Completed)
				require.NoError(t, s.fake.Tracker().Delete(jobs, "home", "migrate"))
				if c.changed {
					all[0].hash = "another"
				}
				a := apply()
				require.Equal(t, c.again, s.at(jobs, "home", "migrate") != nil)
				require.Equal(t, !c.again, a.cleaned[w.key()])
				if c.again {
					require.False(t, in.Status.Resources[0].Completed)
					return
				}
				require.Equal(t, "1/1", in.Status.Ready)
				require.Empty(t, in.Status.Drift)
			})
		})
	}
}

var jobs = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}

// Another apply under our name, and another resource under its name, are told from what was left, though the fields are the same.
func TestStampsTellAppliesApart(t *testing.T) {
	u := configMap("m", "i")
	manage(u, fieldManager, "data")
	of := func(change func()) string {
		change()
		return look(u.DeepCopy()).fields
	}
	first := of(func() {})
	require.Equal(t, first, of(func() {}))
	at := func(second int) func() {
		return func() {
			fields := u.GetManagedFields()
			fields[0].Time = &metav1.Time{Time: time.Date(2001, 2, 3, 4, 5, second, 0, time.UTC)}
			u.SetManagedFields(fields)
		}
	}
	second := of(at(6))
	require.NotEqual(t, first, second)
	third := of(at(7))
	require.NotEqual(t, second, third)
	require.NotEqual(t, third, of(func() { u.SetUID("another") }))
}

// A watch that has an earlier generation of a resource than was applied is behind. What is wanted anew is not held back by earlier
// repairs of what was wanted before.
func TestWhatWasAppliedLastCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, in := stand(t), instance(InstanceSpec{})
		w := want(in, configMap("m", ""))
		apply := func() {
			t.Helper()
			synctest.Wait()
			require.NoError(t, newApplying(s.cluster, in, nobody).all(t.Context(), []wanted{w}))
		}
		apply()
		e := &in.Status.Resources[0]
		synctest.Wait()
		asked := len(s.did("get", "configmaps"))
		apply()
		require.Len(t, s.did("get", "configmaps"), asked)
		e.Generation = 7
		apply()
		require.Len(t, s.did("get", "configmaps"), asked+1)

		now := time.Now()
		e.Repairs, e.RepairedAt = 9, &now
		w.hash = "another"
		apply()
		require.Zero(t, e.Repairs)
		require.Nil(t, e.RepairedAt)
	})
}

// What others have done tells no secrets, and is short.
func TestDriftTellsNoSecrets(t *testing.T) {
	a, e := drifting(DriftReport)
	a.in.Spec.SecretVariables = map[string]string{"p": "hunter2"}
	long := strings.Repeat("x", maxReason-3) + "hunter2"
	a.leave(e.key(), long, long, time.Now())
	a.repaired(e, long, time.Now())
	for _, d := range a.in.Status.Drift {
		require.Equal(t, strings.Repeat("x", maxReason-3)+"RED …", d.What, "nothing of it, not even its beginning")
	}
	require.Len(t, a.in.Status.Drift, 2)
}

// Neighbours are those in the same cluster, and those of the same runtime, and not the instance itself.
func TestNeighbours(t *testing.T) {
	h := byHand(t)
	in := h.instance("self", "web", InstanceStatus{Cluster: "a"})
	h.instance("there", "web", InstanceStatus{Cluster: "b"})
	elsewhere := func(name, cluster string) {
		_, err := h.instances.Put(t.Context(), name, InstanceSpec{Definition: "web", Runtime: "other"})
		require.NoError(t, err)
		o, err := h.instances.Get(t.Context(), name)
		require.NoError(t, err)
		o.Status.Cluster = cluster
		keeps(h, h.instances, o)
	}
	elsewhere("same", "a")
	elsewhere("away", "b")
	all, err := h.neighboursOf(in)(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"there", "same"}, names(all))
	h.cut.Store(true)
	_, err = h.neighboursOf(in)(t.Context())
	require.ErrorIs(t, err, errCut)
}

// A workload hears of its instance as its definition does.
func TestWorkloadHearsOfItsInstance(t *testing.T) {
	h := byHand(t)
	in := &Instance{Name: "web", Spec: InstanceSpec{Definition: "web"}}
	h.tellOthers(t.Context(), in, "it is ready")
	require.Equal(t, []string{"workload-definitions/web: it is ready"}, h.heard())
	in.Labels = map[string]string{LabelWorkload: "w"}
	h.tellOthers(t.Context(), in, "it is ready")
	require.Equal(t, []string{"workload-definitions/web: it is ready", "workloads/web: it is ready"}, h.heard())
}
