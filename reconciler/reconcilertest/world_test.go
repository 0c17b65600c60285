package reconcilertest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/reconciler"
	"github.com/evenkeel-io/evenkeel/reconciler/reconcilertest"
)

type spec struct{ Size int }

type status struct{ Size int }

type widget = apiclient.Object[spec, status]

func copySize(_ context.Context, w *widget) (reconciler.Result, error) {
	w.Status.Size = w.Spec.Size
	return reconciler.Result{}, nil
}

// slow works for as many seconds as the size, unless its context ends.
func slow(ctx context.Context, w *widget) (reconciler.Result, error) {
	select {
	case <-ctx.Done():
		return reconciler.Result{}, context.Cause(ctx)
	case <-time.After(time.Duration(w.Spec.Size) * time.Second):
	}
	w.Status.Size = w.Spec.Size
	return reconciler.Result{}, nil
}

func TestHoursOfBackoffTakeMoments(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		failures := 20
		w.Start("a", reconciler.For("widgets", func(ctx context.Context, o *widget) (reconciler.Result, error) {
			if failures--; failures >= 0 {
				return reconciler.Result{}, errors.New("not yet")
			}
			return copySize(ctx, o)
		}))
		_, err := reconcilertest.Client[spec, status](w, "widgets").Create(t.Context(), "x", spec{1})
		require.NoError(t, err)
		began := time.Now()
		w.RunUntilSettled()
		require.Greater(t, time.Since(began), 5*time.Minute)
		require.Len(t, w.Timeline().Requeues(), 20)
		w.AssertConverged()
	})
}

func TestKilledReplicaIsTakenOverWithin15Seconds(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		a := w.Start("a", reconciler.For("widgets", slow))
		_, err := reconcilertest.Client[spec, status](w, "widgets").Create(t.Context(), "x", spec{30})
		require.NoError(t, err)
		w.Advance(5 * time.Second)
		w.Start("b", reconciler.For("widgets", slow))
		a.Kill()
		killed := time.Now()
		w.RunUntilSettled()
		runs := w.Timeline().Runs()
		require.Len(t, runs, 2)
		require.Equal(t, "b", runs[1].Replica)
		require.LessOrEqual(t, runs[1].Start.Sub(killed), 15*time.Second)
		w.AssertConverged()
		w.AssertOneWriter()
	})
}

func TestCutReplicaStopsBeforeAnotherStarts(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		a := w.Start("a", reconciler.For("widgets", slow))
		_, err := reconcilertest.Client[spec, status](w, "widgets").Create(t.Context(), "x", spec{30})
		require.NoError(t, err)
		w.Advance(5 * time.Second)
		w.Start("b", reconciler.For("widgets", slow))
		a.Cut()
		w.Advance(20 * time.Second)
		a.Heal()
		w.RunUntilSettled()
		runs := w.Timeline().Runs()
		require.ErrorContains(t, runs[0].Err, "lock lost")
		require.Equal(t, "b", runs[1].Replica)
		require.Len(t, runs, 2)
		w.AssertConverged()
		w.AssertOneWriter()
	})
}

func TestFrozenReplicasLateStatusIsRefused(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		stubborn := func(_ context.Context, o *widget) (reconciler.Result, error) { // heeds no context
			time.Sleep(time.Duration(o.Spec.Size) * time.Second)
			o.Status.Size = 100 + o.Spec.Size
			return reconciler.Result{}, nil
		}
		a := w.Start("a", reconciler.For("widgets", stubborn))
		widgets := reconcilertest.Client[spec, status](w, "widgets")
		_, err := widgets.Create(t.Context(), "x", spec{5})
		require.NoError(t, err)
		w.Advance(4500 * time.Millisecond)
		a.Freeze() // it finishes while frozen, before its lease ends: its status is on the way
		w.Advance(2 * time.Second)
		w.Start("b", reconciler.For("widgets", copySize))
		w.Advance(20 * time.Second)
		a.Thaw()
		w.RunUntilSettled()
		x, err := widgets.Get(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, 5, x.Status.Size)
		require.NotEmpty(t, w.Timeline().By("a").Only(reconciler.StepFenced, reconciler.StepLost))
	})
}

func TestLostBrokerIsRefilledFromTheAPI(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		w.Start("a", reconciler.For("widgets", slow))
		w.Start("b", reconciler.For("widgets", slow))
		widgets := reconcilertest.Client[spec, status](w, "widgets")
		for _, name := range []string{"one", "two", "three"} {
			_, err := widgets.Create(t.Context(), name, spec{8})
			require.NoError(t, err)
		}
		w.Advance(time.Second)
		w.StopBroker()
		_, err := widgets.Create(t.Context(), "four", spec{1})
		require.NoError(t, err)
		w.Advance(30 * time.Second)
		w.StartBroker()
		began := time.Now()
		w.RunUntilSettled()
		require.LessOrEqual(t, time.Since(began), 2*time.Minute)
		w.AssertConverged()
		w.AssertOneWriter()
	})
}

