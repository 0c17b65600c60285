package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubetesting "k8s.io/client-go/testing"

	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// want is what is wanted of a resource, with its entry in the inventory of in.
func want(in *Instance, u *unstructured.Unstructured) wanted {
	label(in, u)
	w := wanted{u, "a document", hashOf(u.Object)}
	in.Status.Resources = append(in.Status.Resources, entry(resource(u.GetAPIVersion(), u.GetKind(), u.GetNamespace(), u.GetName(), "")))
	return w
}

func instance(spec InstanceSpec) *Instance {
	return &Instance{Name: "i", UID: "i", Spec: spec, Status: InstanceStatus{Namespace: "home"}}
}

// refuses has the cluster refuse to apply resources of some names.
func (s *standIn) refuses(err error, names ...string) {
	s.fake.PrependReactor("patch", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
		name := action.(kubetesting.PatchActionImpl).Name
		if slices.Contains(names, name) {
			return true, nil, err
		}
		return false, nil, nil
	})
}

// applied are the names of what was applied.
func (s *standIn) applied() (names []string) {
	for _, a := range s.did("patch", "*") {
		if p := a.(kubetesting.PatchActionImpl); p.PatchType == "application/apply-patch+yaml" {
			names = append(names, p.Name)
		}
	}
	return names
}

// What fails keeps what comes later from being begun, and nothing that comes with it; of many errors some are told. When the
// cluster does not answer, nothing more is asked of it.
func TestWhatFailsKeepsLaterPhasesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, in := stand(t), instance(InstanceSpec{})
		var all []wanted
		var maps []string
		for i := range 8 {
			maps = append(maps, fmt.Sprintf("m%d", i))
			all = append(all, want(in, configMap(maps[i], "")))
		}
		all = append(all, want(in, resource("apps/v1", "Deployment", "home", "d", "")))
		invalid := apierrors.NewBadRequest("it is invalid")
		s.refuses(invalid, maps[:7]...)
		err := newApplying(s.cluster, in, nobody).all(t.Context(), all)
		require.ErrorIs(t, err, invalid)
		require.Equal(t, maps, s.applied())
		require.Equal(t, maxErrors, strings.Count(err.Error(), "it is invalid"))
		require.Contains(t, err.Error(), "ConfigMap m0 in home: it is invalid")
		require.Contains(t, err.Error(), "and 2 more")

		s.refuses(errCut, "m0")
		s.fake.ClearActions()
		err = newApplying(s.cluster, in, nobody).all(t.Context(), all)
		require.ErrorIs(t, err, errCut)
		require.Equal(t, []string{"m0"}, s.applied())
		require.NotContains(t, err.Error(), "m1", "it would be the same of all")
	})
}

// Definitions of resources are waited for, until what they define is served.
func TestDefinitionsAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, in := stand(t), instance(InstanceSpec{})
		definition := want(in, definitionOf("v1 served storage"))
		all := []wanted{definition, want(in, configMap("m", "")), want(in, resource("shop.example.com/v1", "Basket", "home", "b", ""))}
		apply := func() error { return newApplying(s.cluster, in, nobody).all(t.Context(), all) }
		var notYet *notYetError
		const waiting = "waiting for CustomResourceDefinition.apiextensions.k8s.io " + basketsName + " to be established"
		established := func(status string) {
			u := s.at(crdResource, "", basketsName).DeepCopy()
			u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": status}}}
			s.put(t, crdResource, u)
			synctest.Wait()
		}
		err := apply()
		require.ErrorAs(t, err, &notYet)
		require.EqualError(t, err, waiting)
		established("False")
		require.EqualError(t, apply(), waiting)
		require.Equal(t, []string{basketsName}, s.applied())
		established("True")
		time.Sleep(rediscover)
		err = apply()
		require.ErrorAs(t, err, &notYet)
		require.ErrorContains(t, err, "the cluster does not know Basket of shop.example.com/v1 yet")
		asked := len(s.kinds.Actions())
		for range 10 {
			require.Error(t, apply())
		}
		require.Len(t, s.kinds.Actions(), asked, "it was asked in this moment")
		s.kinds.Resources = append(s.kinds.Resources, &metav1.APIResourceList{
			GroupVersion: "shop.example.com/v1", APIResources: []metav1.APIResource{{Name: "baskets", Kind: "Basket", Namespaced: true}},
		})
		time.Sleep(rediscover)
		require.NoError(t, apply())
		require.NotNil(t, s.at(basketResource, "home", "b"))

		// Served under another name now: what the watch is told sends for the kinds again.
		gone := apierrors.NewNotFound(basketResource.GroupResource(), "")
		s.fails("list", "baskets", func() error { return gone })
		s.watches.drop(basketResource, s.watches.of[basketResource])
		asked = len(s.kinds.Actions())
		time.Sleep(rediscover)
		require.ErrorIs(t, apply(), gone)
		require.Error(t, apply())
		require.Greater(t, len(s.kinds.Actions()), asked)
	})
}

