package reconcilertest_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// The package's documentation shows these tests; TestDocsShowTheExamples keeps the two alike.

type (
	Spec   struct{ Size int }
	Status struct{ Size int }
	Widget = apiclient.Object[Spec, Status]
)

func reconcile(_ context.Context, w *Widget) (reconciler.Result, error) {
	w.Status.Size = w.Spec.Size
	return reconciler.Result{}, nil
}

func TestWidgetGetsItsSize(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		w.Start("a", reconciler.For("widgets", reconcile))
		widgets := reconcilertest.Client[Spec, Status](w, "widgets")
		if _, err := widgets.Create(t.Context(), "blue", Spec{Size: 3}); err != nil {
			t.Fatal(err)
		}
		w.RunUntilSettled()
		w.AssertPromises()
		blue, err := widgets.Get(t.Context(), "blue")
		if err != nil || blue.Status.Size != 3 {
			t.Fatal(blue, err)
		}
	})
}

func TestSlowNetworkAndWrongClock(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		w.SetLatency(reconcilertest.RandomLatency(1))
		w.SetClock("a", reconcilertest.Clock{Ahead: 20 * time.Second, Drift: 0.001})
		a := w.Start("a", reconciler.For("widgets", reconcile))
		w.Start("b", reconciler.For("widgets", reconcile))
		put(t, w, 3)
		w.Advance(50 * time.Millisecond)
		a.Kill()
		w.RunUntilSettled()
		w.AssertPromises()
	})
}

func put(t *testing.T, w *reconcilertest.World, size int) {
	if _, err := reconcilertest.Client[Spec, Status](w, "widgets").Put(t.Context(), "blue", Spec{Size: size}); err != nil {
		t.Fatal(err)
	}
}

var widgets = reconcilertest.Scenario{
	Controllers: func() []reconciler.Controller {
		return []reconciler.Controller{reconciler.For("widgets", reconcile)}
	},
	Do:     func(t *testing.T, w *reconcilertest.World) { put(t, w, 3) },
	Change: func(t *testing.T, w *reconcilertest.World) { put(t, w, 5) },
	Check: func(t *testing.T, w *reconcilertest.World) {
		for o, err := range reconcilertest.Client[Spec, Status](w, "widgets").All(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if o.Status.Size != o.Spec.Size {
				t.Errorf("widgets/%s has size %d, want %d", o.Name, o.Status.Size, o.Spec.Size)
			}
		}
	},
}

func TestWidgetsSurviveEverything(t *testing.T) {
	reconcilertest.CrashEverywhere(t, widgets)
	reconcilertest.DisturbEverywhere(t, widgets, reconcilertest.Freeze, reconcilertest.Lose) // or all, without a list
	reconcilertest.RunSeeds(t, widgets, 5)
}

// TestDocsShowTheExamples sees that each block of code in the package's documentation stands in this file as well.
func TestDocsShowTheExamples(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	examples, blocks := read("example_test.go"), 0
	for block := range strings.SplitSeq(strings.ReplaceAll(read("doc.go"), "//\t", "\x00"), "\n//\n") {
		code, ok := strings.CutPrefix(block, "\x00")
		if !ok {
			continue
		}
		blocks++
		if code = strings.ReplaceAll(code, "\n\x00", "\n"); !strings.Contains(examples, code) {
			t.Errorf("example_test.go has nothing of this kind:\n%s", code)
		}
	}
	if blocks != 3 {
		t.Errorf("doc.go has %d blocks of code, want 3", blocks)
	}
}
