package lock

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// limits names the settings of a bucket that remove or refuse locks, "" if there are none, and says whether they remove
// locks that are held.
func limits(have jetstream.StreamConfig) (found string, remove bool) {
	found = jsapi.Limits(have)
	if have.MaxMsgsPerSubject != 1 {
		found = strings.TrimPrefix(fmt.Sprintf("%s, max_msgs_per_subject %d", found, have.MaxMsgsPerSubject), ", ")
	}
	full := have.MaxMsgs > 0 || have.MaxBytes > 0
	return found, have.MaxAge > 0 || full && have.Discard == jetstream.DiscardOld
}

// unlimited returns a bucket's settings as they should be.
func unlimited(have jetstream.StreamConfig, replicas int) jetstream.StreamConfig {
	jsapi.Unlimit(&have)
	have.AllowMsgTTL, have.AllowRollup = true, false
	have.MaxMsgsPerSubject, have.Discard = 1, jetstream.DiscardNew
	if replicas != 0 {
		have.Replicas = replicas
	}
	return have
}

// checkLimits reports limits of the bucket when they appear. Locks that are held here may be gone then, so the session is
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
	w.l.cfg.OnError("look at the lock bucket", fmt.Errorf("%w: stream %s has %s (discard %s)", ErrLimited, w.l.name, found,
		strings.ToLower(strings.TrimPrefix(have.Discard.String(), "Discard"))))
}
