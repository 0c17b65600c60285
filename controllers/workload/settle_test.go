package workload

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// What becomes of an instance when a cluster answers: by what its runtime says, where it was, and who answers.
func TestInstanceSettlesInOneCluster(t *testing.T) {
	drift := []Drifted{{Resource: "ConfigMap m in home"}}
	for text, c := range map[string]struct {
		home, want, answers string
		empty               bool // it has no resources
		at                  string
		kept                bool
		err                 string
	}{
		"it begins":                           {"", "", "a", true, "a", true, ""},
		"of before clusters were told apart":  {"", "", "a", false, "a", true, ""},
		"it is at home":                       {"a", "", "a", false, "a", true, ""},
		"it is where it should be":            {"a", "a", "a", false, "a", true, ""},
		"nobody may say any more":             {"a", "", "", false, "a", true, "which cluster this is: let it get the namespace kube-system"},
		"nobody ever may say":                 {"", "", "", false, "", true, ""},
		"nobody may say, and somebody asks":   {"a", "a", "", false, "a", true, "the controller may not read the namespace kube-system"},
		"it has nothing anywhere":             {"a", "", "b", true, "b", true, ""},
		"it is led astray":                    {"a", "", "b", false, "a", true, "to leave behind what is there, set spec.cluster of the runtime to b"},
		"the runtime is led astray":           {"a", "a", "b", false, "a", true, "cluster a is wanted, and b answers"},
		"the runtime says that it is this":    {"a", "b", "b", false, "b", false, ""},
		"the runtime wants another, which is": {"a", "c", "b", true, "a", true, "cluster c is wanted, and b answers"},
	} {
		t.Run(text, func(t *testing.T) {
			in := &Instance{Name: "i", UID: "i", Status: InstanceStatus{Cluster: c.home, DefinitionGeneration: 3, Drift: drift}}
			if !c.empty {
				in.Status.Resources = []Resource{entry(configMap("m", "i"))}
			}
			before := in.Status
			err := settleIn(in, &Runtime{Name: "main", Spec: RuntimeSpec{Cluster: c.want}}, c.answers)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
			before.Cluster = c.at
			if !c.kept {
				before.Resources, before.Drift, before.DefinitionGeneration = nil, nil, 0
			}
			require.Equal(t, before, in.Status)
		})
	}
}

// The uid of a cluster is read once by reconciles, and anew by each probe. A cluster that does not let it be read has none.
func TestClusterIsIdentified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stand(t)
		var fail error
		s.fails("get", "namespaces", func() error { return fail })
		fail = errCut
		_, err := s.identity(t.Context())
		require.ErrorIs(t, err, errCut)
		require.ErrorIs(t, s.health.down, errCut)
		for _, fail = range []error{
			apierrors.NewForbidden(namespaceResource.GroupResource(), "kube-system", errors.New("no")), apierrors.NewNotFound(namespaceResource.GroupResource(), "kube-system"),
		} {
			uid, err := s.identify(t.Context())
			require.NoError(t, err)
			require.Empty(t, uid)
		}
		fail = nil
		uid, err := s.identity(t.Context())
		require.NoError(t, err)
		require.Empty(t, uid)
		system := s.put(t, namespaceResource, resource("v1", "Namespace", "", "kube-system", ""))
		uid, err = s.identity(t.Context())
		require.NoError(t, err)
		require.Equal(t, string(system.GetUID()), uid)
		asked := len(s.did("get", "namespaces"))
		time.Sleep(time.Hour)
		uid, err = s.identity(t.Context())
		require.NoError(t, err)
		require.Equal(t, string(system.GetUID()), uid)
		require.Len(t, s.did("get", "namespaces"), asked)
	})
}