func TestLostAnswerIsNotALostStatus(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		w.Fail(reconcilertest.Fault{Method: "PATCH", Lose: true, Times: 2})
		w.Start("a", reconciler.For("widgets", copySize))
		_, err := reconcilertest.Client[spec, status](w, "widgets").Create(t.Context(), "x", spec{5})
		require.NoError(t, err)
		w.RunUntilSettled()
		w.AssertConverged()
		require.Len(t, w.Timeline().Runs(), 1)
	})
}

func TestTimelineReads(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		a := w.Start("a", reconciler.For("widgets", copySize))
		_, err := reconcilertest.Client[spec, status](w, "widgets").Create(t.Context(), "x", spec{5})
		require.NoError(t, err)
		w.RunUntilSettled()
		require.Equal(t, []reconciler.Step{
			reconciler.StepLocked, reconciler.StepStarted, reconciler.StepFinished, reconciler.StepPatched, reconciler.StepReleased,
		}, w.Timeline().Of("widgets", "x").Steps())
		require.NoError(t, a.Stop())
		require.Contains(t, w.Timeline().String(), "started     widgets/x attempt 1")
	})
}

func TestCrashEverywhere(t *testing.T) {
	places := map[string]bool{} // of death, as the timeline names them
	deaths := reconcilertest.CrashEverywhere(t, reconcilertest.Scenario{
		Controllers: func() []reconciler.Controller {
			return []reconciler.Controller{reconciler.ForWithCleanup("widgets", copySize, copySize)}
		},
		Do: func(t *testing.T, w *reconcilertest.World) {
			widgets := reconcilertest.Client[spec, status](w, "widgets")
			_, err := widgets.Create(t.Context(), "x", spec{1})
			require.NoError(t, err)
			_, err = widgets.Put(t.Context(), "x", spec{2})
			require.NoError(t, err)
		},
		Check: func(_ *testing.T, w *reconcilertest.World) {
			for _, e := range w.Timeline().By("victim").Only(reconcilertest.StepTest) {
				if strings.HasPrefix(e.Reason, "dies right ") {
					places[e.Reason] = true
				}
			}
		},
	})
	t.Logf("%d places of death", deaths)
	require.Greater(t, deaths, 8)
	require.Len(t, places, deaths)
	require.Contains(t, places, "dies right before its side effect 1, $KV.evenkeel_locks.lock.widgets.29.x")
}

// Each message of a reconcile to the broker, and each answer, may get lost: the object converges all the same, and soon.
func TestLostMessagesToTheBrokerLoseNothing(t *testing.T) {
	for _, subject := range []string{"$KV.", "$JS.ACK.", "$JS.API.CONSUMER.MSG.NEXT.", ".s.widgets."} {
		for _, lose := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s answer lost %v", subject, lose), func(t *testing.T) {
				reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
					failed := false
					w.Start("a", reconciler.For("widgets", func(ctx context.Context, o *widget) (reconciler.Result, error) {
						if !failed {
							failed = true
							return reconciler.Result{}, errors.New("once")
						}
						return copySize(ctx, o)
					}))
					w.Advance(1500 * time.Millisecond)
					w.FailBroker(reconcilertest.BrokerFault{Subject: subject, Times: 1, Lose: lose})
					_, err := reconcilertest.Client[spec, status](w, "widgets").Create(t.Context(), "x", spec{5})
					require.NoError(t, err)
					began := time.Now()
					w.RunUntilSettled()
					require.Less(t, time.Since(began), 30*time.Second)
					require.Contains(t, w.Timeline().String(), "loses")
					w.AssertConverged()
					w.AssertOneWriter()
				})
			})
		}
	}
}

// A message takes the time that it is given, those of one subject keep their order, and what has been sent arrives although
// its sender dies.
func TestMessagesTakeTime(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		var seen []reconcilertest.Message
		var mu sync.Mutex
		slow := func(m reconcilertest.Message) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(m.Subject, "PATCH ") {
				seen = append(seen, m)
				return 7 * time.Second
			}
			return time.Millisecond
		}
		a := w.Start("a", reconciler.For("widgets", copySize))
		w.Advance(5 * time.Second)
		w.SetLatency(slow)
		widgets := reconcilertest.Client[spec, status](w, "widgets")
		_, err := widgets.Create(t.Context(), "x", spec{Size: 3})
		require.NoError(t, err)
		began := time.Now()
		size := func() int {
			o, err := widgets.Get(t.Context(), "x")
			require.NoError(t, err)
			return o.Status.Size
		}
		w.Advance(6900 * time.Millisecond)
		require.Zero(t, size())
		a.Kill()
		w.Advance(7200*time.Millisecond - time.Since(began))
		require.Equal(t, 3, size())
		require.Equal(t, reconcilertest.Message{Replica: "a", Subject: "PATCH /v1/objects/widgets/x/status", Nth: 1}, seen[0])
	})
}

