package notify

import (
	"errors"

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
	// ErrGone: the notification is in the stream no more. Another replica took it, to which it was delivered as well; or it was
	// lost with the stream's data.
	ErrGone = errors.New("the notification is gone")
	// ErrTooManyConsumers: a limit of the account, the stream or the server is reached.
	ErrTooManyConsumers = errors.New("no further consumer is allowed")
)

// LeastServer is the least version of nats-server that Evenkeel works with: it has message schedules (NATS ADR-51) and a
// time to live per message (ADR-43).
const LeastServer = jsapi.LeastServer
