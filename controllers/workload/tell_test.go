package workload

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A burst of changes of an instance asks for one reconcile; what could not be asked for is asked for again.
func TestChangesAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		type asking struct {
			after          time.Duration
			object, reason string
		}
		var mu sync.Mutex
		var asked []asking
		failing := 2
		tell := newTelling(func(_ context.Context, kind, name, reason string) error {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, asking{time.Since(began), kind + "/" + name, reason})
			if name == "b" && failing > 0 {
				failing--
				return errors.New("no broker")
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			tell.run(ctx)
			close(ended)
		}()
		for range 5 {
			tell.add(Instances, "a", "one of many")
			time.Sleep(gathered / 10)
		}
		tell.add(Definitions, "a", "other")
		tell.add(Instances, "a", "the latest")
		time.Sleep(time.Second)
		mu.Lock()
		require.ElementsMatch(t, []asking{{gathered, "workload-definitions/a", "other"}, {gathered, "workload-instances/a", "the latest"}}, asked)

		asked, began = nil, time.Now()
		mu.Unlock()
		tell.add(Instances, "b", "changed")
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []asking{{gathered, "workload-instances/b", "changed"}, {2 * gathered, "workload-instances/b", "changed"}, {3 * gathered, "workload-instances/b", "changed"}}, asked)
		cancel()
		<-ended
	})
}
