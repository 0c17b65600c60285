package workload

import (
	"context"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/apiclient/apitest"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// shop is of several phases, with the last first: rev changes most of it, and side changes the name of one, in a namespace that is
// somebody else's.
const shop = `apiVersion: batch/v1
kind: Job
metadata: {name: migrate}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: 1, template: {metadata: {annotations: {rev: "r${rev}"}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: "${side}", namespace: home}
data: {rev: "r${rev}"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {rev: "r${rev}"}
`

var (
	shopNamespace = kubeKey{namespaceResource, "", "shop"}
	shopSettings  = kubeKey{mapResource, "shop", "settings"}
	shopWeb       = kubeKey{deploymentResource, "shop", "web"}
	shopMigrate   = kubeKey{jobResource, "shop", "migrate"}
	shopLeft      = kubeKey{mapResource, "home", "left"}
	shopRight     = kubeKey{mapResource, "home", "right"}
)

// rank is the phase of a resource of the shop.
func (k kubeKey) rank() int {
	return map[string]int{"namespaces": 0, "configmaps": 1, "deployments": 2, "jobs": 2}[k.of.Resource]
}

// ofShop is what is wanted in the cluster for an instance of the shop: the rev of each resource, if it has one.
func ofShop(in *Instance) map[kubeKey]string {
	rev := "r" + in.Spec.Variables["rev"]
	return map[kubeKey]string{
		shopNamespace: "", shopMigrate: "", shopSettings: rev, shopWeb: rev, {mapResource, "home", in.Spec.Variables["side"]}: rev,
	}
}

func revOf(u *unstructured.Unstructured) string {
	rev, found, _ := unstructured.NestedString(u.Object, "data", "rev")
	if !found {
		rev, _, _ = unstructured.NestedString(u.Object, "spec", "template", "metadata", "annotations", "rev")
	}
	return rev
}

// shops is a cluster that replicas of the controller share, and an instance of the shop in it.
type shops struct {
	kube      *kube // nil until the first replica starts
	instances *apiclient.Client[InstanceSpec, InstanceStatus]
	drift     string          // what becomes of it
	refers    *apitest.Memory // has what the instance refers to
	latest    *Controller
	link      *lateLink
}

// lateLink is how a controller asks the API, over the link of its replica, which is not there yet when the controller is made.
// What instances refer to has an API of its own, which notifies nobody: only instances are reconciled.
type lateLink struct {
	r      *reconcilertest.Replica
	refers http.RoundTripper
}

func (l *lateLink) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasPrefix(req.URL.Path, "/v1/objects/"+Instances) {
		return l.r.HTTP().Transport.RoundTrip(req)
	}
	return reconcilertest.Request(req.Context(), l.r, req.Method, req.URL.Path, func() (*http.Response, error) {
		return l.refers.RoundTrip(req.WithContext(context.WithoutCancel(req.Context())))
	})
}

// scenario is one whose replicas reconcile instances.
func (s *shops) scenario() reconcilertest.Scenario {
	return reconcilertest.Scenario{
		Setup:       func() { s.kube = nil },
		Controllers: s.controllers,
		Beside: func(r *reconcilertest.Replica) func(context.Context) {
			c := s.latest
			s.link.r = r
			return func(ctx context.Context) {
				c.Run(ctx, func(ctx context.Context, kind, name, reason string) error {
					if kind != Instances { // nobody reconciles what it refers to
						return nil
					}
					return r.Notify(ctx, kind, name, reason)
				})
			}
		},
		Before: s.begin,
		Check:  s.check,
	}
}

func (s *shops) controllers() []reconciler.Controller {
	if s.kube == nil {
		s.kube = newKube()
		s.refers = apitest.NewMemory(func(context.Context, string, string, string) error { return nil })
	}
	link, k := &lateLink{refers: s.refers.Client().Transport}, s.kube
	c, err := New(Config{API: apiclient.Config{URL: "http://api.test", Tries: 1, HTTP: &http.Client{Transport: link}}})
	if err != nil {
		panic(err)
	}
	c.connect = func(_ *rest.Config, version string, changed func(instance, reason string)) (*cluster, error) {
		return k.connect(link.r, version, changed)
	}
	s.latest, s.link = c, link
	return c.Controllers()[2:3]
}

