package reconcilertest

import (
	"context"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// DisableResync keeps replicas from searching the API for missed objects of some kinds, which they do after a start, after a
// reconnect and every ten minutes. A search makes up for a change that was lost, and so hides that it was: without it the
// object stays owed a reconcile, and [World.RunUntilIdle] fails. enable lets replicas search again.
//
// It holds the lock under which replicas search. [World.StopBroker] loses that lock with everything else, so after it
// replicas search: nothing else finds what a broker lost.
func (w *World) DisableResync(kinds ...string) (enable func()) {
	w.t.Helper()
	locker, err := w.resyncLocker()
	if err != nil {
		w.t.Fatalf("disable resync: %v", err)
	}
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return w.noResync[kind] != nil })
	for _, kind := range kinds {
		w.until("able to disable resync", func() string { // the session begins, and a search under way ends
			lk, err := locker.TryLock(w.living, subject.ResyncLockKey(kind))
			if err != nil {
				return err.Error()
			}
			w.noResync[kind] = lk
			return ""
		})
		w.note("", "resync of "+kind+" is disabled")
	}
	return func() {
		for _, kind := range kinds {
			if lk := w.noResync[kind]; lk != nil {
				delete(w.noResync, kind)
				lk.Unlock()
				w.note("", "resync of "+kind+" is enabled")
			}
		}
	}
}

// resyncLocker is the World's own locker, which runs from its first use to the end of the World.
func (w *World) resyncLocker() (*lock.Locker, error) {
	if w.locker != nil {
		return w.locker, nil
	}
	js, err := jetstream.New(w.nc)
	if err != nil {
		return nil, err
	}
	bucket := subject.Names{Prefix: notify.DefaultPrefix}.LockBucket()
	if err := lock.Ensure(w.living, js, bucket, 1, w.storage); err != nil {
		return nil, err
	}
	if w.locker, err = lock.New(w.nc, lock.Config{Bucket: bucket, Holder: "the test"}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(w.living)
	var running sync.WaitGroup
	running.Go(func() { _ = w.locker.Run(ctx) }) // ends with ctx
	w.ends = append(w.ends, func() { cancel(); running.Wait() })
	return w.locker, nil
}

// kindsOf names what the controllers reconcile.
func kindsOf(controllers []reconciler.Controller) (kinds []string) {
	for _, c := range controllers {
		kinds = append(kinds, c.Kind())
	}
	return kinds
}
