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
// long. It is logged when the test fails. [World.AssertOneWriter] and [World.AssertConverged] check the promises.
//
// # What goes wrong
//
// [Replica.Kill], [Replica.Stop], [Replica.Cut], [Replica.Heal], [Replica.Freeze] and [Replica.Thaw] do to one replica
// what happens to processes and their networks. [World.Fail] makes requests to the API fail, hang, or take effect and
// lose their answer; [World.FailBroker] does the same to messages to the broker. [World.StopBroker] and
// [World.StartBroker] lose all that the broker stored. [CrashEverywhere] runs a scenario once for each side effect of a
// replica, and kills it there.
//
// # One call
//
// [Call] calls a function on one object, without a broker or a World, and says what would be stored.
package reconcilertest
