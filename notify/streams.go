package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// Defaults of [Config].
const (
	// DefaultPrefix starts all subjects and stream names.
	DefaultPrefix = "evenkeel"
	// AckWait is how long a pulled notification may stay untaken before another replica gets it. Taking needs two round
	// trips; the value is below the lease, so that the death of a replica costs no more here than there.
	AckWait = 10 * time.Second
	// HistoryBytes bounds the history stream, in bytes.
	HistoryBytes = 64 << 20
	// HistoryPerSubject bounds how many messages of a kind are kept aside.
	HistoryPerSubject = 1000
)

// Config names and shapes the streams. The zero value is usable.
type Config struct {
	// Prefix is the first token of all subjects. Installations that share a server and must not share work have
	// different ones. Default: DefaultPrefix.
	Prefix string
	// Replicas is how many servers of a cluster hold each stream, 1 to 5. Default: leave as it is, 1 for a new stream.
	Replicas int
	// Storage is where streams live. Default: files, which is the only right answer outside of tests.
	Storage jetstream.StorageType
}

func (c Config) names() (subject.Names, error) {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if err := subject.CheckPrefix(c.Prefix); err != nil {
		return subject.Names{}, fmt.Errorf("notify: Config.Prefix: %w", err)
	}
	return subject.Names{Prefix: c.Prefix}, nil
}

// Streams makes the streams, and consumers for the given kinds, or brings those of an earlier version up to date. What
// is right already is not written, so a user without the right to create passes if an administrator has run it before.
// It refuses what cannot be changed, naming the stream and the setting.
func Streams(ctx context.Context, nc *nats.Conn, cfg Config, kinds ...string) error {
	names, err := cfg.names()
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	if err := ensureStream(ctx, js, workStream(names, cfg)); err != nil {
		return err
	}
	if err := ensureSentinel(ctx, nc, names); err != nil {
		return err
	}
	if err := ensureStream(ctx, js, historyStream(names, cfg)); err != nil {
		return err
	}
	for _, kind := range kinds {
		if err := subject.CheckKind(kind); err != nil {
			return fmt.Errorf("notify: %w", err)
		}
		for _, l := range lanes(names, kind) {
			if err := ensureConsumer(ctx, js, names.WorkStream(), l); err != nil {
				return err
			}
		}
	}
	return nil
}

// workStream holds at most one message per subject, so at most three per object: fresh, due and scheduled.
func workStream(n subject.Names, cfg Config) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              n.WorkStream(),
		Description:       "Evenkeel: objects to look at, and requeues that sleep",
		Subjects:          n.WorkSubjects(),
		Retention:         jetstream.WorkQueuePolicy,
		Discard:           jetstream.DiscardOld,
		MaxMsgsPerSubject: 1,
		Storage:           cfg.Storage,
		Replicas:          cfg.Replicas,
		AllowMsgSchedules: true,
		AllowMsgTTL:       true,
		AllowRollup:       true,
	}
}

func historyStream(n subject.Names, cfg Config) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              n.HistoryStream(),
		Description:       "Evenkeel: messages that were set aside",
		Subjects:          n.HistorySubjects(),
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardOld,
		MaxMsgsPerSubject: HistoryPerSubject,
		MaxBytes:          HistoryBytes,
		Storage:           cfg.Storage,
		Replicas:          cfg.Replicas,
	}
}

// ensureStream creates or updates. Only the settings that Evenkeel depends on are compared; what an operator added
// (placement, limits, metadata) stays.
func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		want.Replicas = max(1, want.Replicas)
		if _, err = js.CreateStream(ctx, want); err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return fmt.Errorf("create stream %s: %w", want.Name, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", want.Name, err)
	}
	have := s.CachedInfo().Config
	if have.Retention != want.Retention {
		return unchangeable("stream "+want.Name, "retention", have.Retention, want.Retention)
	}
	if have.Storage != want.Storage {
		return unchangeable("stream "+want.Name, "storage", have.Storage, want.Storage)
	}
	next := have
	next.Subjects, next.Discard, next.MaxMsgsPerSubject = want.Subjects, want.Discard, want.MaxMsgsPerSubject
	next.AllowMsgSchedules = have.AllowMsgSchedules || want.AllowMsgSchedules
	next.AllowMsgTTL = have.AllowMsgTTL || want.AllowMsgTTL
	next.AllowRollup = have.AllowRollup || want.AllowRollup
	if want.Replicas != 0 {
		next.Replicas = want.Replicas
	}
	same := slices.Equal(have.Subjects, next.Subjects) && have.Discard == next.Discard && have.MaxMsgsPerSubject == next.MaxMsgsPerSubject &&
		have.AllowMsgSchedules == next.AllowMsgSchedules && have.AllowMsgTTL == next.AllowMsgTTL && have.AllowRollup == next.AllowRollup && have.Replicas == next.Replicas
	if same {
		return nil
	}
	if _, err := js.UpdateStream(ctx, next); err != nil {
		return fmt.Errorf("update stream %s from an earlier configuration: %w", want.Name, err)
	}
	return nil
}

