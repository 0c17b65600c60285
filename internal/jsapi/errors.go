package jsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// Error codes of the server.
const (
	codeWrongSequence = 10071 // the expectation is false
	codeInProcess     = 10164 // another write of the same subject is under way; the expectation may be true
	codeNoMessage     = 10037
	codeNotFound      = 10059 // stream
	codeNoConsumer    = 10014
	codeNoJetStream   = 10076 // JetStream is not enabled
	codeNotForAccount = 10039 // nor for this account
)

// noRoom are the codes of a server that is up, understands the message, and does not store it.
var noRoom = []int{
	10002, // the account's limit of storage
	10023, // insufficient resources of the server
	10028, // of memory
	10047, // of storage
	10054, // the message is larger than the stream's max_msg_size
	10077, // the stream's store refuses: max_msgs, max_bytes, a full disk
	10167, // too many messages are queued for the stream
}

// Errors of requests; test with errors.Is, except for WrongSequence (errors.As).
var (
	// ErrBusy: another write of the same subject is being replicated; try again at once.
	ErrBusy = errors.New("another write of the subject is in process")
	// ErrNoMessage: the subject or sequence holds no message.
	ErrNoMessage = errors.New("no message")
	// ErrNoStream: the stream does not exist.
	ErrNoStream = errors.New("stream not found")
	// ErrNoConsumer: the consumer does not exist.
	ErrNoConsumer = errors.New("consumer not found")
	// ErrNoRoom: the server refuses to store a message because of a limit or a full disk. The message was not stored.
	ErrNoRoom = errors.New("the server refuses to store more")
	// ErrNoJetStream: JetStream is not enabled on the server, or not for the account of the connection.
	ErrNoJetStream = errors.New("JetStream is not enabled")
)

// WrongSequence is the refusal of a publish whose expected sequence is not the subject's last.
type WrongSequence struct {
	// Last is the sequence of the last message on the subject, 0 if there is none.
	Last uint64
}

func (e *WrongSequence) Error() string {
	return "wrong last sequence: " + strconv.FormatUint(e.Last, 10)
}

// APIError is any other refusal by the server.
type APIError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *APIError) Error() string {
	return fmt.Sprintf("%s (server error %d)", e.Description, e.ErrCode)
}

// Is makes errors.Is recognize [ErrNoRoom] and [ErrNoJetStream].
func (e *APIError) Is(target error) bool {
	switch target {
	case ErrNoRoom:
		return slices.Contains(noRoom, e.ErrCode)
	case ErrNoJetStream:
		return e.ErrCode == codeNoJetStream || e.ErrCode == codeNotForAccount
	}
	return false
}

func refusal(data []byte) error {
	var resp struct {
		Error *APIError `json:"error"`
	}
	if err := json.Unmarshal(data, &resp); err != nil {
		return fmt.Errorf("decode answer %.100q: %w", data, err)
	}
	if resp.Error == nil {
		return nil
	}
	switch resp.Error.ErrCode {
	case codeWrongSequence:
		_, last, _ := strings.Cut(resp.Error.Description, ": ")
		n, err := strconv.ParseUint(last, 10, 64)
		if err != nil {
			return resp.Error
		}
		return &WrongSequence{Last: n}
	case codeInProcess:
		return ErrBusy
	case codeNoMessage:
		return ErrNoMessage
	case codeNotFound:
		return ErrNoStream
	case codeNoConsumer:
		return ErrNoConsumer
	}
	return resp.Error
}

// explain turns the bare timeout that a denied or unheard request ends in into something an operator can act on.
func explain(nc *nats.Conn, subject string, err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders) && everServed(subject):
		return fmt.Errorf("request %s: %w, or not for the account of this connection, or it is still starting (%w)",
			subject, ErrNoJetStream, err)
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("request %s: no answer, because nothing on the server listens: is JetStream enabled and the stream there? %w", subject, err)
	case errors.Is(err, context.DeadlineExceeded):
		if denied := Denied(nc, subject); denied != nil {
			return fmt.Errorf("request %s: no answer; the connection was told: %w (%w)", subject, denied, err)
		}
		if !strings.HasPrefix(subject, "$JS.") { // a publish to a stream (nats-server 2.15, stream.setWriteErr)
			return fmt.Errorf("request %s: no answer (if this goes on, see the log of nats-server: a stream that met a write error, such as a "+
				"full disk, answers nothing until the server is restarted): %w", subject, err)
		}
		return fmt.Errorf("request %s: no answer: %w", subject, err)
	}
	return fmt.Errorf("request %s: %w", subject, err)
}

// Unanswered explains the bare timeout of a request that nats.go sent, with what is part of its subject. Other errors, nil
// among them, stay as they are.
func Unanswered(nc *nats.Conn, part string, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
		return err
	}
	if denied := Denied(nc, part); denied != nil {
		return fmt.Errorf("no answer; the connection was told: %w (%w)", denied, err)
	}
	return fmt.Errorf("no answer: %w", err)
}

// everServed reports whether a server with JetStream answers requests to a subject without any stream or consumer.
func everServed(subject string) bool {
	return strings.HasPrefix(subject, "$JS.API.STREAM.") || strings.HasPrefix(subject, "$JS.API.CONSUMER.INFO.")
}

// Denied returns the permission violation that explains why a request to a subject gets no answer: the connection may not
// publish to it, or not subscribe to answers. It returns nil if the connection was last told of something else.
func Denied(nc *nats.Conn, subject string) error {
	last := nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) {
		return nil
	}
	if text := last.Error(); strings.Contains(text, subject) || strings.Contains(text, "Subscription") {
		return last
	}
	return nil
}
