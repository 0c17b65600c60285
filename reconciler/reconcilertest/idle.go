package reconcilertest

import (
	"context"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Advance lets virtual time pass; everything that is due in it happens.
func (w *World) Advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// idleLimit bounds RunUntilIdle, in virtual time.
const idleLimit = 2 * time.Hour

// RunUntilIdle lets time pass until no object is owed a reconcile and no function runs. Objects that sleep, because they
// failed or asked to be looked at later, may go on sleeping. It fails the test if that takes two hours.
func (w *World) RunUntilIdle() {
	w.t.Helper()
	w.until("idle", w.idle)
}

// RunUntilSettled is RunUntilIdle that also waits for objects that sleep, until none of them is Retrying or Waiting.
func (w *World) RunUntilSettled() {
	w.t.Helper()
	w.until("settled", w.unsettled)
}

// unsettled says what keeps the World from being settled, or nothing.
func (w *World) unsettled() string {
	if why := w.idle(); why != "" {
		return why
	}
	for _, o := range w.objects() {
		if s := o.Reconciliation.State; s == apiclient.StateRetrying || s == apiclient.StateWaiting {
			return fmt.Sprintf("%s/%s is %s: %s", o.Kind, o.Name, s, o.Reconciliation.LastError)
		}
		if o.DeletedAt != nil && o.Reconciliation.NextAttempt != nil {
			return fmt.Sprintf("%s/%s is to be cleaned up again", o.Kind, o.Name)
		}
	}
	return ""
}

func (w *World) until(what string, check func() string) {
	w.t.Helper()
	limit := time.Now().Add(idleLimit)
	for step := time.Millisecond; ; step = min(2*step, time.Second) {
		synctest.Wait()
		why := check()
		if why == "" {
			return
		}
		if time.Now().After(limit) {
			w.t.Fatalf("not %s after %s of virtual time: %s", what, idleLimit, why)
		}
		w.Advance(step)
	}
}

// idle says what keeps the World from being idle, or nothing.
func (w *World) idle() string {
	if n := w.memory.Dirty(); n > 0 {
		return fmt.Sprintf("%d changes wait to be notified", n)
	}
	for _, run := range w.Timeline().Runs() {
		if run.End.IsZero() {
			return fmt.Sprintf("%s/%s has been reconciled by %s for %s", run.Kind, run.Name, run.Replica, time.Since(run.Start))
		}
	}
	for _, o := range w.objects() {
		if since, owed := o.OwedSince(time.Now()); owed && !w.sleeps(o) {
			why := fmt.Sprintf("%s/%s has been owed a reconcile since %s", o.Kind, o.Name, since.Format(time.TimeOnly))
			if !w.served(o.Kind) {
				why += fmt.Sprintf(", and no replica that lives has a controller of %s", o.Kind)
			}
			return why
		}
	}
	return ""
}

// served reports whether a replica that lives has a controller of the kind.
func (w *World) served(kind string) bool {
	return slices.ContainsFunc(w.replicas, func(r *Replica) bool { return !r.ended() && slices.Contains(r.kinds, kind) })
}

// sleeps reports whether an object that is being deleted is between two attempts, or waits for others.
func (w *World) sleeps(o *apiclient.Raw) bool {
	r := o.Reconciliation
	return o.DeletedAt != nil && r.ObservedGeneration == o.Generation && (r.NextAttempt == nil || r.NextAttempt.After(time.Now()))
}

func (w *World) objects() (all []*apiclient.Raw) {
	w.t.Helper()
	for kind := range w.kinds {
		c, err := apiclient.New[rawJSON, rawJSON](apiclient.Config{URL: apiURL, HTTP: w.memory.Client()}, kind)
		if err != nil {
			w.t.Fatal(err)
		}
		for o, err := range c.All(context.Background()) {
			if err != nil {
				w.t.Fatal(err)
			}
			all = append(all, o)
		}
	}
	return all
}