// Whose a resource is decides what becomes of it.
func TestWhatIsThereAlready(t *testing.T) {
	for text, c := range map[string]struct {
		owner string // of what is there
		seen  bool   // whether it has the uid of the inventory
		made  bool   // whether the inventory has another uid
		adopt bool
		err   string
		drift string
	}{
		"nobody's":                         {"", false, false, false, "conflict: it is there already and belongs to somebody else: set adopt to take it over", ""},
		"made anew by somebody":            {"", false, true, false, "conflict: it is there already and belongs to somebody else: set adopt to take it over", ""},
		"nobody's, on request":             {"", false, false, true, "", ""},
		"another's":                        {"other", false, false, false, "conflict: it belongs to instance other", ""},
		"another's, on request":            {"other", false, false, true, "conflict: it belongs to instance other", ""},
		"another's, and once ours":         {"other", true, false, false, "conflict: it belongs to instance other", ""},
		"ours, its label was taken off":    {"", true, false, false, "", "its label " + LabelInstance + " was taken off by a-hand"},
		"ours, and not applied to its end": {"i", false, false, false, "", ""},
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, in := stand(t), instance(InstanceSpec{Adopt: c.adopt})
				w := want(in, configMap("m", ""))
				u := configMap("m", c.owner)
				manage(u, "a-hand", "data")
				u = s.put(t, mapResource, u).DeepCopy()
				if c.seen {
					in.Status.Resources[0].UID = string(u.GetUID())
				}
				if c.made {
					in.Status.Resources[0].UID = "before"
				}
				o := reconcilertest.Call(t, func(ctx context.Context, in *Instance) (reconciler.Result, error) {
					return reconciler.Result{}, newApplying(s.cluster, in, nobody).all(ctx, []wanted{w})
				}, in)
				in, err := o.Object, o.Err
				if c.err != "" {
					require.ErrorIs(t, err, errConflict)
					require.ErrorContains(t, err, c.err)
					require.Equal(t, u, s.at(mapResource, "home", "m"))
					require.Empty(t, s.applied())
					return
				}
				require.NoError(t, err)
				require.Equal(t, "i", s.at(mapResource, "home", "m").GetLabels()[LabelInstance])
				require.Contains(t, string(s.did("patch", "*")[0].(kubetesting.PatchActionImpl).Patch), fmt.Sprintf(`"uid":%q`, u.GetUID()), "it is that one or none")
				require.Equal(t, string(u.GetUID()), in.Status.Resources[0].UID)
				require.Equal(t, c.adopt, in.Status.Resources[0].Adopted)
				require.Equal(t, c.drift != "", len(in.Status.Drift) == 1)
				if c.drift != "" {
					require.Equal(t, c.drift, in.Status.Drift[0].What)
				}
			})
		})
	}
}

