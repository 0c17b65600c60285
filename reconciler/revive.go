package reconciler

import (
	"context"
	"time"

	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/notify"
)

const (
	// reviveEvery is how often a replica looks for notifications that the broker holds and does not deliver.
	reviveEvery = time.Minute
	// reviveTick is how soon it does after its connection has been away: that is when the broker may have been killed.
	reviveTick = 2 * time.Second
	// reviveAgain is when it does once more after that: what may have been in flight at the first look is not any more.
	reviveAgain = notify.AckWait + time.Second
)

// reviveAlways has the broker deliver what it brought back. See [notify.Consumer.Revive]. Every replica looks: a look
// costs less than to agree with the others who does.
func (k *kind) reviveAlways(ctx context.Context) {
	var seen uint64
	due := time.Now().Add(reviveEvery)
	for sleep(ctx, reviveTick); ctx.Err() == nil; sleep(ctx, reviveTick) {
		connects := k.r.cfg.NATS.Stats().Reconnects
		if !k.r.cfg.NATS.IsConnected() || connects == seen && time.Now().Before(due) {
			continue
		}
		n, err := k.consumer.Revive(ctx, k.held)
		if n > 0 {
			k.r.cfg.Logger.Info("queued again what the broker held and did not deliver", "kind", k.kind, "count", n)
		}
		due = time.Now().Add(reviveEvery)
		switch {
		case err == nil && connects != seen:
			seen, due = connects, time.Now().Add(reviveAgain)
		case err != nil && ctx.Err() == nil:
			k.r.emit(Event{Step: StepTrouble, Kind: k.kind, Reason: "revive", Err: err})
		}
	}
}

func (k *kind) held(ctx context.Context, kind, name string) (bool, error) {
	return k.r.locker.Held(ctx, subject.LockKey(kind, name))
}
