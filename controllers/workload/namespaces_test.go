package workload

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"
)

// The namespace of an instance is chosen once, and so is whether it is the instance's own.
func TestNamespaceStaysTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := byHand(t), stand(t)
		choose := func(in *Instance) (string, bool) {
			t.Helper()
			own, err := h.namespace(t.Context(), in, s.cluster)
			require.NoError(t, err)
			return in.Status.Namespace, own
		}
		in := &Instance{Name: "i", UID: "i"}
		name, own := choose(in)
		require.Regexp(t, "^i-[0-9a-f]{10}$", name)
		require.True(t, own)
		in.Status.Namespace = "before"
		name, own = choose(in)
		require.Equal(t, "before", name, "whatever it would be today")
		require.True(t, own)
		require.Empty(t, s.fake.Actions())

		declared := func() *Instance { return &Instance{Name: "i", UID: "i", Spec: InstanceSpec{Namespace: "home"}} }
		in = declared()
		name, own = choose(in)
		require.Equal(t, "home", name)
		require.True(t, own, "nobody has it")
		s.put(t, namespaceResource, resource("v1", "Namespace", "", "home", "i"))
		_, own = choose(declared())
		require.True(t, own, "it was made, and that could not be stored any more")
		s.put(t, namespaceResource, resource("v1", "Namespace", "", "home", "other"))
		_, own = choose(declared())
		require.False(t, own)
		in.Status.Resources = []Resource{{Version: "v1", Kind: "Namespace", Name: "home"}}
		_, own = choose(in)
		require.True(t, own, "it is in the inventory")

		require.NoError(t, s.fake.Tracker().Delete(namespaceResource, "", "home"))
		in = declared()
		in.Status.DefinitionGeneration = 1
		_, own = choose(in)
		require.False(t, own, "it was somebody else's when this began")
		in = declared()
		in.Status.Resources = []Resource{entry(configMap("m", "i"))}
		_, own = choose(in)
		require.False(t, own)
	})
}

// Of several instances that make one namespace at the same time one has it; the others use it, and have no part in it. What a
// document says of a namespace that is there is a conflict, as of anything else.
func TestNamespaceThatSomebodyMadeIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, in := stand(t), instance(InstanceSpec{})
		space := namespaceFor(in)
		in.Status.Resources = []Resource{{Version: "v1", Kind: "Namespace", Name: "home"}}
		all := []wanted{space, want(in, configMap("m", ""))}
		made := 0
		s.fake.PrependReactor("create", "namespaces", func(kubetesting.Action) (bool, runtime.Object, error) {
			if made++; made == 1 { // right between the look and this
				s.put(t, namespaceResource, resource("v1", "Namespace", "", "home", "other"))
			}
			return false, nil, nil
		})
		apply := func() error {
			synctest.Wait()
			return newApplying(s.cluster, in, nobody).all(t.Context(), all)
		}
		require.NoError(t, apply())
		require.Equal(t, "other", s.at(namespaceResource, "", "home").GetLabels()[LabelInstance])
		require.Len(t, in.Status.Resources, 1)
		require.Equal(t, "m", in.Status.Resources[0].Name)
		require.Equal(t, []string{"m"}, s.applied())

		all[0].from = "a document"
		in.Status.Resources = append(in.Status.Resources, Resource{Version: "v1", Kind: "Namespace", Name: "home"})
		require.ErrorIs(t, apply(), errConflict)
		require.Len(t, in.Status.Resources, 2)
		all[0].from = ownNamespace
		in.Status.Resources[1].UID = "it was ours"
		require.ErrorIs(t, apply(), errConflict, "and it is not, any more")

		require.NoError(t, s.fake.Tracker().Delete(namespaceResource, "", "home"))
		in.Status.Resources[1].UID = ""
		require.NoError(t, apply())
		made2 := s.did("create", "namespaces")
		created := made2[len(made2)-1].(kubetesting.CreateAction).GetObject()
		require.Equal(t, map[string]string{LabelInstance: "i", LabelInstanceName: "i"}, created.(*unstructured.Unstructured).GetLabels())
		require.Equal(t, "i", s.at(namespaceResource, "", "home").GetLabels()[LabelInstance])
		require.Equal(t, string(s.at(namespaceResource, "", "home").GetUID()), in.Status.Resources[1].UID)
	})
}