// After an apply nothing is asked; a change of ours is no drift; a change of somebody else's is, also when the watch has not
// heard of our own.
func TestDriftIsWhatOthersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, in := stand(t), instance(InstanceSpec{})
		w := want(in, configMap("m", ""))
		apply := func() {
			t.Helper()
			synctest.Wait()
			require.NoError(t, newApplying(s.cluster, in, nobody).all(t.Context(), []wanted{w}))
			synctest.Wait()
		}
		apply()
		e := &in.Status.Resources[0]
		require.Equal(t, w.hash, e.Applied)
		require.NotEmpty(t, e.Fields)
		asked := len(s.fake.Actions())
		apply()
		require.Len(t, s.fake.Actions(), asked)

		w.Object["data"] = map[string]any{"colour": "red"}
		w.hash = hashOf(w.Object)
		apply()
		require.Len(t, s.applied(), 2)
		require.Empty(t, in.Status.Drift)

		current := s.at(mapResource, "home", "m").DeepCopy()
		changed := current.DeepCopy()
		manage(changed, fieldManager, "less")
		changed.SetManagedFields(append(changed.GetManagedFields(), metav1.ManagedFieldsEntry{Manager: "a-hand", Operation: metav1.ManagedFieldsOperationUpdate}))
		s.fake.PrependReactor("get", "configmaps", func(kubetesting.Action) (bool, runtime.Object, error) { return true, current, nil })
		s.put(t, mapResource, changed)
		apply()
		require.Len(t, s.applied(), 2, "the watch has another one than there is")
		require.Empty(t, in.Status.Drift)
		s.fake.ReactionChain = s.fake.ReactionChain[1:]
		apply()
		require.Len(t, s.applied(), 3)
		require.Len(t, in.Status.Drift, 1)
		require.Equal(t, "it was changed by a-hand", in.Status.Drift[0].What)
		require.Equal(t, 1, e.Repairs)

		require.NoError(t, s.fake.Tracker().Delete(mapResource, "home", "m"))
		time.Sleep(time.Hour)
		apply()
		require.Len(t, in.Status.Drift, 2)
		require.Equal(t, "it was deleted", in.Status.Drift[1].What)
		require.Equal(t, string(s.at(mapResource, "home", "m").GetUID()), e.UID)
		time.Sleep(time.Hour)
		apply()
		require.Zero(t, e.Repairs, "it has kept still")
	})
}

// What is told of a resource is how it is there, not how the watch had it.
func TestWatchThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, in := stand(t), instance(InstanceSpec{Drift: DriftReport})
		w := want(in, configMap("m", ""))
		apply := func() *applying {
			a := newApplying(s.cluster, in, nobody)
			require.NoError(t, a.all(t.Context(), []wanted{w}))
			return a
		}
		apply()
		current := s.at(mapResource, "home", "m").DeepCopy()
		require.NoError(t, s.fake.Tracker().Delete(mapResource, "home", "m"))
		synctest.Wait()
		get := func(kubetesting.Action) (bool, runtime.Object, error) { return true, current, nil }
		s.fake.PrependReactor("get", "configmaps", get)
		a := apply()
		require.Empty(t, a.drifted)
		word, _ := a.statusOf(w.key())
		require.Equal(t, "Current", word, "the watch has not seen it yet")

		changed := current.DeepCopy()
		manage(changed, fieldManager, "less")
		s.put(t, mapResource, changed)
		synctest.Wait()
		s.fails("get", "configmaps", func() error { return apierrors.NewNotFound(mapResource.GroupResource(), "m") })
		a = apply()
		require.Equal(t, "it was deleted", a.drifted[w.key()])
		require.NotContains(t, a.latest, w.key(), "the watch has not seen that it has gone")
	})
}

// Repairs are forgotten when a resource has kept still for longer than the next one would have waited, twice that where somebody
// insists.
func TestRepairsAreForgotten(t *testing.T) {
	now := time.Now()
	for repairs, still := range map[int]time.Duration{1: repairPauseAtMost, 4: repairPauseAtMost, 14: 2 * repairPauseAtMost} {
		for after, left := range map[time.Duration]int{still: repairs, still + 1: 0} {
			at := now.Add(-after)
			r := Resource{Repairs: repairs, RepairedAt: &at}
			r.calm(now)
			require.Equal(t, left, r.Repairs, "%d, after %s", repairs, after)
		}
	}
}

