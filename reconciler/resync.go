package reconciler

import (
	"context"
	"errors"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/random"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/lock"
)

const (
	// firstResync is how soon after the start the second search follows the first: whatever an outage swallowed while
	// the controllers were starting is found then.
	firstResync = time.Minute
	// owedFor is for how long an object must have been owed a reconcile before resync takes it for forgotten rather than
	// queued.
	owedFor = 30 * time.Second
	// maxLater is how many objects resync lets wait in the later lane; when so many do, it waits until half of them are
	// done, looking again every laterPause.
	maxLater, laterPause = 1000, time.Second
)

// resyncAlways looks for objects that are owed a reconcile and were forgotten: by a broker that lost data, say. All
// replicas keep the interval, jittered; a lock lets one of them search at a time. A search that failed is repeated soon,
// and one that was asked for is followed by a second: what had not been owed for long enough is found then.
func (k *kind) resyncAlways(ctx context.Context) {
	sleep(ctx, random.N(time.Second))
	pace := newResyncPace(k.r.cfg.Resync)
	for ctx.Err() == nil {
		err := k.resync(ctx)
		// Without a session nothing can be searched, and that is reported as the lock's own trouble.
		if err != nil && !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrNoSession) && ctx.Err() == nil {
			k.r.emit(Event{Step: StepTrouble, Kind: k.kind, Reason: "resync", Err: err})
		}
		select {
		case <-ctx.Done():
		case <-k.search:
			sleep(ctx, owedFor) // what was lost has been owed for that long then
			pace = newResyncPace(k.r.cfg.Resync)
		case <-time.After(pace.pause(err)):
		}
	}
}

// resyncPace says when the next search begins.
type resyncPace struct {
	usual, next time.Duration // the interval between searches, and that after the search under way
	failures    int           // in a row
}

func newResyncPace(usual time.Duration) resyncPace {
	return resyncPace{usual: usual, next: min(firstResync, usual)}
}

// pause is how long to wait after a search that ended with err.
func (p *resyncPace) pause(err error) time.Duration {
	wait := p.next - p.next/10 + random.N(p.next/5)
	switch {
	case err == nil:
		p.next, p.failures = p.usual, 0
	case errors.Is(err, lock.ErrHeld): // another replica searches
	default:
		p.failures++
		wait = min(wait, outage.Delay(p.failures))
	}
	return wait
}

// resyncSoon asks for a search in half a minute.
func (k *kind) resyncSoon() {
	select {
	case k.search <- struct{}{}:
	default:
	}
}

func (k *kind) resync(ctx context.Context) error {
	lk, err := k.r.locker.TryLock(ctx, subject.ResyncLockKey(k.kind))
	if err != nil {
		return err
	}
	defer lk.Unlock()
	ctx = lk.Context()
	room := 0
	for o, err := range k.api.At(apiclient.AsStored).Unsettled(ctx, owedFor) {
		if errors.Is(err, apiclient.ErrSealed) { // of this object alone, which could not be read
			k.r.emit(Event{Step: StepTrouble, Kind: k.kind, Reason: "resync", Err: err})
			continue
		}
		if err != nil {
			return err
		}
		if room == 0 {
			if room, err = k.roomForLater(ctx); err != nil {
				return err
			}
		}
		forgotten, err := k.forgotten(ctx, o)
		if outOfReach(err) {
			return err
		}
		if err != nil { // perhaps of this object alone: better once too often
			k.r.emit(Event{Step: StepTrouble, Kind: k.kind, Name: o.Name, Reason: "resync", Err: err})
		}
		if err == nil && !forgotten {
			continue
		}
		put, err := k.r.publisher.PublishLater(ctx, k.kind, o.Name, "resync")
		if err != nil {
			return err
		}
		if !put { // it has been waiting there
			continue
		}
		room--
		k.r.emit(Event{Step: StepResynced, Kind: k.kind, Name: o.Name, Generation: o.Generation})
	}
	return nil
}

// forgotten reports whether nothing stands for an object that was listed as owed a reconcile: no notification is queued,
// nobody works on it, and it is owed the same still. That is asked last: it may have been reconciled meanwhile.
func (k *kind) forgotten(ctx context.Context, listed *apiclient.Raw) (bool, error) {
	name := listed.Name
	queued, err := k.r.publisher.Queued(ctx, k.kind, name)
	if err != nil || queued {
		return false, err
	}
	held, err := k.r.locker.Held(ctx, k.lockKey(name))
	if err != nil || held {
		return false, err
	}
	o, err := k.api.Get(ctx, name)
	if errors.Is(err, apiclient.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return owedStill(listed, o, time.Now()), nil
}

// owedStill reports whether an object is owed the same as when it was listed.
func owedStill(listed, o *apiclient.Raw, now time.Time) bool {
	then, _ := listed.OwedSince(now)
	since, owed := o.OwedSince(now)
	return owed && since.Equal(then)
}

// roomForLater paces the search by the speed at which its finds are worked off: it waits for room, and says for how many.
func (k *kind) roomForLater(ctx context.Context) (int, error) {
	for {
		n, err := k.consumer.Later(ctx)
		if err != nil {
			return 0, err
		}
		if n <= maxLater/2 {
			return maxLater - int(n), nil
		}
		sleep(ctx, laterPause)
	}
}