func unchangeable(what, setting string, have, want any) error {
	return fmt.Errorf("%s: its %s is %v, Evenkeel needs %v, and NATS cannot change it: choose another prefix, or delete it "+
		"while no controller runs (pending notifications are found again by resync)", what, setting, have, want)
}

// ensureSentinel puts the message that is never consumed at the head of the stream.
func ensureSentinel(ctx context.Context, nc *nats.Conn, n subject.Names) error {
	m := nats.NewMsg(n.Sentinel())
	m.Header = jsapi.Expect(0)
	m.Data = []byte("keeps fetches fast; see the subject package's Sentinel; leave it here")
	_, err := jsapi.Last(ctx, nc, n.WorkStream(), n.Sentinel())
	if !errors.Is(err, jsapi.ErrNoMessage) {
		return err
	}
	_, err = jsapi.Publish(ctx, nc, m)
	var wrong *jsapi.WrongSequence
	if err != nil && !errors.As(err, &wrong) {
		return fmt.Errorf("put sentinel into stream %s: %w", n.WorkStream(), err)
	}
	return nil
}

// lane is one consumer of a kind.
type lane struct {
	consumer string
	filter   string
	about    string
}

const (
	laneFresh = iota
	laneLater
	laneCount
)

func lanes(n subject.Names, kind string) [laneCount]lane {
	return [laneCount]lane{
		laneFresh: {consumer: kind, filter: n.FilterFresh(kind), about: "changes of " + kind},
		laneLater: {consumer: kind + "_later", filter: n.FilterLater(kind), about: "requeues and resync of " + kind},
	}
}

// ensureConsumer creates or updates the durable consumer of a lane.
//
// No MaxDeliver: a message past it would stay in the stream unseen. No BackOff: it would replace AckWait. No limit on
// pending acks: pulls are bounded by free workers, and whatever waits for a lock must not stop the kind.
func ensureConsumer(ctx context.Context, js jetstream.JetStream, stream string, l lane) error {
	want := jetstream.ConsumerConfig{
		Durable:       l.consumer,
		Description:   "Evenkeel: " + l.about,
		FilterSubject: l.filter,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       AckWait,
		MaxAckPending: -1,
		MaxDeliver:    -1,
		MaxWaiting:    512,
		Metadata: map[string]string{
			"io.nats.monitor.enabled":                  "true",
			"io.nats.monitor.outstanding-ack-critical": "10000",
			"io.nats.monitor.waiting-critical":         "510",
		},
	}
	c, err := js.Consumer(ctx, stream, l.consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		if _, err = js.CreateConsumer(ctx, stream, want); err != nil && !errors.Is(err, jetstream.ErrConsumerExists) {
			return fmt.Errorf("create consumer %s of stream %s: %w", l.consumer, stream, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at consumer %s of stream %s: %w", l.consumer, stream, err)
	}
	have := c.CachedInfo().Config
	if have.AckPolicy != want.AckPolicy {
		return unchangeable("consumer "+l.consumer, "ack policy", have.AckPolicy, want.AckPolicy)
	}
	if have.FilterSubject == want.FilterSubject && have.AckWait == want.AckWait && have.MaxAckPending == want.MaxAckPending &&
		have.MaxDeliver == want.MaxDeliver && len(have.BackOff) == 0 {
		return nil
	}
	if _, err := js.UpdateConsumer(ctx, stream, want); err != nil {
		return fmt.Errorf("update consumer %s of stream %s from an earlier configuration: %w", l.consumer, stream, err)
	}
	return nil
}
