package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// ensureStream creates or updates a stream, and checks that the server has understood its settings. Only those that
// Evenkeel depends on are compared; what an operator added (placement, compression, metadata) stays.
func ensureStream(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, want jetstream.StreamConfig) error {
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = createStream(ctx, js, want)
	}
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", want.Name, plainly(jsapi.Unanswered(nc, want.Name, err)))
	}
	have := s.CachedInfo().Config
	if have.Retention != want.Retention {
		return unchangeable("stream "+want.Name, "retention", have.Retention, want.Retention)
	}
	if have.Storage != want.Storage {
		return unchangeable("stream "+want.Name, "storage", have.Storage, want.Storage)
	}
	next, fatal := repaired(have, want)
	switch {
	case fatal:
		if have, err = updateStream(ctx, js, have, next); err != nil {
			return err
		}
	case limited(have, want): // it works as it is: without the right to change it, go on
		ctx, cancel := context.WithTimeout(ctx, jsapi.LimitsWithin)
		defer cancel()
		_, _ = updateStream(ctx, js, have, next)
	}
	return understood(nc, have, want)
}

// limited reports whether the work stream has limits to take off. The history stream is bounded on purpose.
func limited(have, want jetstream.StreamConfig) bool {
	return want.Retention == jetstream.WorkQueuePolicy && (limits(have) != "" || have.MaxConsumers != want.MaxConsumers)
}

// createStream returns the stream also if another replica was quicker.
func createStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (jetstream.Stream, error) {
	want.Replicas = max(1, want.Replicas)
	s, err := js.CreateStream(ctx, want)
	if jsapi.HasCode(err, jsapi.CodeMaxConsumers) { // the account has a lower limit
		want.MaxConsumers = 0
		s, err = js.CreateStream(ctx, want)
	}
	switch {
	case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
		return js.Stream(ctx, want.Name)
	case jsapi.HasCode(err, jsapi.CodeMaxBytesRequired):
		return nil, fmt.Errorf("create it: %w: lift max_bytes_required of the account, or create the stream with a max_bytes of "+
			"a kilobyte for each object and start again", err)
	case err != nil:
		return nil, fmt.Errorf("create it: %w", err)
	}
	return s, nil
}

// repaired returns have with what Evenkeel depends on set right, and whether it cannot work with have as it is. Limits
// alone are no reason not to start.
func repaired(have, want jetstream.StreamConfig) (next jetstream.StreamConfig, fatal bool) {
	next = have
	next.Subjects, next.Discard, next.MaxMsgsPerSubject = want.Subjects, want.Discard, want.MaxMsgsPerSubject
	next.AllowMsgSchedules = have.AllowMsgSchedules || want.AllowMsgSchedules
	next.AllowMsgTTL = have.AllowMsgTTL || want.AllowMsgTTL
	next.AllowRollup = have.AllowRollup || want.AllowRollup
	next.NoAck = false
	if want.Replicas != 0 {
		next.Replicas = want.Replicas
	}
	fatal = !slices.Equal(have.Subjects, next.Subjects) || have.Discard != next.Discard || have.MaxMsgsPerSubject != next.MaxMsgsPerSubject ||
		have.AllowMsgSchedules != next.AllowMsgSchedules || have.AllowMsgTTL != next.AllowMsgTTL || have.AllowRollup != next.AllowRollup ||
		have.Replicas != next.Replicas || have.NoAck
	if limited(have, want) {
		jsapi.Unlimit(&next)
		next.MaxConsumers = want.MaxConsumers
	}
	return next, fatal
}

// limits names the limits of the work stream that drop notifications, "" if there are none.
func limits(have jetstream.StreamConfig) string {
	found := jsapi.Limits(have)
	if have.Discard != jetstream.DiscardOld {
		found = strings.TrimPrefix(found+", discard new", ", ")
	}
	return found
}

// updateStream returns the configuration as it is afterwards, also when it was refused, in an error that says what to do.
func updateStream(ctx context.Context, js jetstream.JetStream, have, next jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	got, err := jsapi.UpdateStream(ctx, js, have, next)
	var refused *jetstream.APIError
	switch {
	case err == nil:
		return got, nil
	case errors.As(err, &refused) && refused.Code < 500:
		return have, fmt.Errorf("update stream %s: %w: %w: change it by hand, choose another prefix, or delete the stream while no "+
			"controller runs (pending notifications are found again by resync)", next.Name, ErrStreamSettings, err)
	}
	return have, fmt.Errorf("update stream %s: %w", next.Name, err)
}

// understood checks that the server has the settings: older ones leave out what they do not know and report success.
func understood(nc *nats.Conn, have, want jetstream.StreamConfig) error {
	var lacks []string
	if want.AllowMsgSchedules && !have.AllowMsgSchedules {
		lacks = append(lacks, "message schedules (retries would never come)")
	}
	if want.AllowMsgTTL && !have.AllowMsgTTL {
		lacks = append(lacks, "a time to live per message (nothing would be taken over)")
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("stream %s: %w: nats-server %s is connected and has no %s; Evenkeel needs nats-server %s or later, on each "+
		"server of a cluster", want.Name, ErrServerTooOld, nc.ConnectedServerVersion(), strings.Join(lacks, " and no "), LeastServer)
}

// plainly says that JetStream is off in words that name it.
func plainly(err error) error {
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w, or not for the account of this connection, or it is still starting: see jetstream in the "+
			"configuration of nats-server (%w)", ErrNoJetStream, err)
	}
	return err
}

func unchangeable(what, setting string, have, want any) error {
	return fmt.Errorf("%s: its %s is %v, Evenkeel needs %v, and NATS cannot change it: %w: choose another prefix, or delete it "+
		"while no controller runs (pending notifications are found again by resync)", what, setting, have, want, ErrStreamSettings)
}
