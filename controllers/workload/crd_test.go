package workload

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubetesting "k8s.io/client-go/testing"
)

const basketsName = "baskets.shop.example.com"

// definitionOf is that of baskets, of the instance i, with versions such as "v1 served storage".
func definitionOf(versions ...string) *unstructured.Unstructured {
	var all []any
	for _, v := range versions {
		words := strings.Fields(v)
		all = append(all, map[string]any{"name": words[0], "served": strings.Contains(v, " served"), "storage": strings.Contains(v, " storage")})
	}
	u := resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", basketsName, "i")
	u.Object["spec"] = map[string]any{"group": "shop.example.com", "names": map[string]any{"plural": "baskets"}, "versions": all}
	return u
}

// With a definition goes what is the instance's, and what its servers have made; it stays for what is anybody else's, and when
// nobody can say whether there is any.
func TestDefinitionStaysForWhatIsForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		var fail error
		s.fails("list", "baskets", func() error { return fail })
		a := s.has(entry(s.put(t, crdResource, definitionOf("v1 served storage"))))
		foreign := func() string {
			t.Helper()
			who, err := a.foreign(t.Context(), basketsName)
			require.NoError(t, err)
			return who
		}
		basket := func(name, instance string) *unstructured.Unstructured {
			return resource("shop.example.com/v1", "Basket", "home", name, instance)
		}
		require.Empty(t, foreign())
		s.put(t, basketResource, basket("ours", "i"))
		made := basket("made", "")
		owned := func(apiVersion, uid string) {
			made = made.DeepCopy()
			made.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: apiVersion, Kind: "X", Name: "x", UID: types.UID(uid)}})
			s.put(t, basketResource, made)
		}
		owned("v1", "theirs")
		require.Equal(t, "Basket.shop.example.com made in home is somebody else's and would go with it", foreign(), "its owner is none of ours")
		owned("v1", a.in.Status.Resources[0].UID)
		require.Empty(t, foreign(), "its owner is ours")
		owned("shop.example.com/v1", "server")
		require.Empty(t, foreign(), "its owner is of a kind of ours")
		other := definitionOf("v1 served storage")
		other.SetName("carts.shop.example.com")
		other.Object["spec"].(map[string]any)["names"] = map[string]any{"plural": "carts"}
		a.in.Status.Resources = append(a.in.Status.Resources, entry(s.put(t, crdResource, other)))
		cart := s.put(t, cartResource, resource("shop.example.com/v1", "Cart", "home", "c", ""))
		require.Equal(t, "Basket.shop.example.com made in home belongs to what is somebody else's and would go with it", foreign())
		require.NoError(t, s.fake.Tracker().Delete(cartResource, "home", cart.GetName()))
		require.Empty(t, foreign())
		a.in.Status.Resources = a.in.Status.Resources[:1]
		fail = apierrors.NewNotFound(basketResource.GroupResource(), "")
		require.Empty(t, foreign(), "none are served")
		fail = apierrors.NewForbidden(basketResource.GroupResource(), "", errOnce)
		_, err := a.foreign(t.Context(), basketsName)
		require.ErrorIs(t, err, fail)
		require.ErrorContains(t, err, "look for what is somebody else's: ")
		_, err = a.remove(t.Context(), &a.in.Status.Resources)
		require.ErrorIs(t, err, fail)
		fail = nil
		s.put(t, basketResource, basket("theirs", "other"))
		require.Equal(t, "Basket.shop.example.com theirs in home is somebody else's and would go with it", foreign())
		waiting, err := a.remove(t.Context(), &a.in.Status.Resources)
		require.NoError(t, err)
		require.Equal(t, "CustomResourceDefinition.apiextensions.k8s.io "+basketsName+" stays: "+foreign(), waiting)
		require.Empty(t, s.did("delete", "*"))
		require.NoError(t, s.fake.Tracker().Delete(crdResource, "", basketsName))
		require.Empty(t, foreign(), "the definition has gone meanwhile")
	})
}

// All pages of a list are looked at.
func TestListsHavePages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		s.fake.PrependReactor("list", "configmaps", func(action kubetesting.Action) (bool, runtime.Object, error) {
			o := action.(kubetesting.ListActionImpl).ListOptions
			require.EqualValues(t, 100, o.Limit)
			page := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMapList"}}
			page.SetContinue(map[string]string{"": "second", "second": "third"}[o.Continue])
			page.Items = append(page.Items, *configMap("after-"+o.Continue, ""))
			return true, page, nil
		})
		var names []string
		require.NoError(t, s.list(t.Context(), mapResource, "home", metav1.ListOptions{}, func(u *unstructured.Unstructured) error {
			names = append(names, u.GetName())
			return nil
		}))
		require.Equal(t, []string{"after-", "after-second", "after-third"}, names)
		require.ErrorIs(t, s.list(t.Context(), mapResource, "home", metav1.ListOptions{}, func(*unstructured.Unstructured) error { return errEnough }), errEnough)
		require.Len(t, s.did("list", "configmaps"), 4)
	})
}

// Resources are listed in a version that is served, that in which they are stored if it is.
func TestServedVersions(t *testing.T) {
	for want, versions := range map[string][]string{
		"v1":  {"v1 served", "v2 served"},
		"v2":  {"v1 served", "v2 served storage", "v3 served"},
		"v3":  {"v1 storage", "v3 served"},
		"":    {"v1"},
		"one": {"one served storage"},
	} {
		require.Equal(t, want, servedVersion(definitionOf(versions...)), versions)
	}
}

// A definition whose resources could not be cleaned up is asked for again now and then, and only that.
func TestStuckDefinitionIsNudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		m, _, err := s.mapping(definitionOf().GroupVersionKind())
		require.NoError(t, err)
		u := s.put(t, crdResource, definitionOf("v1 served storage"))
		uid := u.GetUID()
		reason := func(text string) *seen {
			u := u.DeepCopy()
			u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Terminating", "reason": text}}}
			return look(u)
		}
		nudges := func() int { return len(s.did("patch", "customresourcedefinitions")) }
		s.nudge(t.Context(), m, reason("InstanceDeletionInProgress"))
		require.Zero(t, nudges())
		for range 10 {
			s.nudge(t.Context(), m, reason("InstanceDeletionFailed"))
		}
		require.Equal(t, 1, nudges())
		require.Contains(t, string(s.did("patch", "*")[0].(kubetesting.PatchActionImpl).Patch), fmt.Sprintf(`"uid":%q`, uid))
		time.Sleep(nudgeEvery)
		s.nudge(t.Context(), m, reason("InstanceDeletionFailed"))
		require.Equal(t, 2, nudges())
		require.NoError(t, s.fake.Tracker().Delete(crdResource, "", basketsName))
		r := entry(u)
		r.UID = string(uid)
		a := s.has(r)
		_, err = a.remove(t.Context(), &a.in.Status.Resources)
		require.NoError(t, err)
		require.Empty(t, a.in.Status.Resources)
		require.Empty(t, s.nudged, "nothing is kept of what has gone")
	})
}