// Where drift is only reported, fields of others stay theirs also when something else is wanted: unless the resource is being adopted.
func TestFieldsOfOthersStayWhereDriftIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, in := stand(t), instance(InstanceSpec{Drift: DriftReport})
		w := want(in, configMap("m", ""))
		theirs := apierrors.NewApplyConflict(nil, "conflict with a-hand: .data.colour")
		s.fake.PrependReactor("patch", "*", func(action kubetesting.Action) (bool, runtime.Object, error) {
			force := *action.(kubetesting.PatchActionImpl).PatchOptions.Force
			if _, changed := w.Object["data"]; changed && !force {
				return true, nil, theirs
			}
			return false, nil, nil
		})
		apply := func() (*applying, error) {
			synctest.Wait()
			a := newApplying(s.cluster, in, nobody)
			return a, a.all(t.Context(), []wanted{w})
		}
		_, err := apply()
		require.NoError(t, err)
		w.Object["data"] = map[string]any{"colour": "red"}
		w.hash = hashOf(w.Object)
		a, err := apply()
		require.NoError(t, err, "it is as somebody wants it")
		require.Contains(t, a.drifted[w.key()], "conflict with a-hand: .data.colour")
		require.Len(t, in.Status.Drift, 1)
		require.False(t, in.Status.Drift[0].Repaired)
		in.Spec.Adopt = true
		a, err = apply()
		require.NoError(t, err)
		require.NotEmpty(t, a.drifted, "it is ours already")
		in.Status.Resources[0].UID = ""
		a, err = apply()
		require.NoError(t, err)
		require.Empty(t, a.drifted)
		in.Spec.Adopt = false
		require.NoError(t, s.fake.Tracker().Delete(mapResource, "home", "m"))
		in.Status.Resources[0] = entry(configMap("m", ""))
		_, err = apply()
		require.ErrorIs(t, err, theirs, "it was never ours")

		in.Status.Resources[0].UID, in.Status.Resources[0].Applied = "gone", w.hash
		a, err = apply()
		require.NoError(t, err)
		require.Equal(t, "it was deleted", a.drifted[w.key()])
		word, reason := a.statusOf(w.key())
		require.Equal(t, "Drifted it was deleted", word+" "+reason)
	})
}

// A namespace that is not there is named in the error of what belongs into it.
func TestNamespaceThatIsMissingIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, in := stand(t), instance(InstanceSpec{})
		w := want(in, configMap("m", ""))
		s.refuses(apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "home"), "m")
		err := newApplying(s.cluster, in, nobody).all(t.Context(), []wanted{w})
		require.ErrorContains(t, err, "ConfigMap m in home: namespace home: ")
	})
}

// A job that completes and is removed by the cluster before anybody has looked is not run again. One that is removed before it has
// completed is, and so is one that is wanted otherwise by now.
func TestJobThatIsCleanedUpUnseenIsNotRunAgain(t *testing.T) {
	for condition, again := range map[string]bool{"Complete": false, "Failed": true, "Suspended": true} {
		t.Run(condition, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, in := stand(t), instance(InstanceSpec{})
				jobs := schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
				job := resource("batch/v1", "Job", "home", "migrate", "")
				job.Object["spec"] = map[string]any{"ttlSecondsAfterFinished": int64(1)}
				w := want(in, job)
				apply := func() *applying {
					a := newApplying(s.cluster, in, nobody)
					require.NoError(t, a.all(t.Context(), []wanted{w}))
					a.report(t.Context(), []wanted{w}, false)
					synctest.Wait()
					return a
				}
				apply()
				require.Len(t, s.applied(), 1)
				done := s.at(jobs, "home", "migrate").DeepCopy()
				done.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": condition, "status": "True"}}}
				s.put(t, jobs, done)
				require.NoError(t, s.fake.Tracker().Delete(jobs, "home", "migrate"))
				synctest.Wait()
				apply()
				if again {
					require.Len(t, s.applied(), 2)
					require.Equal(t, "it was deleted", in.Status.Drift[0].What)
					return
				}
				require.Len(t, s.applied(), 1)
				require.Empty(t, in.Status.Drift)
				require.True(t, in.Status.Resources[0].Completed, "so that another replica knows")
				require.Equal(t, "it has completed, and was cleaned up", in.Status.Resources[0].Reason)
				w.hash = "another"
				apply()
				require.Len(t, s.applied(), 2, "it is another job")
			})
		})
	}
}
