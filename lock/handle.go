package lock

import (
	"context"
	"fmt"
	"sync"
)

// Lock is a lock that was granted. Its methods are safe for concurrent use.
type Lock struct {
	locker      *Locker
	s           *session
	key         string
	fence       uint64
	nonce       uint64
	predecessor *Predecessor
	ctx         context.Context //nolint:containedctx // it is the lock's lifetime, which is what the type is about
	cancel      context.CancelCauseFunc
	once        sync.Once
}

// Predecessor is a former holder whose writes may still arrive: it died, or said so by Abandon.
type Predecessor struct {
	// Holder is the Config.Holder of its process.
	Holder string `json:"holder"`
	// Died says that its session ended with the lock held. Otherwise it abandoned the lock.
	Died bool `json:"died"`
}

// Key is the key that is locked.
func (k *Lock) Key() string { return k.key }

// Fence is the fencing token: the KV revision at which the lock was taken. Later locks have higher ones.
func (k *Lock) Fence() uint64 { return k.fence }

// Context is cancelled when the lock is lost or released, with the cause ErrLost or ErrReleased. Losing it depends on
// timers of this process only, not on the connection.
func (k *Lock) Context() context.Context { return k.ctx }

// Held ends when the lock is lost, with the cause ErrLost, and only then: also when the context that the lock was taken
// with has ended. It is for clean-up that must not go on when the lock may have passed to another holder.
func (k *Lock) Held() context.Context { return k.s.held }

// Lost reports whether the lock may have passed to another holder. It asks the clocks, not the context, so it is right
// also in the first moment after a freeze.
func (k *Lock) Lost() bool { return !k.s.valid() }

// Predecessor is the holder before this one, if writes of it may still arrive. It is nil if that one released the lock
// by Unlock, if there was none, or if the lock was free for longer than 15 minutes.
func (k *Lock) Predecessor() *Predecessor { return k.predecessor }

// Confirm asks the leader of the bucket whether the key still holds exactly this lock. It fails with [ErrLost] if it does
// not: the lock has passed on, or the bucket was restored from an older copy. Other errors mean that it is unknown.
func (k *Lock) Confirm(ctx context.Context) error {
	found, err := k.locker.look(ctx, k.key)
	switch {
	case err != nil:
		return fmt.Errorf("confirm: %w", err)
	case found.entry == nil:
		return fmt.Errorf("confirm lock %s: it is not stored: %w", k.key, ErrLost)
	case found.entry.Session != k.s.id || found.entry.Nonce != k.nonce || found.revision != k.fence:
		return fmt.Errorf("confirm lock %s: it is held by %s at revision %d, not %d: %w",
			k.key, found.entry.Holder, found.revision, k.fence, ErrLost)
	}
	return nil
}

// Unlock releases the lock, by its revision, so that a lock that has passed on is left alone. It says that no write of
// this holder is under way any more; else call Abandon. It does not use the connection: the release is sent, and
// repeated until it is confirmed, by the Locker's Run. Calling it again does nothing.
//
// A lock that is lost is not released: what its holder left behind is unknown, so it goes through Config.Recover.
func (k *Lock) Unlock() { k.unlock(nil) }

// Abandon is Unlock by a holder whose writes may still arrive. The next holder learns of it by Predecessor.
func (k *Lock) Abandon() { k.unlock(&Predecessor{Holder: k.locker.cfg.Holder}) }

func (k *Lock) unlock(p *Predecessor) {
	k.once.Do(func() {
		held := k.s.forget(k)
		k.cancel(ErrReleased)
		if held {
			k.locker.releases.add(&release{subject: k.locker.kv + "lock." + k.key, fence: k.fence, s: k.s, predecessor: p})
		}
	})
}
