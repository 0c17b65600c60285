package notify

import (
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// Errors of this package; test with errors.Is.
var (
	// ErrNoRoom: the server refuses to store a notification because of a limit or a full disk. It was not stored, and
	// trying again helps only once an operator has made room.
	ErrNoRoom = jsapi.ErrNoRoom
	// ErrNoJetStream: JetStream is not enabled on the server, or not for the account of the connection. A server that is
	// starting says the same for a moment.
	ErrNoJetStream = jsapi.ErrNoJetStream
	// ErrServerTooOld: the server ignores settings that Evenkeel depends on: it is older than [LeastServer].
	ErrServerTooOld = errors.New("this nats-server is too old")
	// ErrStreamSettings: a stream of this name has settings that Evenkeel cannot work with and cannot change.
	ErrStreamSettings = errors.New("its settings cannot be used")
	// ErrTooManyConsumers: a limit of the account, the stream or the server is reached.
	ErrTooManyConsumers = errors.New("no further consumer is allowed")
)

// LeastServer is the least version of nats-server: it has message schedules (NATS ADR-51), without which retries would
// never come, and a time to live per message (ADR-43), without which nothing would be taken over.
const LeastServer = "2.12"

// Error codes of the server.
const (
	codeMaxConsumers     = 10026
	codeMaxBytesRequired = 10113
)

func hasCode(err error, code jetstream.ErrorCode) bool {
	var refused *jetstream.APIError
	return errors.As(err, &refused) && refused.ErrorCode == code
}
