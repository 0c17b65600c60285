package workload

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubetest"
)

// drifting is a reconcile of an instance of one resource.
func drifting(drift string) (*applying, *Resource) {
	in := &Instance{Name: "i", UID: "i", Spec: InstanceSpec{Drift: drift}}
	in.Status.Resources = []Resource{{Version: "v1", Kind: "ConfigMap", Namespace: "n", Name: "m"}}
	return newApplying(new(cluster), in, nobody), &in.Status.Resources[0]
}

// Two who insist on one field would repair it for ever: each repair waits longer than the one before it.
func TestRepairsAreDamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, entry := drifting(DriftRepair)
		began := time.Now()
		var at []time.Duration
		for time.Since(began) < time.Hour {
			a = newApplying(a.cluster, a.in, nobody)
			if !a.stays(entry, "it was changed by a-hand", true, time.Now()) {
				a.repaired(entry, "it was changed by a-hand", time.Now())
				at = append(at, time.Since(began))
			}
			time.Sleep(time.Second)
		}
		require.Equal(t, []time.Duration{0, 1e9, 2e9, 7e9, 17e9, 37e9, 77e9, 157e9, 317e9, 637e9, 1237e9, 1837e9, 2437e9, 3037e9}, at)
		require.Len(t, a.in.Status.Drift, 2, "the repairs are one entry")
		require.Equal(t, 14, a.in.Status.Drift[0].Times)
		require.Equal(t, "it was changed by a-hand, again after 14 repairs: the next one is due at "+began.Add(3637*time.Second).UTC().Format(time.RFC3339), a.drifted[entry.key()])

		require.False(t, a.stays(entry, "it was changed by a-hand", false, time.Now()), "something else is wanted")
		entry.calm(time.Now())
		require.Equal(t, 14, entry.Repairs)
		time.Sleep(20 * time.Minute)
		entry.calm(time.Now())
		require.Zero(t, entry.Repairs, "it has kept still")
		require.False(t, a.stays(entry, "it was changed", true, time.Now()))
	})
}

// Drift that is only reported is said since when; of repairs the last are kept, and none of what stays is dropped for them.
func TestDriftIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, entry := drifting(DriftReport)
		began := time.Now().UTC()
		for range 3 {
			a = newApplying(a.cluster, a.in, nobody)
			require.True(t, a.stays(entry, "it was changed", true, time.Now()))
			time.Sleep(time.Minute)
		}
		require.Equal(t, []Drifted{{Resource: "ConfigMap m in n", What: "it was changed", At: began}}, a.in.Status.Drift)
		for i := range keptDrift + 5 {
			a.repaired(entry, fmt.Sprintf("it was changed by %d", i), time.Now())
		}
		require.Len(t, a.in.Status.Drift, keptDrift+1)
		require.False(t, a.in.Status.Drift[0].Repaired)
		require.Equal(t, "it was changed by 5", a.in.Status.Drift[1].What)
		a = newApplying(a.cluster, a.in, nobody)
		require.Len(t, a.in.Status.Drift, keptDrift, "it is not drifted any more")
	})
}

// writes counts the requests that change something.
type writes struct {
	http.RoundTripper
	n *atomic.Int64
}

func (c writes) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && !r.URL.Query().Has("dryRun") {
		c.n.Add(1)
	}
	return c.RoundTripper.RoundTrip(r)
}

// What was applied the inventory knows, not the process: a replica that has never seen an instance applies nothing anew, and
// does not take for its own what somebody has changed meanwhile.
func TestAnotherReplicaKnowsWhatWasApplied(t *testing.T) {
	t.Parallel()
	kube := kubetest.Start(t)
	replica := func() (*cluster, *atomic.Int64) {
		n, cfg := new(atomic.Int64), kube.Config()
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return writes{next, n} })
		c, err := connect(cfg, "test", func(string, string) {})
		require.NoError(t, err)
		t.Cleanup(c.close)
		return c, n
	}
	first, written := replica()
	in := &Instance{Name: "told", UID: "told", Spec: InstanceSpec{Namespace: kube.Namespace(t), Drift: DriftReport}}
	all := planned(t, first, in)
	_, err := converge(t.Context(), first, in, all)
	require.NoError(t, err)
	require.EqualValues(t, len(all), written.Load())

	second, written := replica()
	_, err = converge(t.Context(), second, in, all)
	require.NoError(t, err)
	require.Zero(t, written.Load())
	require.Empty(t, in.Status.Drift)

	// A label that is taken off belongs to nobody then, so that an apply would be no conflict.
	m, known, err := second.mapping(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
	require.NoError(t, err)
	require.True(t, known)
	patchAs(t, second.resource(m, in.Spec.Namespace), "web", "a-hand", `{"metadata":{"labels":{"app.kubernetes.io/name":null}}}`)
	third, written := replica()
	waiting, err := converge(t.Context(), third, in, all)
	require.NoError(t, err)
	require.Contains(t, waiting, "ConfigMap web in "+in.Spec.Namespace+" is Drifted: it was changed")
	require.Zero(t, written.Load())
	require.Len(t, in.Status.Drift, 1)
}

