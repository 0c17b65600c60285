package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

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

// config is that of the durable consumer of a lane.
//
// No MaxDeliver: a message past it would stay in the stream unseen. No BackOff: it would replace AckWait. No limit on
// pending acks: pulls are bounded by free workers, and turns that wait for a lock must not stop the kind.
func (l lane) config() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
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
}

// differences names the settings of a lane's consumer that lose or delay notifications, "" if there are none. A pause is
// none: it ends by itself, and an operator has asked for it; it is told by itself.
func (l lane) differences(have jetstream.ConsumerConfig) string {
	want := l.config()
	var found []string
	for _, s := range []struct {
		name       string
		have, want any
	}{
		{"filter_subject", have.FilterSubject, want.FilterSubject},
		{"ack_wait", have.AckWait, want.AckWait},
		{"max_ack_pending", have.MaxAckPending, want.MaxAckPending},
		{"max_deliver", have.MaxDeliver, want.MaxDeliver},
		{"backoff", len(have.BackOff) > 0, false},
	} {
		if s.have != s.want {
			found = append(found, fmt.Sprintf("%s %v instead of %v", s.name, s.have, s.want))
		}
	}
	return strings.Join(found, ", ")
}

// ensureConsumer creates or updates the durable consumer of a lane.
func ensureConsumer(ctx context.Context, js jetstream.JetStream, stream string, l lane) error {
	want := l.config()
	c, err := js.Consumer(ctx, stream, l.consumer)
	err = jsapi.Unanswered(js.Conn(), stream, err)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		_, err = js.CreateConsumer(ctx, stream, want)
		switch {
		case err == nil, errors.Is(err, jetstream.ErrConsumerExists):
			return nil
		case jsapi.HasCode(err, jsapi.CodeMaxConsumers):
			return fmt.Errorf("create consumer %s of stream %s: %w (%w): raise max_consumers of the account or of the stream "+
				"(a kind has two consumers), or move kinds to another prefix", l.consumer, stream, ErrTooManyConsumers, err)
		}
		return fmt.Errorf("create consumer %s of stream %s: %w", l.consumer, stream, jsapi.Unanswered(js.Conn(), stream, err))
	}
	if err != nil {
		return fmt.Errorf("look at consumer %s of stream %s: %w", l.consumer, stream, err)
	}
	have := c.CachedInfo().Config
	if have.AckPolicy != want.AckPolicy {
		return unchangeable("consumer "+l.consumer, "ack policy", have.AckPolicy, want.AckPolicy)
	}
	if l.differences(have) == "" {
		return nil
	}
	if _, err := js.UpdateConsumer(ctx, stream, want); err != nil {
		return fmt.Errorf("update consumer %s of stream %s from an earlier configuration: %w", l.consumer, stream, err)
	}
	return nil
}

// HasConsumer reports whether notifications of a kind have a consumer, that is, whether a controller of the kind has ever
// started. Without one they stay in the stream. It needs the right to publish to $JS.API.CONSUMER.INFO of the kind's
// consumer. An error says that the answer is not known.
func HasConsumer(ctx context.Context, nc *nats.Conn, cfg Config, kind string) (bool, error) {
	names, err := cfg.names()
	if err != nil {
		return false, err
	}
	if err := subject.CheckKind(kind); err != nil {
		return false, fmt.Errorf("notify: %w", err)
	}
	fresh := lanes(names, kind)[laneFresh].consumer
	err = jsapi.Request(ctx, nc, "$JS.API.CONSUMER.INFO."+names.WorkStream()+"."+fresh, nil, nil)
	switch {
	case errors.Is(err, jsapi.ErrNoConsumer), errors.Is(err, jsapi.ErrNoStream):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for a consumer of %s: %w", kind, err)
	}
	return true, nil
}
