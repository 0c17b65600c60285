package reconcilertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

const timeMillis = "15:04:05.000"

// AssertPromises is [World.AssertConverged], [World.AssertOneWriter], [World.AssertNoNeedlessRuns] and
// [World.AssertNothingLeft]. It is for a World that has settled ([World.RunUntilSettled]), and lets a minute pass.
func (w *World) AssertPromises() {
	w.t.Helper()
	w.AssertConverged()
	w.Advance(leftFor)
	w.AssertOneWriter()
	w.AssertNoNeedlessRuns()
	w.AssertNothingLeft()
}

// AssertConverged fails the test unless every object is Stalled or Paused, or Ready at its present generation by a call that
// began after the last change and was made with what the API answered after it.
func (w *World) AssertConverged() {
	w.t.Helper()
	w.report(unconverged(w.objects(), w.history()))
}

// AssertOneWriter fails the test if two functions ran on one object at once, if a later one had a lower fence, or if the API
// accepted a status of an earlier one after a later one had begun.
func (w *World) AssertOneWriter() {
	w.t.Helper()
	h := w.history()
	w.report(overlapping(h.runs))
	w.report(late(h))
}

// AssertNoNeedlessRuns fails the test if a function was called again and again although nothing had happened to the object:
// no write by the test, no failure, requeue or retry, no lost lock, and nothing that resync found.
func (w *World) AssertNoNeedlessRuns() {
	w.t.Helper()
	w.report(needless(w.history()))
}

// leftFor is for how long what a replica leaves behind may stay: its lease, and requeues that a later call made needless.
const leftFor = time.Minute

// AssertNothingLeft fails the test if the broker still holds what nobody needs: notifications, locks, sessions of replicas
// that are gone for a lease, requeues of objects that wait for nothing, or messages that could not be handled.
func (w *World) AssertNothingLeft() {
	w.t.Helper()
	left, err := w.leftovers()
	if err != nil {
		w.t.Fatalf("look at what is left: %v", err)
	}
	w.report(left)
}

func (w *World) report(violations []string) {
	w.t.Helper()
	for _, v := range violations {
		w.t.Error(v)
	}
}

// history is what happened in a World, as far as the checks need it.
type history struct {
	accesses []access // in the order in which the API served them
	timeline Timeline
	runs     []RunOf
}

func (w *World) history() history {
	w.serving.Lock()
	defer w.serving.Unlock()
	tl := w.Timeline()
	return history{accesses: slices.Clone(w.accesses), timeline: tl, runs: tl.Runs()}
}

// read returns the last answer with the object that the API gave to the replica of a run before it began.
func (h history) read(run RunOf) (read access, ok bool) {
	for _, a := range h.accesses {
		if a.replica == run.Replica && a.object == run.object() && !a.at.After(run.Start) {
			read, ok = a, true
		}
	}
	return read, ok
}

func unconverged(objects []*apiclient.Raw, h history) (violations []string) {
	for _, o := range objects {
		r, key := o.Reconciliation, o.Kind+"/"+o.Name
		switch {
		case r.State == apiclient.StateStalled, o.Paused:
			continue
		case r.State != apiclient.StateReady, r.ObservedGeneration != o.Generation:
			violations = append(violations, fmt.Sprintf(
				"%s has not converged: it is %s, and generation %d of %d was reconciled; last error: %q (RunUntilSettled waits until it has)",
				key, r.State, r.ObservedGeneration, o.Generation, r.LastError))
			continue
		}
		seen := slices.ContainsFunc(h.runs, func(run RunOf) bool {
			read, ok := h.read(run)
			return ok && run.object() == key && run.Generation == o.Generation && run.Err == nil && !run.End.IsZero() &&
				read.uid == o.UID && read.generation == o.Generation && !read.at.Before(o.ChangedAt)
		})
		if !seen {
			violations = append(violations, fmt.Sprintf("%s is Ready, but no call of its function succeeded that began with its generation %d, "+
				"which was written at %s", key, o.Generation, o.ChangedAt.Format(timeMillis)))
		}
	}
	return violations
}

func overlapping(runs []RunOf) (violations []string) {
	last := map[string]RunOf{}
	for _, run := range runs {
		key := run.object()
		before, ok := last[key]
		last[key] = run
		if !ok {
			continue
		}
		if before.End.IsZero() || run.Start.Before(before.End) {
			violations = append(violations, fmt.Sprintf("two writers: %s runs on %s from %s to %s, and %s from %s on", before.Replica, key,
				before.Start.Format(timeMillis), before.End.Format(timeMillis), run.Replica, run.Start.Format(timeMillis)))
		}
		if run.Fence <= before.Fence {
			violations = append(violations, fmt.Sprintf("fences: %s runs on %s with %d after %s with %d", run.Replica, key, run.Fence,
				before.Replica, before.Fence))
		}
	}
	return violations
}

