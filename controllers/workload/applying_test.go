package workload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var (
	homeMap = kubeKey{mapResource, "home", "m"}
	// errDenied is what a cluster says that answers.
	errDenied = apierrors.NewForbidden(mapResource.GroupResource(), "m", errors.New("denied"))
)

// steps applies what is wanted of an instance, and what the watches then hear of it.
func steps(t *testing.T, c *cluster, in *Instance, all ...wanted) (*applying, error) {
	t.Helper()
	synctest.Wait()
	a := newApplying(c, in, nobody)
	err := a.all(t.Context(), all)
	synctest.Wait()
	return a, err
}

// With the context of a reconcile, which ends with its lock, ends what it does: somebody else is at work then.
func TestNothingIsDoneWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		in := instance(InstanceSpec{})
		w := want(in, configMap("m", ""))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errOnce)
		a := newApplying(c, in, nobody)
		require.ErrorIs(t, a.all(ctx, []wanted{w}), errOnce)
		k.put(mapResource, configMap("m", "i"))
		_, err := a.remove(ctx, &in.Status.Resources)
		require.ErrorIs(t, err, errOnce)
		require.Len(t, in.Status.Resources, 1)
		require.Empty(t, k.asks())
	})
}

// As many errors are told as fit, and how many more there are.
func TestErrorsAreTold(t *testing.T) {
	for n, more := range map[int]string{maxErrors: "", maxErrors + 1: "and 1 more"} {
		synctest.Test(t, func(t *testing.T) {
			k, c := kubeAlone(t)
			k.refuse = func(method string, _ kubeKey) error {
				if method == http.MethodPatch {
					return errDenied
				}
				return nil
			}
			in := instance(InstanceSpec{})
			var all []wanted
			for i := range n {
				all = append(all, want(in, configMap(fmt.Sprint("m", i), "")))
			}
			_, err := steps(t, c, in, all...)
			require.ErrorIs(t, err, errDenied)
			require.ErrorContains(t, err, fmt.Sprintf("ConfigMap m%d in home", maxErrors-1))
			require.NotContains(t, err.Error(), fmt.Sprintf("ConfigMap m%d in home", maxErrors))
			if more == "" {
				require.NotContains(t, err.Error(), "more")
			} else {
				require.ErrorContains(t, err, more)
			}
		})
	}
}

// Each definition is waited for, whatever stands first among its conditions, and one that somebody has deleted, too.
func TestEachDefinitionIsWaitedFor(t *testing.T) {
	definition := func(name string, conditions ...string) *unstructured.Unstructured {
		u := resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name, "i")
		var all []any
		for _, c := range conditions {
			all = append(all, map[string]any{"type": c, "status": "True"})
		}
		u.Object["status"] = map[string]any{"conditions": all}
		return u
	}
	a := &applying{latest: map[resourceKey]*seen{}}
	var all []wanted
	for _, u := range []*unstructured.Unstructured{definition("carts", "NamesAccepted", "Established"), definition("baskets", "NamesAccepted")} {
		all = append(all, wanted{Unstructured: u})
		a.latest[keyOf(u)] = look(u.DeepCopy())
	}
	require.NoError(t, a.established(all[:1]))
	require.EqualError(t, a.established(all), "waiting for CustomResourceDefinition.apiextensions.k8s.io baskets to be established")
	delete(a.latest, all[0].key())
	require.EqualError(t, a.established(all), "waiting for CustomResourceDefinition.apiextensions.k8s.io carts to be established")
}

// A cluster that does not answer is asked for nothing, whether something is to be applied, deleted or let go of.
func TestClusterThatIsDownIsAskedForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		in := instance(InstanceSpec{})
		w := want(in, configMap("m", ""))
		c.health.note(errNoAnswer)
		a, err := steps(t, c, in, w)
		require.ErrorIs(t, err, errNoAnswer)
		_, err = a.remove(t.Context(), &in.Status.Resources)
		require.ErrorIs(t, err, errNoAnswer)
		require.Equal(t, errNoAnswer, a.letGo(t.Context()), "and not because of what the cluster says")
		require.Len(t, in.Status.Resources, 1)
		require.Empty(t, k.asks())
	})
}

// What was changed in its document is applied onto the very resource that the watch has, without a read.
func TestChangesCostOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		in := instance(InstanceSpec{})
		w := want(in, configMap("m", ""))
		_, err := steps(t, c, in, w)
		require.NoError(t, err)
		k.asks()
		paint(&w, "red")
		_, err = steps(t, c, in, w)
		require.NoError(t, err)
		require.Equal(t, []string{"PATCH home/configmaps/m"}, k.asks())
	})
}

