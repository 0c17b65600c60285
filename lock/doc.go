// Package lock holds locks on named things in a NATS KV bucket: leased, fenced, and recovered when their holder dies.
//
// A [Locker] keeps one lease for its whole process, its session: a key with a time to live that it renews. Locks belong
// to the session, so that a thousand of them cost no more renewals than one:
//
//	locker, err := lock.New(nc, lock.Config{Bucket: "locks"})
//	go locker.Run(ctx)                       // keeps the session; blocks
//	lk, err := locker.TryLock(ctx, "a")      // ErrHeld while another holder has it
//	work(lk.Context(), lk.Fence())
//	lk.Unlock()
//
// # What it guarantees
//
// At most one lock per key is granted at a time. If the session cannot be renewed (the link is cut, the process is
// frozen), the contexts of all its locks are cancelled with cause [ErrLost] at two thirds of the lease, counted from
// before the last renewal that succeeded, so before another holder can be granted one of them. Only timers decide that: it
// does not wait for the server, nor for a NATS client that blocks on a stalled link. A process that was frozen
// through that moment learns of it late; what it then writes carries a [Lock.Fence] lower than its successor's and must
// be refused by whatever stores it.
//
// The lock outlives its holder: the key of a dead session's lock stays until another Locker has passed the key to
// [Config.Recover], which makes sure that the unfinished work is done again, and only then frees it. So the bucket is a
// durable list of work under way. The next holder learns from [Lock.Predecessor] that the previous one died, or gave the
// lock up while writes of it were under way ([Lock.Abandon]).
//
// A session is dead when its key is gone, or was not renewed for a whole lease as another Locker saw it: a server that was
// killed brings keys back whose time to live never ends. The Lockers with the same [Config.Keys] share the recovery: each
// lock has one that is responsible, and the others recover what is still there some seconds later.
//
// # What is stored
//
// Keys "session.<id>" and "lock.<key>", with JSON values that name the holder; `nats kv get` and `nats kv ls` show them.
// A key "session.closed-<id>" says for a lease that a session ended with nothing left behind. A released lock leaves a
// delete marker for a second; if the next holder must be told of the previous one, for 15 minutes. Fences are KV
// revisions. The bucket starts at a revision taken from the clock (microseconds since 1970), so that fences go on growing
// when a bucket was lost and is made again.
package lock
