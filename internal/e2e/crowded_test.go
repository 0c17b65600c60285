package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// P1, P6: more turns than may wait for the broker lose what is next for their objects. They ask for a search, so the objects
// are looked at when the broker is back, and not a day later.
func TestObjectsThatTheBrokerCannotKeepAreFoundWhenItCan(t *testing.T) {
	play(t, func(t *testing.T, s scenario) {
		failing := true
		s.StartWith("a", func(cfg *reconciler.Config) { cfg.Resync = 24 * time.Hour }, oneWorker(func(ctx context.Context, o *jobObject) (reconciler.Result, error) {
			if failing {
				return reconciler.Result{RequeueAfter: time.Second}, errors.New("fails")
			}
			return work(ctx, o)
		}))
		s.Advance(2 * time.Minute) // the searches of the start are over
		mend := s.FailBroker(reconcilertest.BrokerFault{Subject: ".s.jobs."})
		const objects = 80 // 64 may wait
		for i := range objects {
			s.put(fmt.Sprintf("o%d", i), job{Value: 1})
		}
		s.Advance(10 * time.Minute)
		mend()
		failing = false
		s.Advance(3 * time.Minute)
		for i := range objects {
			require.Equal(t, apiclient.StateReady, s.get(fmt.Sprintf("o%d", i)).Reconciliation.State)
		}
		s.AssertConverged()
	})
}
