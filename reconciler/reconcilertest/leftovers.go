package reconcilertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/notify"
)

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
	for kind := range w.noResync {
		running["lock."+subject.ResyncLockKey(kind)] = true
	}
	alive := 0
	if w.locker != nil {
		alive++
	}
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
