package reconcilertest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// Outcome is what a call came to, as it would be stored.
type Outcome[S, T any] struct {
	// Object is the object with the status and the record as they are after the call.
	Object *apiclient.Object[S, T]
	// StatusChanged is whether the status would be written.
	StatusChanged bool
	// Result and Err are what the function returned; a panic is an error.
	Result reconciler.Result
	Err    error
}

// Call calls a function once on one object, without a broker, an API or virtual time, and says what would be stored: the
// state, the error, when it is looked at again. Kind, name, UID and generation have defaults; o itself is left alone. Its
// Reconciliation decides which attempt this is: Failures 4 at ObservedGeneration 1 make it the fifth.
func Call[S, T any](t testing.TB, f reconciler.Func[S, T], o *apiclient.Object[S, T]) Outcome[S, T] {
	t.Helper()
	if o == nil {
		t.Fatal("reconcilertest: Call without an object")
	}
	in := *o
	if in.Kind == "" {
		in.Kind = "objects"
	}
	if in.Name == "" {
		in.Name = "object"
	}
	if in.UID == "" {
		in.UID = "uid"
	}
	in.Generation = max(1, in.Generation)
	if in.CreatedAt.IsZero() {
		in.CreatedAt, in.ChangedAt = time.Now(), time.Now()
	}
	raw := convert[apiclient.Raw](t, in)
	status, rec, result, err := reconciler.ForWithCleanup(in.Kind, f, f).Once(t.Context(), &raw)
	if status != nil {
		raw.Status = status
	}
	raw.Reconciliation = rec
	after := convert[apiclient.Object[S, T]](t, raw)
	return Outcome[S, T]{Object: &after, StatusChanged: status != nil, Result: result, Err: err}
}

func convert[To, From any](t testing.TB, from From) (to To) {
	t.Helper()
	data, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(data, &to)
	}
	if err != nil {
		t.Fatalf("reconcilertest: the object does not survive JSON: %v", err)
	}
	return to
}
