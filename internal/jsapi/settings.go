package jsapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// LeastServer is the least version of nats-server: it has message schedules (NATS ADR-51), without which retries would
// never come, and a time to live per message (ADR-43), without which nothing would be taken over. Older servers ignore
// settings that they do not know.
const LeastServer = "2.12"

// LimitsWithin bounds a try to take limits off: without the right to, it gets no answer.
const LimitsWithin = 2 * time.Second

// Error codes of the server that settings meet.
const (
	CodeMaxConsumers     jetstream.ErrorCode = 10026 // a limit of the account, the stream or the server
	CodeMaxBytesRequired jetstream.ErrorCode = 10113 // the account asks for max_bytes
)

// HasCode reports whether an error of nats.go is a refusal of the server with that code.
func HasCode(err error, code jetstream.ErrorCode) bool {
	var refused *jetstream.APIError
	return errors.As(err, &refused) && refused.ErrorCode == code
}

// Limits names the limits that make a stream refuse or drop messages, "" if there are none.
func Limits(have jetstream.StreamConfig) string {
	var found []string
	limit := func(name string, set bool, value any) {
		if set {
			found = append(found, fmt.Sprintf("%s %v", name, value))
		}
	}
	limit("max_msgs", have.MaxMsgs > 0, have.MaxMsgs)
	limit("max_bytes", have.MaxBytes > 0, have.MaxBytes)
	limit("max_msg_size", have.MaxMsgSize > 0, have.MaxMsgSize)
	limit("max_age", have.MaxAge > 0, have.MaxAge)
	return strings.Join(found, ", ")
}

// Unlimit takes off what [Limits] names.
func Unlimit(c *jetstream.StreamConfig) {
	c.MaxMsgs, c.MaxBytes, c.MaxMsgSize, c.MaxAge, c.DiscardNewPerSubject = -1, -1, -1, 0, false
}

// UpdateStream changes a stream from have to next and returns what the server made of it, have if it refused. Limits that
// the account asks for stay.
func UpdateStream(ctx context.Context, js jetstream.JetStream, have, next jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	s, err := js.UpdateStream(ctx, next)
	if HasCode(err, CodeMaxBytesRequired) {
		next.MaxBytes = have.MaxBytes
		s, err = js.UpdateStream(ctx, next)
	}
	if HasCode(err, CodeMaxConsumers) {
		next.MaxConsumers = have.MaxConsumers
		s, err = js.UpdateStream(ctx, next)
	}
	if err != nil {
		return have, err
	}
	return s.CachedInfo().Config, nil
}
