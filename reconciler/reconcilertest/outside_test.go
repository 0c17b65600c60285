package reconcilertest_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

// shelf is something outside of the World, with what its replicas have put there.
type shelf struct {
	mu     sync.Mutex
	sizes  map[string]int
	puts   int
	r      atomic.Pointer[reconcilertest.Replica] // the latest
	beside atomic.Int32                           // how many run beside a replica
}

func (s *shelf) put(ctx context.Context, name string, size int) error {
	_, err := reconcilertest.Request(ctx, s.r.Load(), http.MethodPut, "/shelf/"+name, func() (int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sizes[name] = size
		s.puts++
		return s.puts, nil
	})
	return err
}

// holds is what is on the shelf, and how often something was put there.
func (s *shelf) holds() (sizes map[string]int, puts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sizes, s.puts
}

// scenario is a widget whose size is put on the shelf.
func (s *shelf) scenario() reconcilertest.Scenario {
	put := func(t *testing.T, w *reconcilertest.World, size int) {
		_, err := reconcilertest.Client[spec, status](w, "widgets").Put(t.Context(), "x", spec{size})
		require.NoError(t, err)
	}
	return reconcilertest.Scenario{
		Setup: func() { s.sizes, s.puts = map[string]int{}, 0 },
		Controllers: func() []reconciler.Controller {
			return []reconciler.Controller{reconciler.For("widgets", func(ctx context.Context, o *widget) (reconciler.Result, error) {
				o.Status.Size = o.Spec.Size
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				return reconciler.Result{}, s.put(ctx, o.Name, o.Spec.Size)
			})}
		},
		Beside: func(r *reconcilertest.Replica) func(context.Context) {
			s.r.Store(r)
			return func(ctx context.Context) {
				s.beside.Add(1)
				defer s.beside.Add(-1)
				<-ctx.Done()
			}
		},
		Before: func(t *testing.T, w *reconcilertest.World) {
			put(t, w, 1)
			w.RunUntilSettled()
		},
		Do: func(t *testing.T, w *reconcilertest.World) { put(t, w, 2) },
		Check: func(t *testing.T, _ *reconcilertest.World) {
			sizes, _ := s.holds()
			require.Equal(t, map[string]int{"x": 2}, sizes)
			require.LessOrEqual(t, s.beside.Load(), int32(2))
			require.Positive(t, s.beside.Load())
		},
	}
}

// A replica dies right before and right after what a function does outside, too, and not before it has begun.
func TestCrashesOutside(t *testing.T) {
	s, places := &shelf{}, map[string]int{} // how often something was put on the shelf until the replica died
	scenario := s.scenario()
	do, check := scenario.Do, scenario.Check
	scenario.Do = func(t *testing.T, w *reconcilertest.World) {
		require.Empty(t, w.Timeline().Only(reconcilertest.StepTest).By("heir"))
		do(t, w)
	}
	scenario.Check = func(t *testing.T, w *reconcilertest.World) {
		for _, e := range w.Timeline().By("victim").Only(reconcilertest.StepTest) {
			if when, _, ok := strings.Cut(e.Reason, " its side effect"); ok && strings.HasSuffix(e.Reason, "PUT /shelf/x") {
				_, places[when] = s.holds()
			}
		}
		check(t, w)
	}
	reconcilertest.CrashEverywhere(t, scenario)
	require.Equal(t, map[string]int{"dies right before": 2, "dies right after": 3}, places)
	require.Zero(t, s.beside.Load(), "it ends with its replica")
}

// A request of a function to the outside is a message, with a fate of its own.
func TestMessagesToTheOutsideAreDisturbed(t *testing.T) {
	s := &shelf{}
	scenario := s.scenario()
	scenario.Only = func(m reconcilertest.Message) bool { return m.Subject == "PUT /shelf/x" }
	var mu sync.Mutex
	tried := map[string]int{}
	check := scenario.Check
	scenario.Check = func(t *testing.T, w *reconcilertest.World) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range w.Timeline().By("victim").Only(reconcilertest.StepTest) {
			if strings.HasPrefix(e.Reason, "is disturbed ") {
				_, tried[e.Reason] = s.holds()
			}
		}
		check(t, w)
	}
	reconcilertest.DisturbEverywhere(t, scenario, reconcilertest.Kill, reconcilertest.Lose, reconcilertest.Repeat, reconcilertest.Freeze, reconcilertest.Cut)
	require.Equal(t, map[string]int{
		"is disturbed (kill) at PUT .shelf.x sent 1":       3, // what it has sent arrives
		"is disturbed (kill) at PUT .shelf.x answered 1":   3,
		"is disturbed (lose) at PUT .shelf.x sent 1":       2,
		"is disturbed (lose) at PUT .shelf.x answered 1":   3,
		"is disturbed (repeat) at PUT .shelf.x sent 1":     3,
		"is disturbed (repeat) at PUT .shelf.x answered 1": 2,
		"is disturbed (freeze) at PUT .shelf.x sent 1":     3,
		"is disturbed (freeze) at PUT .shelf.x answered 1": 3,
		"is disturbed (cut) at PUT .shelf.x sent 1":        3, // its status is not stored
		"is disturbed (cut) at PUT .shelf.x answered 1":    3,
	}, tried)
}

// The outside is reached although the API is not, is not reached while the replica is frozen, and never after its death.
func TestLinkToTheOutside(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		s := &shelf{sizes: map[string]int{}}
		r := w.Start("a", reconciler.For("widgets", copySize))
		s.r.Store(r)
		r.Cut()
		require.NoError(t, s.put(t.Context(), "x", 1))
		r.Heal()
		r.Freeze()
		done := make(chan error, 1)
		go func() { done <- s.put(t.Context(), "x", 2) }()
		w.Advance(time.Minute)
		sizes, puts := s.holds()
		require.Equal(t, 1, puts)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.put(ctx, "x", 3), context.DeadlineExceeded)
		r.Thaw()
		require.NoError(t, <-done)
		require.Equal(t, 2, sizes["x"])
		_, err := reconcilertest.Request(t.Context(), r, http.MethodGet, "/shelf", func() (int, error) { return 0, errEmpty })
		require.ErrorIs(t, err, errEmpty)
		r.Kill()
		require.Error(t, s.put(t.Context(), "x", 4))
		require.Equal(t, 2, sizes["x"])
	})
}

var errEmpty = errors.New("the shelf is empty")

// A look that something beside the replica asks for has a cause, and its client sees the API as the replica does.
func TestLooksThatAreAskedForHaveACause(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		r := w.Start("a", reconciler.For("widgets", copySize))
		_, err := reconcilertest.Client[spec, status](w, "widgets").Create(t.Context(), "x", spec{1})
		require.NoError(t, err)
		for range 20 {
			w.RunUntilSettled()
			w.Advance(time.Millisecond)
			require.NoError(t, r.Notify(t.Context(), "widgets", "x", "the shelf says so"))
			synctest.Wait()
		}
		w.RunUntilSettled()
		require.Greater(t, len(w.Timeline().Runs()), 20)
		w.AssertPromises()

		get := func() error {
			resp, err := r.HTTP().Get("http://api.test/v1/objects/widgets/x")
			if err == nil {
				err = resp.Body.Close()
			}
			return err
		}
		require.NoError(t, get())
		r.Cut()
		require.Error(t, get())
	})
}
