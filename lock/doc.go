// Package lock holds locks on named things in a NATS KV bucket: leased, fenced, and recovered when their holder dies.
//
// A [Locker] keeps one lease for its whole process, its session: a key with a time to live that it renews. Locks belong
// to the session, so that a thousand of them cost no more renewals than one:
//
//	locker, err := lock.New(nc, lock.Config{Bucket: "locks"})
//	go locker.Run(ctx)                       // keeps the session; blocks
//	lk, err := locker.TryLock(ctx, "a")      // ErrHeld while somebody else has it
//	work(lk.Context(), lk.Fence())
//	lk.Unlock()
//
// # What it guarantees
//
// At most one lock per key is granted at a time. If the session cannot be renewed (the link is cut, the process is
// frozen), the contexts of all its locks are cancelled with cause [ErrLost] at two thirds of the lease, counted from
// before the last renewal that succeeded, so before anybody else can be granted one of them. A process that was frozen
// through that moment learns of it late; what it then writes carries a [Lock.Fence] lower than its successor's and must
// be refused by whoever stores it.
//
// The lock outlives its holder: the key of a dead session's lock stays until another Locker has passed the key to
// [Config.Recover], which makes sure that the unfinished work is done again, and only then frees it. So the bucket is a
// durable list of work under way.
//
// # What is stored
//
// Keys "session.<id>" and "lock.<key>", with JSON values that name the holder; `nats kv get` and `nats kv ls` show them.
// A released lock leaves a delete marker for a second. Fences are KV revisions. The bucket starts at a revision taken
// from the clock (microseconds since 1970), so that fences go on growing when a bucket was lost and is made again.
package lock