// Of what belongs to another instance nothing is told as if it were this one's.
func TestWhatIsOfAnotherInstanceIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		theirs := configMap("m", "other")
		k.put(mapResource, theirs)
		in := instance(InstanceSpec{Adopt: true})
		w := want(in, configMap("m", ""))
		a, err := steps(t, c, in, w)
		require.ErrorIs(t, err, errConflict)
		require.Contains(t, a.report(t.Context(), []wanted{w}, false), "NotFound: it was not applied")
		require.Same(t, theirs, k.at(homeMap))
	})
}

// A job that cleans up after itself and has done so is not run again, whichever replica has seen it complete. One that is there
// still is looked at as everything else.
func TestCompletedJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		in := instance(InstanceSpec{})
		job := resource("batch/v1", "Job", "home", "m", "")
		job.Object["spec"] = map[string]any{"ttlSecondsAfterFinished": int64(1)}
		w := want(in, job)
		_, err := steps(t, c, in, w)
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		at := kubeKey{jobResource, "home", "m"}
		k.edit(at, func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"suspend": true} })
		in.Status.Resources[0].Completed = true
		_, err = steps(t, c, in, w)
		require.NoError(t, err)
		require.Len(t, in.Status.Drift, 1, "it is there, and was changed")
		require.NotContains(t, k.at(at).Object["spec"], "suspend")

		k.drop(at)
		other, err := k.connect(nil, "", nothing) // has not seen it
		require.NoError(t, err)
		defer other.close()
		_, err = steps(t, other, in, w)
		require.NoError(t, err)
		require.Nil(t, k.at(at))
		in.Status.Resources[0].Completed = false
		_, err = steps(t, other, in, w)
		require.NoError(t, err)
		require.NotNil(t, k.at(at), "nobody knows that it has completed")
	})
}

// What is adopted is written down once: whoever comes after a crash does not write it again.
func TestAdoptionIsWrittenDownOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		k.put(mapResource, configMap("m", ""))
		in := instance(InstanceSpec{Adopt: true})
		w := want(in, configMap("m", ""))
		_, err := steps(t, c, in, w)
		require.ErrorContains(t, err, "checkpoint: ", "outside of a reconcile nothing can be written")
		in.Status.Resources[0].Adopted = true
		_, err = steps(t, c, in, w)
		require.NoError(t, err)
		require.Equal(t, "i", k.at(homeMap).GetLabels()[LabelInstance])
	})
}

// The namespace of an instance is made, and only what was made is applied onto: not one that somebody made in the place of it.
func TestNamespaceIsTheOneThatWasMade(t *testing.T) {
	shopOf := kubeKey{namespaceResource, "", "shop"}
	begin := func(t *testing.T) (*kube, *cluster, *Instance, wanted) {
		k, c := kubeAlone(t)
		in := &Instance{Name: "i", UID: "i", Status: InstanceStatus{Namespace: "shop"}}
		w := namespaceFor(in)
		in.Status.Resources = []Resource{entry(resource("v1", "Namespace", "", "shop", ""))}
		return k, c, in, w
	}
	synctest.Test(t, func(t *testing.T) {
		k, c, in, w := begin(t)
		k.refuse = func(method string, _ kubeKey) error {
			if method == http.MethodPatch {
				k.put(namespaceResource, resource("v1", "Namespace", "", "shop", ""))
			}
			return nil
		}
		_, err := steps(t, c, in, w)
		require.True(t, apierrors.IsConflict(err), err)
		require.Empty(t, k.at(shopOf).GetLabels())
	})
	synctest.Test(t, func(t *testing.T) {
		k, c, in, w := begin(t)
		k.refuses(http.MethodPost, "shop", errDenied)
		_, err := steps(t, c, in, w)
		require.ErrorIs(t, err, errDenied)
		require.Nil(t, k.at(shopOf))
		require.Len(t, in.Status.Resources, 1, "it is this instance's to make")
	})
}

