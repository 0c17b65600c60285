// Package reconcilertest runs controllers in tests: with a real nats-server and no network, in virtual time, so that an
// hour of backoff takes milliseconds.
//
// # A test
//
//	func TestWidgetGetsItsSize(t *testing.T) {
//		reconcilertest.Run(t, func(t *testing.T, w *reconcilertest.World) {
//			w.Start("a", reconciler.For("widgets", reconcile))
//			widgets := reconcilertest.Client[Spec, Status](w, "widgets")
//			if _, err := widgets.Create(t.Context(), "blue", Spec{Size: 3}); err != nil {
//				t.Fatal(err)
//			}
//			w.RunUntilSettled()
//			w.AssertPromises()
//			blue, err := widgets.Get(t.Context(), "blue")
//			if err != nil || blue.Status.Size != 3 {
//				t.Fatal(blue, err)
//			}
//		})
//	}
//
// [World.Start] starts replicas of the controller, as many as you like. [World.Advance] lets time pass;
// [World.RunUntilIdle] and [World.RunUntilSettled] let as much pass as is needed.
//
// # What went on
//
// [World.Timeline] has every event of every replica: what was locked by whom, attempted, patched, requeued after how
// long. It is logged when the test fails. [World.AssertPromises] checks, from what the API served and the broker holds, that
// nothing was lost, that no two calls overlapped and no late status was stored, that no call came without a cause, and that
// nothing is left behind.
//
// # What goes wrong
//
// [Replica.Kill], [Replica.Stop], [Replica.Cut], [Replica.Heal], [Replica.Freeze] and [Replica.Thaw] do to one replica
// what happens to processes and their networks. [World.Fail] makes requests to the API fail, hang, or take effect and
// lose their answer; [World.FailBroker] does the same to messages to the broker. [World.StopBroker] and
// [World.StartBroker] lose all that the broker stored. [World.SetLatency] lets each message take a time of its own, and
// [World.SetClock] gives a replica a clock that is wrong. [World.DisableResync] keeps the search for missed objects from
// hiding that one was lost.
//
// # Everything that can go wrong, everywhere
//
// For a function of your own, say once what happens to its objects and what must come of it:
//
//	var widgets = reconcilertest.Scenario{
//		Controllers: func() []reconciler.Controller {
//			return []reconciler.Controller{reconciler.For("widgets", reconcile)}
//		},
//		Do:     func(t *testing.T, w *reconcilertest.World) { put(t, w, 3) },
//		Change: func(t *testing.T, w *reconcilertest.World) { put(t, w, 5) },
//		Check: func(t *testing.T, w *reconcilertest.World) {
//			for o, err := range reconcilertest.Client[Spec, Status](w, "widgets").All(t.Context()) {
//				if err != nil {
//					t.Fatal(err)
//				}
//				if o.Status.Size != o.Spec.Size {
//					t.Errorf("widgets/%s has size %d, want %d", o.Name, o.Status.Size, o.Spec.Size)
//				}
//			}
//		},
//	}
//
// Then let everything go wrong:
//
//	func TestWidgetsSurviveEverything(t *testing.T) {
//		reconcilertest.CrashEverywhere(t, widgets)
//		reconcilertest.DisturbEverywhere(t, widgets, reconcilertest.Freeze, reconcilertest.Lose) // or all, without a list
//		reconcilertest.RunSeeds(t, widgets, 5)
//	}
//
// [CrashEverywhere] kills the replica before and after each of its side effects. [DisturbEverywhere] runs the scenario once for
// each message of a replica and for each of fourteen things that may happen while it is on its way: the object changes or is
// deleted, the replica dies or freezes, the message is lost or comes late, the broker restarts. [RunSeeds] lets it all happen at
// once, with random latencies, clocks and faults. Each run ends with [World.AssertPromises] and with Scenario.Check.
//
// What a function does outside of the World goes wrong, too, if it is sent with [Request] to something that the test keeps in memory,
// a cluster, say; Scenario.Beside runs what watches that, for each replica.
//
// # One call
//
// [Call] calls a function on one object, without a broker or a World, and says what would be stored.
package reconcilertest
