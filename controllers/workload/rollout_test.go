package workload

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// fleet is a definition at a generation, and instances that are ready with generation 1.
func fleet(n int, generation int64, pace Rollout) (*Definition, []*Instance) {
	d := &Definition{Name: "web", Generation: generation, Spec: DefinitionSpec{Manifests: "x", Rollout: pace}}
	var all []*Instance
	for i := range n {
		in := &Instance{Name: fmt.Sprintf("i-%d", i), Generation: 1}
		in.Status.DefinitionGeneration = 1
		in.Reconciliation = apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 1}
		all = append(all, in)
	}
	return d, all
}

func names(all []*Instance) (names []string) {
	for _, in := range all {
		names = append(names, in.Name)
	}
	return names
}

// R38: a change reaches all instances, as many at a time as may be.
func TestRolloutKeepsItsPace(t *testing.T) {
	d, all := fleet(5, 2, Rollout{AtOnce: 2, Patience: 60})
	now := time.Now()
	require.Equal(t, []string{"i-0", "i-1"}, names(rollOut(d, all, now)))
	require.Equal(t, "i-1", d.Status.Rollout.Released)
	require.Equal(t, []string{"i-0", "i-1"}, names(rollOut(d, all, now)), "they may not have been told")
	all[0].Status.DefinitionGeneration = 2
	require.Equal(t, []string{"i-1", "i-2"}, names(rollOut(d, all, now)))
	all[1].Status.DefinitionGeneration, all[2].Status.DefinitionGeneration = 2, 2
	all[2].Reconciliation.State = apiclient.StateWaiting // applied, and not ready yet
	require.Equal(t, []string{"i-2", "i-3"}, names(rollOut(d, all, now)))
	all[2].Reconciliation.State = apiclient.StateReady
	all[3].Status.DefinitionGeneration = 2
	rollOut(d, all, now)
	require.True(t, d.Status.Rollout.All)
	all[4].Status.DefinitionGeneration = 2
	require.Empty(t, rollOut(d, all, now))
	require.Equal(t, &RolloutStatus{Generation: 2, Released: "i-4", All: true, ReleasedAt: new(now.UTC()), Instances: 5, Updated: 5}, d.Status.Rollout)
	d.Generation = 3
	require.Equal(t, []string{"i-0", "i-1"}, names(rollOut(d, all, now)), "a newer one begins anew")
}

// R38: it stops on failure, says on whose, and goes on when that is mended.
func TestRolloutStopsOnFailure(t *testing.T) {
	for name, fail := range map[string]func(in *Instance){
		"stalled":  func(in *Instance) { in.Reconciliation.State = apiclient.StateStalled },
		"retrying": func(in *Instance) { in.Reconciliation.State, in.Reconciliation.Failures = apiclient.StateRetrying, 3 },
		"slow": func(in *Instance) {
			since := time.Now().Add(-2 * time.Minute)
			in.Reconciliation.State, in.Status.UpdatingSince, in.Status.Waiting = apiclient.StateWaiting, &since, "no room"
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, all := fleet(5, 2, Rollout{AtOnce: 2, Patience: 60, MaxFailed: 1})
			now := time.Now()
			rollOut(d, all, now)
			for _, in := range all[:2] {
				in.Status.DefinitionGeneration = 2
				in.Reconciliation.LastError = "no room"
				fail(in)
			}
			all[1].Reconciliation.State = apiclient.StateReady
			all[1].Status.UpdatingSince = nil
			require.Equal(t, []string{"i-2", "i-3"}, names(rollOut(d, all, now)), "one may fail")
			fail(all[1])
			require.Empty(t, d.Status.Rollout.Stopped)
			rollOut(d, all, now)
			require.Equal(t, "instance i-1: no room", d.Status.Rollout.Stopped)
			require.Equal(t, "i-3", d.Status.Rollout.Released, "no further one is begun")
			require.Equal(t, 2, d.Status.Rollout.Failed)
			for _, in := range all[:4] {
				in.Status.DefinitionGeneration = 2
				in.Status.UpdatingSince = nil
				in.Reconciliation = apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 1}
			}
			require.Equal(t, []string{"i-4"}, names(rollOut(d, all, now)))
			require.Empty(t, d.Status.Rollout.Stopped)
		})
	}
}

// R38: one that does not begin, because it is paused, say, stops it as one that does not end.
func TestRolloutStopsAtWhatDoesNotBegin(t *testing.T) {
	d, all := fleet(3, 2, Rollout{AtOnce: 1, Patience: 60})
	long := time.Now().Add(-time.Hour)
	all[0].Reconciliation.State, all[0].Status.UpdatingTo, all[0].Status.UpdatingSince = apiclient.StatePaused, 1, &long
	now := time.Now()
	require.Equal(t, []string{"i-0"}, names(rollOut(d, all, now)))
	require.Zero(t, d.Status.Rollout.Failed, "what took long before is not held against it")
	require.Equal(t, []string{"i-0"}, names(rollOut(d, all, now.Add(time.Minute))))
	require.Empty(t, rollOut(d, all, now.Add(time.Minute+1)))
	require.Equal(t, "instance i-0: it is paused", d.Status.Rollout.Stopped)
	all[0].Reconciliation.State, all[0].Status.DefinitionGeneration, all[0].Status.UpdatingSince = apiclient.StateReady, 2, nil
	require.Equal(t, []string{"i-1"}, names(rollOut(d, all, now.Add(time.Hour))))
}

