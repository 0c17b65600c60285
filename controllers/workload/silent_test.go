package workload

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// silent is a way to a cluster that gives no answer. It counts the requests that were sent.
type silent struct{ asked atomic.Int64 }

func (s *silent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked.Add(1)
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

// R39: while a cluster gives no answer, with more instances there than a replica has workers, those of another cluster become
// ready as ever: none of them waits until a request to the silent one is given up.
func TestSilentClusterHoldsNobodyUp(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx, nobody := t.Context(), new(silent)
		far, err := connect(&rest.Config{Host: somewhere.Endpoint, Transport: nobody, QPS: -1, Timeout: requestTimeout}, "", func(string, string) {})
		require.NoError(t, err)
		w.leads(t, "far", far)
		w.leads(t, "near", stand(t).cluster)
		_, err = w.definitions.Put(ctx, "web", DefinitionSpec{Manifests: one})
		require.NoError(t, err)
		put := func(name, runtime string) {
			_, err := w.instances.Put(ctx, name, InstanceSpec{Definition: "web", Runtime: runtime})
			require.NoError(t, err)
		}
		for k := range 80 { // a replica has 64 workers
			put(fmt.Sprintf("far-%d", k), "far")
		}
		for round := range 12 {
			name := fmt.Sprintf("near-%d", round)
			put(name, "near")
			w.Advance(5 * time.Second)
			in, err := w.instances.Get(ctx, name)
			require.NoError(t, err)
			require.True(t, in.Ready(), "%s is not ready: %+v", name, in.Reconciliation)
		}
		require.Positive(t, nobody.asked.Load())
		in, err := w.instances.Get(ctx, "far-0")
		require.NoError(t, err)
		require.False(t, in.Ready())
		require.Error(t, far.health.down)
	})
}