// late finds statuses that the API accepted after a later fence was stored, or after a later run had begun. A repetition of
// a patch that was accepted before changes nothing, and may be accepted for as long as no later fence was stored.
func late(h history) (violations []string) {
	highest := map[string]uint64{} // by uid
	repeated := map[string]bool{}
	for _, a := range h.accesses {
		if !a.status {
			continue
		}
		if a.fence < highest[a.uid] {
			violations = append(violations, fmt.Sprintf("fences: the API accepted a status of %s with %d after %d", a.object, a.fence, highest[a.uid]))
		}
		highest[a.uid] = max(highest[a.uid], a.fence)
		same := a.uid + a.body
		if repeated[same] {
			continue
		}
		repeated[same] = true
		for _, run := range h.runs {
			if run.object() == a.object && run.Fence > a.fence && run.Start.Before(a.at) {
				violations = append(violations, fmt.Sprintf("late: the API accepted a status of %s with %d at %s, and %s had run since %s with %d",
					a.object, a.fence, a.at.Format(timeMillis), run.Replica, run.Start.Format(timeMillis), run.Fence))
			}
		}
	}
	return violations
}

// reasons are the steps of an object that call for another run.
var reasons = []reconciler.Step{
	reconciler.StepRequeued, reconciler.StepLost, reconciler.StepFenced, reconciler.StepHandedOver, reconciler.StepTookOver, reconciler.StepResynced,
}

// spareRuns is how many runs an object may have beyond one for each cause. A notification that waits in one replica for the
// lock is given to another one when it has waited for long, and may lead to a run in both.
const spareRuns = 5

// needless finds runs without a cause. A run answers all causes before it, but the notification of each may still come and
// lead to a further one.
func needless(h history) (violations []string) {
	spare, last := map[string]int{}, map[string]time.Time{}
	for _, run := range h.runs {
		key := run.object()
		left, ok := spare[key]
		if !ok {
			left = spareRuns
		}
		left = min(left+h.causes(key, last[key], run.Start), spareRuns) - 1
		if left < 0 {
			violations = append(violations, fmt.Sprintf("needless: %s ran on %s at %s (%s) without a cause since the runs before",
				run.Replica, key, run.Start.Format(timeMillis), run.Reason))
			left = 0
		}
		if run.Err != nil || run.End.IsZero() {
			left++
		}
		spare[key], last[key] = left, run.Start
	}
	return violations
}

// causes counts what happened to an object in a time that calls for a run.
func (h history) causes(object string, from, to time.Time) (n int) {
	in := func(t time.Time) bool { return !t.Before(from) && !t.After(to) }
	for _, a := range h.accesses {
		if a.write() && (a.object == object || a.object == "") && in(a.at) {
			n++
		}
	}
	for _, e := range h.timeline {
		if e.Kind+"/"+e.Name == object && slices.Contains(reasons, e.Step) && in(e.Time) {
			n++
		}
	}
	return n
}

// leftovers names what the broker holds and nobody needs.
func (w *World) leftovers() (left []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	names := subject.Names{Prefix: notify.DefaultPrefix}
	js, err := jetstream.New(w.nc)
	if err != nil {
		return nil, err
	}
	waiting := map[string]bool{} // subjects of schedules that are needed
	for _, o := range w.objects() {
		if o.Reconciliation.NextAttempt != nil {
			waiting[names.Schedule(o.Kind, o.Name)] = true
		}
	}
	subjects, err := subjectsOf(ctx, js, names.WorkStream())
	if err != nil {
		return nil, err
	}
	for _, s := range subjects {
		if s != names.Sentinel() && !waiting[s] {
			left = append(left, "left in the work stream: "+s)
		}
	}
	aside, err := subjectsOf(ctx, js, names.HistoryStream())
	if err != nil {
		return nil, err
	}
	for _, s := range aside {
		left = append(left, "set aside: "+s)
	}
	held, err := w.held(ctx, js, names.LockBucket())
	return append(left, held...), err
}

// held names the locks and sessions that should not be there.
func (w *World) held(ctx context.Context, js jetstream.JetStream, bucket string) (left []string, err error) {
	kv, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, err
	}
	keys, err := kv.Keys(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, err
	}
	running := map[string]bool{} // keys of locks
	for _, run := range w.Timeline().Runs() {
		running["lock."+subject.LockKey(run.Kind, run.Name)] = run.End.IsZero()
	}
	alive := 0
	for _, r := range w.replicas {
		if !r.ended() {
			alive++
		}
	}
	for _, key := range slices.Sorted(slices.Values(keys)) {
		switch {
		case strings.HasPrefix(key, "session.closed-"):
			left = append(left, "a session that ended is still marked: "+key)
		case strings.HasPrefix(key, "session."):
			if alive--; alive < 0 {
				left = append(left, "more sessions than replicas: "+key)
			}
		case !running[key]:
			left = append(left, "still locked: "+key)
		}
	}
	return left, nil
}

func subjectsOf(ctx context.Context, js jetstream.JetStream, stream string) ([]string, error) {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(info.State.Subjects)), nil
}
