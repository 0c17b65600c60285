package workload

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// blue is a map that was applied as blue, for an instance that does so about drift.
func blue(t *testing.T, drift string) (*kube, *cluster, *Instance, wanted) {
	t.Helper()
	k, c := kubeAlone(t)
	in := instance(InstanceSpec{Drift: drift})
	u := configMap("m", "")
	u.Object["data"] = map[string]any{"rev": "blue"}
	w := want(in, u)
	_, err := steps(t, c, in, w)
	require.NoError(t, err)
	k.asks()
	return k, c, in, w
}

// What cannot be looked at is not written over.
func TestDriftThatCannotBeLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c, in, w := blue(t, DriftRepair)
		k.edit(homeMap, colour("red"))
		k.refuses(http.MethodGet, "m", errDenied)
		_, err := steps(t, c, in, w)
		require.ErrorIs(t, err, errDenied)
		require.Equal(t, "red", revOf(k.at(homeMap)))
	})
}

// Drift that is only reported is left as it is and told of. What somebody puts back is shared with them, and drifts no more.
func TestReportedDriftThatIsPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c, in, w := blue(t, DriftReport)
		k.edit(homeMap, colour("red"))
		a, err := steps(t, c, in, w)
		require.NoError(t, err)
		require.Equal(t, "it was changed by kubectl", a.drifted[w.key()])
		require.Equal(t, "red", revOf(k.at(homeMap)))

		k.edit(homeMap, colour("blue"))
		a, err = steps(t, c, in, w)
		require.NoError(t, err)
		require.Empty(t, a.drifted)
		require.Empty(t, in.Status.Drift)
		k.asks()
		_, err = steps(t, c, in, w)
		require.NoError(t, err)
		require.Empty(t, k.asks(), "it is as it should be")

		k.edit(homeMap, colour("red"))
		_, err = steps(t, c, in, w)
		require.NoError(t, err)
		require.Equal(t, "red", revOf(k.at(homeMap)))
		require.Len(t, in.Status.Drift, 1)
	})
}

// Whether reported drift was put back the cluster says itself, in a dry run; an error of it is one of the reconcile.
func TestDryRunThatFails(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPatch} {
		synctest.Test(t, func(t *testing.T) {
			k, c, in, w := blue(t, DriftReport)
			k.edit(homeMap, colour("red"))
			gets := 0
			k.refuse = func(m string, key kubeKey) error {
				if m == http.MethodGet {
					gets++
				}
				if m == method && key == homeMap && (m == http.MethodPatch || gets == 2) { // the first read is that of the drift
					return errDenied
				}
				return nil
			}
			_, err := steps(t, c, in, w)
			require.ErrorIs(t, err, errDenied)
			require.Empty(t, in.Status.Drift)
			require.Equal(t, "red", revOf(k.at(homeMap)))
		})
	}
}

// The dry run is of that very resource: what was made anew since is no drift of it that was put back.
func TestDryRunIsOfThatResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c, in, w := blue(t, DriftReport)
		m, _, err := c.mapping(w.GroupVersionKind())
		require.NoError(t, err)
		a := newApplying(c, in, nobody)
		put, err := a.isAsWanted(t.Context(), m, w, string(k.at(homeMap).GetUID()))
		require.NoError(t, err)
		require.True(t, put)
		put, err = a.isAsWanted(t.Context(), m, w, "another")
		require.NoError(t, err)
		require.False(t, put)
		require.NotContains(t, w.Object["metadata"], "uid", "the document stays as it is")

		paint(&w, "red")
		put, err = a.isAsWanted(t.Context(), m, w, string(k.at(homeMap).GetUID()))
		require.NoError(t, err)
		require.False(t, put, "an apply would change it")
	})
}

// A resource whose label somebody has taken off is the instance's still, if it is the one that it applied. One that was never
// applied is not, and neither is one that was not there before.
func TestWhoseAResourceIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c, in, w := blue(t, DriftRepair)
		k.edit(homeMap, func(u *unstructured.Unstructured) { u.SetLabels(nil) })
		_, err := steps(t, c, in, w)
		require.NoError(t, err)
		require.Equal(t, "i", k.at(homeMap).GetLabels()[LabelInstance])
		require.Len(t, in.Status.Drift, 1)
		require.Contains(t, in.Status.Drift[0].What, "was taken off by ")
		require.Contains(t, in.Status.Drift[0].What, "kubectl")

		k.edit(homeMap, func(u *unstructured.Unstructured) { u.SetLabels(nil) })
		in.Status.Resources[0].UID, in.Status.Resources[0].RepairedAt = "", nil
		_, err = steps(t, c, in, w)
		require.ErrorIs(t, err, errConflict)
		require.Empty(t, k.at(homeMap).GetLabels())
	})
}