// connected is a connection to the test binary's cluster.
func connected(t *testing.T, told func(instance, reason string)) *cluster {
	t.Helper()
	c, err := connect(kubetest.Start(t).Config(), "test", told)
	require.NoError(t, err)
	t.Cleanup(c.close)
	return c
}

func nothing(string, string) {}

// settled converges until there is nothing to wait for.
func settled(t *testing.T, c *cluster, in *Instance, all []wanted) {
	t.Helper()
	require.Eventually(t, func() bool {
		waiting, err := converge(t.Context(), c, in, all)
		require.NoError(t, err)
		return waiting == ""
	}, patience, 50*time.Millisecond)
}

// An apply of a replica that has lost its lock may arrive late, and takes no field away. A second passes before it, which is how
// exactly the API server notes the time.
func TestLateApplyIsNoticed(t *testing.T) {
	t.Parallel()
	c := connected(t, nothing)
	in := &Instance{Name: "late", UID: "late", Spec: InstanceSpec{Namespace: kubetest.Start(t).Namespace(t)}}
	all := planned(t, c, in)
	old := all[0].DeepCopy() // the map
	paint(&all[0], "red")
	settled(t, c, in, all)
	m, _, err := c.mapping(old.GroupVersionKind())
	require.NoError(t, err)
	second := time.Now().Unix()
	require.Eventually(t, func() bool { return time.Now().Unix() > second }, patience, 10*time.Millisecond)
	_, err = c.apply(t.Context(), m, wanted{Unstructured: old}, in.Status.Resources[0].UID, true)
	require.NoError(t, err)

	other := connected(t, nothing)
	settled(t, other, in, all)
	require.Len(t, in.Status.Drift, 1)
	now, err := other.resource(m, in.Spec.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"colour": "red"}, now.Object["data"])
}

// paint gives a map another colour.
func paint(w *wanted, colour string) {
	w.Unstructured = w.DeepCopy()
	w.Object["data"] = map[string]any{"colour": colour}
	w.hash = hashOf(w.Object)
}

// A watch that is behind does not know whether a resource has become ready with what was applied last.
func TestWatchThatIsBehindIsNotBelieved(t *testing.T) {
	c, requests := counted(t)
	in := &Instance{Name: "behind", UID: "behind", Spec: InstanceSpec{Namespace: kubetest.Start(t).Namespace(t)}}
	all := planned(t, c, in)
	settled(t, c, in, all)
	deployment := &in.Status.Resources[1]
	require.Equal(t, "Deployment", deployment.Kind)
	before := requests.Load()
	deployment.Generation++ // as if it had been applied again
	waiting, err := converge(t.Context(), c, in, all)
	require.NoError(t, err)
	require.Empty(t, waiting)
	require.Equal(t, before+1, requests.Load(), "it was read")
	require.Empty(t, in.Status.Drift)
}

// What stringData becomes is the controller's as well.
func TestSecretsDriftToo(t *testing.T) {
	t.Parallel()
	c := connected(t, nothing)
	in := &Instance{Name: "secret", UID: "secret", Spec: InstanceSpec{Namespace: kubetest.Start(t).Namespace(t)}}
	wants := func(texts string) []wanted {
		docs, err := parse("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {b: Yg==}\nstringData: " + texts + "\n")
		require.NoError(t, err)
		all, err := render(in, &DefinitionSpec{}, docs, in.Spec.Namespace, c.scope)
		require.NoError(t, err)
		return all
	}
	in.Status.Resources = []Resource{{Version: "v1", Kind: "Secret", Namespace: in.Spec.Namespace, Name: "s"}}
	settled(t, c, in, wants("{password: one}"))
	m, _, err := c.mapping(in.Status.Resources[0].gvk())
	require.NoError(t, err)
	secrets := c.resource(m, in.Spec.Namespace)
	patchAs(t, secrets, "s", "a-hand", `{"data":{"password":"dHdv"}}`)
	require.Eventually(t, func() bool {
		settled(t, c, in, wants("{password: one}"))
		return len(in.Status.Drift) == 1
	}, patience, 50*time.Millisecond)
	data := func() any {
		s, err := secrets.Get(t.Context(), "s", metav1.GetOptions{})
		require.NoError(t, err)
		return s.Object["data"]
	}
	require.Equal(t, map[string]any{"b": "Yg==", "password": "b25l"}, data())
	settled(t, c, in, wants("{other: one}"))
	require.Equal(t, map[string]any{"b": "Yg==", "other": "b25l"}, data(), "what is not wanted any more goes")
}
