package notify

import (
	"context"
	"errors"
	"fmt"
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
//
// Limits on the work stream (max_msgs, max_bytes, max_age, max_msg_size, max_consumers, discard) would drop notifications
// without a word, and are taken off; a max_bytes that the account requires stays. The stream is bounded by the number of
// objects: three messages each. Without the right to take them off Streams passes, and the look of [Consumer.Run] reports
// them.
//
// Errors: [ErrServerTooOld], [ErrNoJetStream], [ErrStreamSettings], [ErrTooManyConsumers]; others are of the connection.
func Streams(ctx context.Context, nc *nats.Conn, cfg Config, kinds ...string) error {
	names, err := cfg.names()
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	if err := ensureStream(ctx, nc, js, workStream(names, cfg)); err != nil {
		return err
	}
	if err := ensureSentinel(ctx, nc, names); err != nil {
		return err
	}
	if err := ensureStream(ctx, nc, js, historyStream(names, cfg)); err != nil {
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

// maxConsumers is the work stream's own limit of consumers, two for each kind. Without one the server allows 1,000 for a
// stream (nats-server 2.15.2, JSDefaultMaxConsumersPerStream), which would end an installation at 500 kinds.
const maxConsumers = 1_000_000

// workStream holds at most one message per subject, so at most three per object: fresh, due and scheduled.
//
// Its first sequence is the clock: a stream that is deleted and made again goes on above every sequence that it ever gave
// (as long as it took fewer than a million messages a second on average), so that a notification which is taken then by
// its sequence is gone, and not another object's.
func workStream(n subject.Names, cfg Config) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              n.WorkStream(),
		Description:       "Evenkeel: objects to look at, and requeues that sleep",
		Subjects:          n.WorkSubjects(),
		Retention:         jetstream.WorkQueuePolicy,
		Discard:           jetstream.DiscardOld,
		MaxMsgsPerSubject: 1,
		MaxConsumers:      maxConsumers,
		FirstSeq:          uint64(time.Now().UnixMicro()),
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
