// Package reconciler runs controllers: one typed function per kind of object, called whenever an object has to be looked
// at, on any number of replicas, for each object on one at a time.
//
//	func reconcile(ctx context.Context, w *apiclient.Object[Spec, Status]) (reconciler.Result, error) {
//		w.Status.Size = w.Spec.Size
//		return reconciler.Result{}, nil
//	}
//
//	err := reconciler.Run(ctx, reconciler.Config{NATS: nc, API: url}, reconciler.For("widgets", reconcile))
//
// # The function
//
// It receives the object as it is now, not what changed, and makes the world match the spec. It may be called again at
// any time, also after it succeeded and also after it was killed half-way: it must be idempotent. It writes what it
// found into w.Status in place. What it returns decides what is next:
//
//   - no error: the object is Ready. With [Result.RequeueAfter] it is looked at again then.
//   - an error: Retrying, with exponential backoff, or after RequeueAfter if that is set. A panic is an error too, and so
//     is a RequeueAfter below zero.
//   - [Terminal](err): Stalled, not tried again until the spec changes or somebody asks for a retry.
//   - [Throttled](err, after): Waiting, not a failure, looked at again after that time.
//
// At the deadline of the call ([Controller].Timeout) ctx ends, and what the function returns counts. A function that does not
// return then is reported (a log line with its stack, the event Overdue, [StepOverdue]); its object stays locked and shows as
// Reconciling since when, and after the grace period its worker goes to other objects.
//
// The status is stored after the call in either case; what the function does to the spec or the labels is not. ctx ends when
// the deadline passes, when the process is stopped and the grace period is over, or when the lock on the object is lost;
// context.Cause says which. It does not end when the object is changed or deleted meanwhile: that is the next call's.
// [Current] returns the attempt number, the fence and an idempotency key for external calls; [Log] the logger.
//
// [Checkpoint] stores a status during the call, so that a crash after it does not forget what was about to be made.
//
// What the function makes elsewhere should be named after the object's UID, so that a call which is repeated, and the
// cleanup, find it also when an earlier call died before its status was stored. To look at an object because something
// else has changed, a watch or a poller calls [Runner.Notify]; a function does so with [WhenStored], so that who looks sees what
// it came to. Other objects are read with a client of one's own (apiclient.New).
//
// # What is promised
//
// Every change of a spec is followed by a reconcile that started after it. No two reconciles of an object run at once, if
// functions heed their context: a holder that is cut off has its context cancelled before another may start, and its late
// writes are refused. (A broker that loses data is the exception; DESIGN.md has it under Fences, and a table of outages.)
// When a process dies, its objects are taken up elsewhere within 15 seconds at the defaults, with up to 10,000 locks and 2 ms
// to NATS. An object that fails, sleeps or runs for an hour delays no other. Cancelling the context of Run is a clean stop:
// running functions finish.
//
// # Where things are
//
// The path of one notification, top to bottom, is process.go. Package reconcilertest runs functions in tests, with a
// real broker in virtual time and no network. The record on every object (apiclient.Reconciliation) says how it stands
// and why; [Config.Logger], by default stderr, gets what happens, and [Config.Observer] is told of each step.
//
// # Trust
//
// The kinds of one prefix trust each other: rights to publish one subject of a stream with schedules and rollup reach the
// whole stream, and every controller may end the sessions of others. Separate trust needs separate prefixes ([Permissions]).
package reconciler
