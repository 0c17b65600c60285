package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// limitsWithin bounds the try to take limits off: without the right to, it gets no answer.
	limitsWithin = 2 * time.Second
	// codeMaxBytesRequired is the server's refusal of a stream without max_bytes (JSStreamMaxBytesRequired).
	codeMaxBytesRequired jetstream.ErrorCode = 10113
)

// limits names the settings of a bucket that remove or refuse locks, "" if there are none, and says whether they remove
// locks that are held.
func limits(have jetstream.StreamConfig) (found string, remove bool) {
	var all []string
	for _, s := range []struct {
		name  string
		value int64
	}{
		{"max_msgs", have.MaxMsgs},
		{"max_bytes", have.MaxBytes},
	} {
		if s.value > 0 {
			all = append(all, fmt.Sprintf("%s %d, discard %s", s.name, s.value, strings.ToLower(have.Discard.String())))
			remove = remove || have.Discard == jetstream.DiscardOld
		}
	}
	if have.MaxAge > 0 {
		all, remove = append(all, fmt.Sprintf("max_age %s", have.MaxAge)), true
	}
	if have.MaxMsgSize > 0 {
		all = append(all, fmt.Sprintf("max_msg_size %d", have.MaxMsgSize))
	}
	if have.MaxMsgsPerSubject != 1 {
		all = append(all, fmt.Sprintf("max_msgs_per_subject %d", have.MaxMsgsPerSubject))
	}
	return strings.Join(all, ", "), remove
}

// unlimited returns a bucket's settings as they should be.
func unlimited(have jetstream.StreamConfig, replicas int) jetstream.StreamConfig {
	have.AllowMsgTTL, have.AllowRollup = true, false
	have.MaxMsgs, have.MaxBytes, have.MaxMsgSize, have.MaxAge = -1, -1, -1, 0
	have.MaxMsgsPerSubject, have.Discard, have.DiscardNewPerSubject = 1, jetstream.DiscardNew, false
	if replicas != 0 {
		have.Replicas = replicas
	}
	return have
}

// update changes a bucket's settings and returns what the server made of them. A max_bytes that the account requires stays.
func update(ctx context.Context, js jetstream.JetStream, next jetstream.StreamConfig, maxBytes int64) (jetstream.StreamConfig, error) {
	s, err := js.UpdateStream(ctx, next)
	var refused *jetstream.APIError
	if errors.As(err, &refused) && refused.ErrorCode == codeMaxBytesRequired {
		next.MaxBytes = maxBytes
		s, err = js.UpdateStream(ctx, next)
	}
	if err != nil {
		return jetstream.StreamConfig{}, err
	}
	return s.CachedInfo().Config, nil
}

// checkLimits tells of limits of the bucket when they appear. Locks that are held here may be gone then, so the session is
// given up: its locks are cancelled, as if the bucket had been purged.
func (w *sweeper) checkLimits(own *session, have jetstream.StreamConfig) {
	found, remove := limits(have)
	before := w.limits
	if w.limits = found; found == "" || found == before {
		return
	}
	if remove {
		own.lose()
	}
	w.l.cfg.OnError("look at the lock bucket", fmt.Errorf("%w: stream %s has %s", ErrLimited, w.l.name, found))
}