// begin declares what the instance refers to. Nothing of that changes, and nobody reconciles it.
func (s *shops) begin(t *testing.T, w *reconcilertest.World) {
	c, err := New(Config{API: apiclient.Config{URL: "http://api.test", HTTP: s.refers.Client()}})
	require.NoError(t, err)
	_, err = c.runtimes.Put(t.Context(), "main", somewhere)
	require.NoError(t, err)
	none := ""
	_, err = c.definitions.Put(t.Context(), "shop", DefinitionSpec{Manifests: shop, Variables: []Variable{{Name: "rev", Default: &none}, {Name: "side", Default: &none}}})
	require.NoError(t, err)
	s.instances = reconcilertest.Client[InstanceSpec, InstanceStatus](w, Instances)
	unseen, err := apiclient.New[InstanceSpec, InstanceStatus](apiclient.Config{URL: "http://api.test", HTTP: &http.Client{Transport: handled{w.API()}}}, Instances)
	require.NoError(t, err)
	s.kube.stored = func(name string) *Instance {
		in, err := unseen.Get(context.Background(), name)
		if err != nil {
			return nil
		}
		return in
	}
}

// made is begin, and an instance that is ready.
func (s *shops) made(t *testing.T, w *reconcilertest.World) {
	s.begin(t, w)
	s.put(t, "1", "left")
	w.RunUntilSettled()
}

func (s *shops) put(t *testing.T, rev, side string) {
	_, err := s.instances.Put(t.Context(), "shop", InstanceSpec{
		Definition: "shop", Runtime: "main", Namespace: "shop", Variables: map[string]string{"rev": rev, "side": side}, Drift: s.drift,
	})
	if err != nil { // it is being deleted
		require.ErrorIs(t, err, apiclient.ErrConflict)
	}
}

// look asks for a look, as a watch does in a moment.
func (s *shops) look(t *testing.T) {
	_, err := s.instances.Retry(t.Context(), "shop")
	require.NoError(t, err)
}

// check looks at the cluster.
func (s *shops) check(t *testing.T, _ *reconcilertest.World) {
	for _, wrong := range s.kube.wrongs(s.kube.stored("shop")) {
		t.Error(wrong)
	}
}

// checkLater is check after as long as a replica that has just started, and has heard of nothing, may take to look at the cluster.
func (s *shops) checkLater(t *testing.T, w *reconcilertest.World) {
	for began := time.Now(); time.Since(began) < 2*lookAgain && len(s.kube.wrongs(s.kube.stored("shop"))) > 0; w.RunUntilSettled() {
		w.Advance(10 * time.Second)
	}
	s.check(t, w)
}

// thorough is whether all is tried that can go wrong, as make integration does, and not only some of it.
var thorough = os.Getenv("EVENKEEL_DISTURB") == "all"

// shopScenarios are an instance that is made, one that is changed, of which one resource is pruned and one added, one that is
// deleted after somebody has taken a label off, and two that drift. Where what goes changes meanwhile, somebody puts theirs in
// its place.
func shopScenarios() map[string]reconcilertest.Scenario {
	s := &shops{}
	made := s.scenario()
	made.Do = func(t *testing.T, _ *reconcilertest.World) { s.put(t, "1", "left") }
	made.Change = func(t *testing.T, _ *reconcilertest.World) { s.put(t, "2", "right") }
	changed := s.scenario()
	changed.Before = s.made
	changed.Do = func(t *testing.T, _ *reconcilertest.World) { s.put(t, "2", "right") }
	changed.Change = func(t *testing.T, _ *reconcilertest.World) {
		s.kube.swap(shopLeft)
		s.put(t, "3", "right")
	}
	deleted := changed
	deleted.Do = func(t *testing.T, _ *reconcilertest.World) {
		s.kube.edit(shopLeft, func(u *unstructured.Unstructured) { u.SetLabels(nil) }) // and no watch tells of it
		_, err := s.instances.Delete(t.Context(), "shop")
		require.NoError(t, err)
	}
	drifted := changed
	drifted.Do = func(t *testing.T, _ *reconcilertest.World) {
		s.kube.edit(shopSettings, colour("theirs"))
		s.kube.edit(shopLeft, func(u *unstructured.Unstructured) { u.SetLabels(nil) })
		s.kube.drop(shopWeb)
		s.look(t)
	}
	drifted.Change, drifted.Check = made.Change, s.checkLater
	return map[string]reconcilertest.Scenario{"made": made, "changed": changed, "deleted": deleted, "drifted": drifted, "reported": reported()}
}