// What instances have is kept for as long as they have it, also when the rollout to it did not end; and no more than that.
func TestGenerationsAreKeptThatInstancesHave(t *testing.T) {
	d, all := fleet(3, 1, Rollout{AtOnce: 1})
	kept := func() (generations []int64) {
		for _, k := range d.Status.Kept {
			generations = append(generations, k.Generation)
		}
		return generations
	}
	at := func(in *Instance) string {
		t.Helper()
		spec, generation, err := assigned(d, in)
		require.NoError(t, err)
		if spec == nil {
			return "none"
		}
		return fmt.Sprint(spec.Manifests, generation)
	}
	next := func(manifests string) {
		d.Generation++
		d.Spec.Manifests = manifests
		rollOut(d, all, time.Now())
		require.NoError(t, keep(d, all))
	}
	require.NoError(t, keep(d, all))
	next("y")
	require.Equal(t, []int64{1, 2}, kept())
	all[0].Status.DefinitionGeneration = 2
	all[1].Reconciliation.State = apiclient.StateStalled // at generation 1
	d.Spec.Rollout.AtOnce = 0
	next("z")
	require.Equal(t, []int64{1, 2, 3}, kept())
	d.Status.Rollout.All, d.Status.Rollout.Released = false, ""
	require.Equal(t, []string{"y2", "x1", "x1"}, []string{at(all[0]), at(all[1]), at(all[2])})
	for _, in := range all {
		in.Status.DefinitionGeneration = 3
	}
	require.NoError(t, keep(d, all))
	require.Equal(t, []int64{3}, kept())
	for i, in := range all {
		in.Status.DefinitionGeneration = int64(3 + i)
		next("more")
	}
	require.Equal(t, []int64{4, 5, 6}, kept(), "the latest of them")
}

// An instance that the rollout has not reached is kept as it is; a new one begins with the latest.
func TestInstancesKeepWhatTheyHave(t *testing.T) {
	d, all := fleet(3, 1, Rollout{AtOnce: 1})
	require.NoError(t, keep(d, all))
	d.Generation, d.Spec.Manifests = 2, "y"
	assigned := func(in *Instance) string {
		t.Helper()
		spec, generation, err := assigned(d, in)
		require.NoError(t, err)
		if spec == nil {
			return "none"
		}
		return fmt.Sprint(spec.Manifests, generation)
	}
	require.Equal(t, "x1", assigned(all[0]), "nobody has looked at the definition yet")
	rollOut(d, all, time.Now())
	require.Equal(t, "y2", assigned(all[0]))
	require.Equal(t, "x1", assigned(all[1]))
	require.Equal(t, "y2", assigned(&Instance{Name: "z-new"}))
	all[1].Status.DefinitionGeneration = 7 // of a rollout that was overtaken
	require.Equal(t, "none", assigned(all[1]))
}

// What could make the controller run a program or read a file for whoever wrote it is refused, and no error tells a secret.
func TestConnectionsAreHarmless(t *testing.T) {
	const kubeconfig = `
apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443"%s}}]
users: [{name: u, user: {%s}}]
`
	for want, spec := range map[string]RuntimeSpec{
		"want exactly one of kubeconfig, kubeconfigFile, endpoint and inCluster": {},
		"want exactly one of":                    {InCluster: true, Endpoint: "https://192.0.2.1"},
		"want token, or clientCertificate":       {Endpoint: "https://192.0.2.1"},
		"want clientCertificate and clientKey":   {Endpoint: "https://192.0.2.1", Token: "hunter2", ClientKey: "hunter2"},
		"exec names a program to run":            {Kubeconfig: fmt.Sprintf(kubeconfig, "", "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: [hunter2]}")},
		"auth-provider":                          {Kubeconfig: fmt.Sprintf(kubeconfig, "", "auth-provider: {name: hunter2}")},
		"tokenFile names a file":                 {Kubeconfig: fmt.Sprintf(kubeconfig, "", "tokenFile: /hunter2")},
		"client-key names a file":                {Kubeconfig: fmt.Sprintf(kubeconfig, "", "client-key: /hunter2, token: hunter2")},
		"certificate-authority names a file":     {Kubeconfig: fmt.Sprintf(kubeconfig, ", certificate-authority: /hunter2", "token: hunter2")},
		`it has no context "y"`:                  {Kubeconfig: fmt.Sprintf(kubeconfig, "", "token: hunter2"), Context: "y"},
		"kubeconfig: it cannot be read":          {Kubeconfig: "token: hunter2: hunter2"},
		"kubeconfigFile: this controller has no": {KubeconfigFile: "a"},
	} {
		_, _, err := connection(&spec, "")
		require.ErrorIs(t, err, errRuntime, want)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hunter2", want)
	}
	_, _, err := connection(&RuntimeSpec{KubeconfigFile: "../a"}, t.TempDir())
	require.ErrorContains(t, err, "want the name of a file, not a path")
	a, first, err := connection(&RuntimeSpec{Kubeconfig: fmt.Sprintf(kubeconfig, "", "token: hunter2")}, "")
	require.NoError(t, err)
	require.Equal(t, "hunter2", a.BearerToken)
	_, second, err := connection(&RuntimeSpec{Kubeconfig: fmt.Sprintf(kubeconfig, "", "token: hunter3")}, "")
	require.NoError(t, err)
	require.NotEqual(t, first, second, "another token is another connection")
}

// A definition that says nothing of its rollout has the patience that is the default.
func TestPatienceHasADefault(t *testing.T) {
	d, all := fleet(1, 2, Rollout{})
	now := time.Now()
	rollOut(d, all, now)
	all[0].Status.UpdatingSince = new(now.Add(-time.Minute))
	all[0].Reconciliation.State = apiclient.StateWaiting
	rollOut(d, all, now)
	require.Zero(t, d.Status.Rollout.Failed)
	require.Empty(t, d.Status.Rollout.Stopped)
}
