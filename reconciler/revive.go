package reconciler

import (
	"context"
	"time"
)

// reviveEvery is how often a replica looks for notifications that the broker holds and does not deliver, and reviveTick how
// soon it does after its connection has been away: that is when the broker may have been killed.
const reviveEvery, reviveTick = time.Minute, 2 * time.Second

// reviveAlways has the broker deliver what it brought back. See [notify.Consumer.Revive].
func (k *kind) reviveAlways(ctx context.Context) {
	var seen uint64
	looked := time.Now()
	for sleep(ctx, reviveTick); ctx.Err() == nil; sleep(ctx, reviveTick) {
		connects := k.r.cfg.NATS.Stats().Reconnects
		if connects == seen && time.Since(looked) < reviveEvery || !k.r.cfg.NATS.IsConnected() {
			continue
		}
		n, err := k.consumer.Revive(ctx)
		if n > 0 {
			k.r.cfg.Logger.Info("queued again what the broker held and did not deliver", "kind", k.kind, "count", n)
		}
		looked = time.Now()
		if err == nil {
			seen = connects
		} else if ctx.Err() == nil {
			k.r.emit(Event{Step: StepTrouble, Kind: k.kind, Reason: "revive", Err: err})
		}
	}
}