// colour changes what rev stands for.
func colour(rev string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) { _ = unstructured.SetNestedField(u.Object, rev, "data", "rev") }
}

// reported is drift that is not repaired. Somebody puts back what it was as soon as the instance tells of it.
func reported() reconcilertest.Scenario {
	s := &shops{drift: DriftReport}
	var of *Instance
	told := false
	scenario := s.scenario()
	scenario.Before = func(t *testing.T, w *reconcilertest.World) {
		s.made(t, w)
		of, told = s.kube.stored("shop"), false
	}
	var look func()
	look = func() {
		in := s.kube.stored("shop")
		switch {
		case in == nil || in.UID != of.UID || in.DeletedAt != nil: // nobody will tell
			told = true
		case slices.ContainsFunc(in.Status.Drift, func(d Drifted) bool { return d.Resource == "ConfigMap settings in shop" && !d.Repaired }):
			told = true
			s.kube.edit(shopSettings, colour("r1"))
		default:
			time.AfterFunc(time.Second, look)
		}
	}
	scenario.Do = func(t *testing.T, _ *reconcilertest.World) {
		s.kube.edit(shopSettings, colour("theirs"))
		s.kube.leave(shopSettings)
		s.look(t)
		time.AfterFunc(time.Second, look)
	}
	scenario.Check = func(t *testing.T, w *reconcilertest.World) {
		for began := time.Now(); time.Since(began) < 2*lookAgain && !told; w.RunUntilSettled() {
			w.Advance(10 * time.Second)
		}
		require.True(t, told, "nobody has told of the drift")
		s.check(t, w)
	}
	return scenario
}

// Wherever a replica dies, right before and right after each request to the API, the broker and the cluster, the next one makes of
// the cluster what is wanted, and nothing else: what is there is in the inventory, nothing is applied out of order or late,
// and what is somebody else's is not touched.
func TestClusterIsAsWantedWhereverTheReplicaDies(t *testing.T) {
	for name, scenario := range shopScenarios() {
		if !thorough && name != "changed" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			do := scenario.Do
			scenario.Do = func(t *testing.T, w *reconcilertest.World) {
				do(t, w)
				w.Advance(time.Second) // the watches tell
			}
			t.Logf("%d places of death", reconcilertest.CrashEverywhere(t, scenario))
		})
	}
}

// disturbed chooses the messages: writes to the cluster on their way, or all requests to the cluster and the API, the first few of
// those that come again and again, and of reads the answers, which may be of what is no more. What goes on between a replica and the
// broker has tests of its own.
func disturbed(m reconcilertest.Message) bool {
	method, path, _ := strings.Cut(m.Subject, " ")
	switch read := method == http.MethodGet; {
	case !strings.HasPrefix(path, "/"):
		return false
	case !thorough:
		return !read && !m.Answer && strings.HasPrefix(path, "/cluster/")
	case read:
		return m.Answer && m.Nth == 1
	}
	return m.Nth <= 2
}

// The same, whatever happens to a request to the API or the cluster on its way.
func TestClusterIsAsWantedWhateverHappensToAMessage(t *testing.T) {
	var with []reconcilertest.Disturbance
	if !thorough {
		with = append(with, reconcilertest.Change)
	}
	for name, scenario := range shopScenarios() {
		scenario.Only = disturbed
		t.Run(name, func(t *testing.T) { reconcilertest.DisturbEverywhere(t, scenario, with...) })
	}
}