// Replicas whose clocks are minutes apart reconcile and requeue as if they were not.
func TestReplicasHaveClocksOfTheirOwn(t *testing.T) {
	reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
		w.SetClock("fast", reconcilertest.Clock{Ahead: 3 * time.Minute, Drift: 0.001})
		w.SetClock("slow", reconcilertest.Clock{Ahead: -3 * time.Minute, Drift: -0.001})
		var calls atomic.Int64
		f := func(ctx context.Context, o *widget) (reconciler.Result, error) {
			if calls.Add(1)%2 == 1 {
				return reconciler.Result{RequeueAfter: time.Minute}, nil
			}
			return copySize(ctx, o)
		}
		w.SetLatency(func(m reconcilertest.Message) time.Duration { // the look for dead sessions would show the clock, too
			if m.Answer && strings.HasPrefix(m.Subject, "$JS.API.STREAM.INFO.KV_") {
				return 4 * time.Second
			}
			return 0
		})
		widgets := reconcilertest.Client[spec, status](w, "widgets")
		for i, name := range []string{"fast", "slow"} {
			r := w.Start(name, reconciler.For("widgets", f))
			w.Advance(5 * time.Second) // until the bucket has been looked at, and its session has begun
			began := time.Now()
			_, err := widgets.Put(t.Context(), "x", spec{Size: i + 1})
			require.NoError(t, err)
			w.Advance(59 * time.Second)
			require.EqualValues(t, 2*i+1, calls.Load())
			w.Advance(3 * time.Second)
			require.EqualValues(t, 2*i+2, calls.Load())
			o, err := widgets.Get(t.Context(), "x")
			require.NoError(t, err)
			require.WithinDuration(t, began.Add(time.Minute), *o.Reconciliation.LastAttempt, 2*time.Second)
			require.NoError(t, r.Stop())
		}
		w.AssertConverged()
		w.AssertOneWriter()
	})
}

// The times of RandomLatency depend on the seed and the message, and some are longer than every timeout.
func TestRandomLatencyDependsOnSeedAndMessage(t *testing.T) {
	one, two := reconcilertest.RandomLatency(1), reconcilertest.RandomLatency(2)
	long, same := 0, 0
	for i := range 10_000 {
		m := reconcilertest.Message{Replica: "a", Subject: "s", Nth: i}
		d := one(m)
		require.Equal(t, d, one(m))
		if d == two(m) {
			same++
		}
		if d > 12*time.Second {
			long++
		}
	}
	require.Less(t, same, 100)
	require.InDelta(t, 20, long, 18)
}

// A function that makes two things elsewhere, with a cleanup: whatever happens in the middle of a step, they are made as the
// spec says, and are gone with the object.
func TestDisturbEverywhere(t *testing.T) {
	var mu sync.Mutex
	made := map[string]int{} // guarded by mu
	reconcilertest.DisturbEverywhere(t, reconcilertest.Scenario{
		Setup: func() { clear(made) },
		Controllers: func() []reconciler.Controller {
			return []reconciler.Controller{reconciler.ForWithCleanup("widgets",
				func(_ context.Context, o *widget) (reconciler.Result, error) {
					mu.Lock()
					defer mu.Unlock()
					made[o.Name], o.Status.Size = o.Spec.Size, o.Spec.Size
					return reconciler.Result{}, nil
				},
				func(_ context.Context, o *widget) (reconciler.Result, error) {
					mu.Lock()
					defer mu.Unlock()
					delete(made, o.Name)
					return reconciler.Result{}, nil
				})}
		},
		Do: func(t *testing.T, w *reconcilertest.World) {
			_, err := reconcilertest.Client[spec, status](w, "widgets").Create(t.Context(), "x", spec{1})
			require.NoError(t, err)
		},
		Change: func(t *testing.T, w *reconcilertest.World) {
			_, err := reconcilertest.Client[spec, status](w, "widgets").Put(t.Context(), "x", spec{2})
			require.NoError(t, err)
		},
		Check: func(t *testing.T, w *reconcilertest.World) {
			want := map[string]int{}
			for o, err := range reconcilertest.Client[spec, status](w, "widgets").All(t.Context()) {
				require.NoError(t, err)
				want[o.Name] = o.Spec.Size
				require.Equal(t, o.Spec, spec(o.Status))
			}
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, want, made)
		},
	}, reconcilertest.Change, reconcilertest.Delete, reconcilertest.Kill)
}
