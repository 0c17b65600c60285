package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// held is an object that the holder of fence 5 has written last, at revision 7.
func held() apiclient.Raw {
	return apiclient.Raw{
		Kind: "widgets", Name: "blue", UID: "u", Generation: 3, Revision: 7, Finalizers: []string{"f"}, Status: json.RawMessage(`{"size":1}`),
		Reconciliation: apiclient.Reconciliation{State: apiclient.StateReady, Fence: 5, ObservedGeneration: 3},
	}
}

// TestOnlyTheFenceDecidesWhoWrites: a status with an older fence is refused whatever else it gets right, and changes nothing; one
// with a fence that is as high or higher is taken, unless it is of another object, or of another revision if it names one.
func TestOnlyTheFenceDecidesWhoWrites(t *testing.T) {
	ready := &apiclient.Reconciliation{State: apiclient.StateReady, ObservedGeneration: 3, Fence: 99}
	for _, fence := range []uint64{0, 1, 4, 5, 6, 1 << 40} {
		for _, revision := range []int64{0, 6, 7, 8} {
			for _, uid := range []string{"u", "v", ""} {
				for _, record := range []*apiclient.Reconciliation{nil, ready} {
					p := apiclient.StatusPatch{
						UID: uid, Fence: fence, Revision: revision, Status: json.RawMessage(`{"size":2}`), Reconciliation: record,
						AddFinalizers: []string{"g"}, RemoveFinalizers: []string{"f"},
					}
					o := held()
					e, err := PatchStatus(p)(&o)
					want := ""
					switch {
					case uid != "u":
						want = "uid is u, not " + uid
					case fence < 5:
						want = fmt.Sprintf("fence %d is lower than 5", fence)
					case revision != 0 && revision != 7:
						want = fmt.Sprintf("it is at revision 7, not %d", revision)
					}
					if want != "" {
						require.ErrorContains(t, err, want)
						require.Equal(t, uid == "u" && fence < 5, errors.Is(err, apiclient.ErrFenced))
						require.Zero(t, e)
						require.Equal(t, held(), o)
						continue
					}
					require.NoError(t, err)
					require.Equal(t, Effect{Written: true}, e)
					require.Equal(t, fence, o.Reconciliation.Fence, "not the one in the record")
					require.Equal(t, `{"size":2}`, string(o.Status))
					require.Equal(t, []string{"g"}, o.Finalizers)
				}
			}
		}
	}
}

// TestStatusKeepsWhatItDoesNotName.
func TestStatusKeepsWhatItDoesNotName(t *testing.T) {
	o := held()
	e, err := PatchStatus(apiclient.StatusPatch{UID: "u", Fence: 5})(&o)
	require.NoError(t, err)
	require.True(t, e.Written)
	require.Equal(t, held(), o)
}

// TestReadyIsOnlySaidOfThePresentGeneration: a record of an earlier one leaves the object to be reconciled, and one of a run that is
// over says no more since when it runs.
func TestReadyIsOnlySaidOfThePresentGeneration(t *testing.T) {
	at := time.Now()
	for _, tt := range []struct {
		say, want apiclient.State
		observed  int64
		deleted   bool
		running   bool
	}{
		{say: apiclient.StateReady, want: apiclient.StateReady, observed: 3},
		{say: apiclient.StateReady, want: apiclient.StatePending, observed: 2},
		{say: apiclient.StateReady, want: apiclient.StateDeleting, observed: 2, deleted: true, running: true},
		{say: apiclient.StateStalled, want: apiclient.StateStalled, observed: 2},
		{say: apiclient.StateReconciling, want: apiclient.StateReconciling, observed: 2, running: true},
		{say: apiclient.StateDeleting, want: apiclient.StateDeleting, observed: 2, deleted: true, running: true},
	} {
		o := held()
		if tt.deleted {
			o.DeletedAt = &at
		}
		record := apiclient.Reconciliation{State: tt.say, ObservedGeneration: tt.observed, RunningSince: &at}
		_, err := PatchStatus(apiclient.StatusPatch{UID: "u", Fence: 5, Reconciliation: &record})(&o)
		require.NoError(t, err)
		require.Equal(t, tt.want, o.Reconciliation.State)
		require.Equal(t, tt.running, o.Reconciliation.RunningSince != nil, "%+v", tt)
	}
}

// TestObjectGoesWithItsLastFinalizer, and only if it is being deleted, when it is given no new ones.
func TestObjectGoesWithItsLastFinalizer(t *testing.T) {
	at := time.Now()
	for _, tt := range []struct {
		add, remove, left []string
		deleted, gone     bool
	}{
		{add: []string{"g", "f", "h", "g"}, left: []string{"f", "g", "h"}},
		{remove: []string{"f", "unknown"}, left: []string{}},
		{remove: []string{"f"}, left: []string{}, deleted: true, gone: true},
		{add: []string{"g"}, remove: []string{"f"}, left: []string{}, deleted: true, gone: true},
		{add: []string{"g"}, left: []string{"f"}, deleted: true},
	} {
		o := held()
		before := slices.Clone(o.Finalizers)
		was := o.Finalizers
		if tt.deleted {
			o.DeletedAt = &at
		}
		e, err := PatchStatus(apiclient.StatusPatch{UID: "u", Fence: 5, AddFinalizers: tt.add, RemoveFinalizers: tt.remove})(&o)
		require.NoError(t, err)
		require.Equal(t, tt.left, o.Finalizers)
		require.Equal(t, tt.gone, e.Gone)
		require.Equal(t, before, was, "what others hold is not changed in place")
	}
}