// What a change of the document has changed is no drift, also where the watch has not seen it yet.
func TestChangeOfTheDocumentIsNoDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _, in, w := blue(t, DriftReport)
		paint(&w, "red")
		other, err := k.connect(nil, "", nothing)
		require.NoError(t, err)
		defer other.close()
		live := k.at(homeMap)
		k.drop(homeMap)
		_, err = other.watches.get(t.Context(), mapResource, "home", "m")
		require.NoError(t, err)
		k.mu.Lock() // and no watch tells
		k.objects[homeMap] = live
		k.mu.Unlock()
		a := newApplying(other, in, nobody)
		require.NoError(t, a.all(t.Context(), []wanted{w}))
		require.Empty(t, in.Status.Drift)
		require.Equal(t, map[string]any{"colour": "red"}, k.at(homeMap).Object["data"])
	})
}

// Drift that stays keeps the time at which it was found, for each resource and each change of its own; a repair that is made again
// is counted.
func TestDriftIsToldOnce(t *testing.T) {
	in := instance(InstanceSpec{Drift: DriftReport})
	one, other := keyOf(configMap("m", "")), keyOf(configMap("n", ""))
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("here", 3600))
	a := newApplying(nil, in, nobody)
	a.leave(one, "red", "red", begin)
	a = newApplying(nil, in, nobody)
	later := begin.Add(time.Hour)
	a.leave(other, "red", "red", later)
	a.leave(one, "green", "green", later)
	a.leave(one, "red", "red", later)
	require.Equal(t, []Drifted{
		{Resource: other.String(), What: "red", At: later.UTC()},
		{Resource: one.String(), What: "green", At: later.UTC()},
		{Resource: one.String(), What: "red", At: begin.UTC()},
	}, in.Status.Drift)

	in.Status.Drift = nil
	m, n := entry(configMap("m", "")), entry(configMap("n", ""))
	a = newApplying(nil, in, nobody)
	a.repaired(&m, "red", begin)
	a.repaired(&n, "red", begin)
	a.repaired(&m, "green", begin)
	a.repaired(&m, "red", later)
	require.Equal(t, []Drifted{
		{Resource: other.String(), What: "red", At: begin.UTC(), Repaired: true, Times: 1},
		{Resource: one.String(), What: "green", At: begin.UTC(), Repaired: true, Times: 1},
		{Resource: one.String(), What: "red", At: later.UTC(), Repaired: true, Times: 2},
	}, in.Status.Drift)
	require.Equal(t, time.UTC, m.RepairedAt.Location())
	require.Equal(t, 3, m.Repairs)
}

// The manager that changed a resource last is told of, as far as the server says when each did.
func TestTheLatestManagerIsTold(t *testing.T) {
	at := func(who string, second int64) metav1.ManagedFieldsEntry {
		m := metav1.ManagedFieldsEntry{Manager: who, Operation: metav1.ManagedFieldsOperationUpdate}
		if second > 0 {
			m.Time = &metav1.Time{Time: time.Unix(second, 0)}
		}
		return m
	}
	for want, managers := range map[string][]metav1.ManagedFieldsEntry{
		"[b a]":   {at("a", 1), at("b", 2)},
		"[c b]":   {at("c", 0), at("b", 2)},
		"[b c]":   {at("b", 2), at("c", 0)},
		"[x y z]": {at("x", 0), at("y", 0), at("z", 0)},
		"[p q]":   {at("p", 3), at("q", 3)},
	} {
		u := configMap("m", "i")
		u.SetManagedFields(managers)
		s := look(u)
		require.Equal(t, want, fmt.Sprint(s.others))
		require.Empty(t, s.GetManagedFields(), "they are large")
	}
	u := configMap("m", "i")
	u.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: fieldManager, Operation: metav1.ManagedFieldsOperationApply}})
	require.NotEmpty(t, look(u).fields, "a server may leave the fields out")
}