// Fields that somebody has taken are taken back, unless drift is only to be reported. What else goes wrong is an error in both.
func TestFieldsAreTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		for _, drift := range []string{DriftRepair, DriftReport} {
			in := instance(InstanceSpec{Drift: drift})
			w := want(in, configMap("m", ""))
			_, err := steps(t, c, in, w)
			require.NoError(t, err)
			k.edit(homeMap, colour("theirs"))
			k.refuses(http.MethodPatch, "m", errDenied)
			paint(&w, "red")
			_, err = steps(t, c, in, w)
			require.ErrorIs(t, err, errDenied)
			require.Empty(t, in.Status.Drift)
			k.refuse = nil
			a, err := steps(t, c, in, w)
			require.NoError(t, err)
			if drift == DriftRepair {
				require.Equal(t, "red", k.at(homeMap).Object["data"].(map[string]any)["colour"])
				require.Empty(t, a.drifted)
			} else {
				require.Equal(t, "theirs", revOf(k.at(homeMap)))
				require.Contains(t, a.drifted[w.key()], `conflict with "kubectl"`)
			}
			k.drop(homeMap)
			synctest.Wait()
		}
	})
}

// What was made anew between the look and the apply is a conflict also where fields are taken back: it may be somebody else's.
func TestWhatWasMadeAnewIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		in := instance(InstanceSpec{})
		w := want(in, configMap("m", ""))
		_, err := steps(t, c, in, w)
		require.NoError(t, err)
		paint(&w, "red")
		k.refuse = func(method string, _ kubeKey) error {
			if method == http.MethodPatch {
				k.put(mapResource, configMap("m", ""))
			}
			return nil
		}
		_, err = steps(t, c, in, w)
		require.True(t, apierrors.IsConflict(err), err)
		require.Empty(t, k.at(homeMap).GetLabels())
	})
}

// A namespace is named that is missing, and nothing else that is.
func TestWhatIsNotFoundIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		in := instance(InstanceSpec{})
		w := want(in, resource("v1", "Namespace", "", "shop", ""))
		k.refuses(http.MethodPatch, "shop", apierrors.NewNotFound(namespaceResource.GroupResource(), "shop"))
		_, err := steps(t, c, in, w)
		require.EqualError(t, err, `Namespace shop: namespaces "shop" not found`)
	})
}

// When the instance gets or loses its namespace in the middle of a reconcile, the rest of it is written down all the same.
func TestInventoryStaysInOneAsTheNamespaceChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		in := &Instance{Name: "i", UID: "i", Status: InstanceStatus{Namespace: "shop"}}
		lost := want(in, resource("v1", "ConfigMap", "shop", "a", ""))
		fine := want(in, configMap("m", ""))
		in.Status.Resources = in.Status.Resources[:2:2]
		_, err := steps(t, c, in, lost, fine)
		require.ErrorContains(t, err, "namespace shop: ")
		require.Len(t, in.Status.Resources, 3)
		require.Equal(t, string(k.at(homeMap).GetUID()), in.Status.Resources[1].UID)
	})
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		in := instance(InstanceSpec{})
		own := namespaceFor(in)
		in.Status.Resources = []Resource{entry(resource("v1", "Namespace", "", "home", ""))}
		fine := want(in, configMap("m", ""))
		_, err := steps(t, c, in, own, fine)
		require.NoError(t, err)
		require.Len(t, in.Status.Resources, 1)
		require.Equal(t, string(k.at(homeMap).GetUID()), in.Status.Resources[0].UID)
	})
}

// Repairs are counted, until something else is wanted.
func TestRepairsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := kubeAlone(t)
		in := instance(InstanceSpec{})
		w := want(in, configMap("m", ""))
		for n := range repairsAtOnce {
			_, err := steps(t, c, in, w)
			require.NoError(t, err)
			require.Equal(t, n, in.Status.Resources[0].Repairs)
			k.edit(homeMap, colour("theirs"))
		}
		paint(&w, "red")
		_, err := steps(t, c, in, w)
		require.NoError(t, err)
		require.Zero(t, in.Status.Resources[0].Repairs)
		require.Nil(t, in.Status.Resources[0].RepairedAt)
	})
}

// When a kind is not served any more the cluster is asked anew what it serves, not too often, and not for any other error.
func TestClusterIsAskedAnewWhatItServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		a := s.has()
		asked := func(err error) bool {
			t.Helper()
			before := len(s.kinds.Actions())
			require.ErrorIs(t, a.lost(err), err)
			_, known, err := a.mapping(configMap("m", "").GroupVersionKind())
			require.NoError(t, err)
			require.True(t, known)
			return len(s.kinds.Actions()) > before
		}
		gone := apierrors.NewNotFound(mapResource.GroupResource(), "")
		time.Sleep(rediscover)
		require.True(t, asked(gone))
		require.False(t, asked(gone), "too soon")
		time.Sleep(rediscover)
		require.False(t, asked(errDenied))
		require.True(t, asked(gone))
	})
}
