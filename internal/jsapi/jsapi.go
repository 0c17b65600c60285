// Package jsapi speaks the parts of the JetStream protocol that decide something for Evenkeel: a publish with an expected
// sequence, whose refusals must be told apart, and reads that only the stream's leader may answer.
//
// nats.go maps two different refusals to one error and reads through any replica; on a replicated stream both lead to
// wrong decisions (a lock that is free looks taken), hence this package.
package jsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Timeout bounds each request to the server: two to three leader elections long.
const Timeout = 5 * time.Second

// Headers of the protocol (NATS ADR-8, ADR-43, ADR-51).
const (
	HeaderExpected     = "Nats-Expected-Last-Subject-Sequence"
	HeaderTTL          = "Nats-TTL"
	HeaderOperation    = "KV-Operation"
	HeaderSchedule     = "Nats-Schedule"
	HeaderTarget       = "Nats-Schedule-Target"
	HeaderScheduler    = "Nats-Scheduler"
	HeaderScheduleNext = "Nats-Schedule-Next"
)

// Error codes of the server.
const (
	codeWrongSequence = 10071 // the expectation is false
	codeInProcess     = 10164 // another write of the same subject is under way; the expectation may be true
	codeNoMessage     = 10037
	codeNotFound      = 10059 // stream
	codeNoConsumer    = 10014
)

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

// Expect returns headers for a publish that is refused unless the last message on the subject has that sequence;
// 0 means that there is none.
func Expect(sequence uint64) nats.Header {
	return nats.Header{HeaderExpected: {strconv.FormatUint(sequence, 10)}}
}

// Publish stores a message and returns its sequence. A busy subject is tried again until the context ends.
//
// Without a connection it fails at once. After any error but *WrongSequence and *APIError the message may have been stored
// all the same.
func Publish(ctx context.Context, nc *nats.Conn, m *nats.Msg) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if err := connected(nc, m.Subject); err != nil {
		return 0, err
	}
	for pause := time.Millisecond; ; pause *= 2 {
		reply, err := nc.RequestMsgWithContext(ctx, m)
		if err != nil {
			return 0, explain(nc, m.Subject, err)
		}
		seq, err := Ack(reply.Data)
		if !errors.Is(err, ErrBusy) {
			return seq, err
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("publish %s: %w: %w", m.Subject, ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

// Ack reads the server's answer to a publish. It scans for the sequence and decodes JSON only for errors: half of all
// the work of a reconcile without a function is publishing.
func Ack(data []byte) (uint64, error) {
	s := string(data)
	if i := strings.Index(s, `"seq":`); i >= 0 && !strings.Contains(s, `"error"`) {
		s = strings.TrimLeft(s[i+len(`"seq":`):], " ")
		end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
		if end > 0 {
			return strconv.ParseUint(s[:end], 10, 64)
		}
	}
	return 0, refusal(data)
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

// Message is one stored message.
type Message struct {
	Subject  string
	Sequence uint64
	Header   nats.Header
	Data     []byte
	Time     time.Time // when it was stored, by the clock of the server
}

// Last reads the last message on a subject from the stream's leader: unlike a direct read it is never stale. It fails
// with ErrNoMessage if there is none.
func Last(ctx context.Context, nc *nats.Conn, stream, subject string) (*Message, error) {
	return get(ctx, nc, stream, subject, map[string]any{"last_by_subj": subject})
}

// First reads the oldest message whose subject matches a filter, in the same way.
func First(ctx context.Context, nc *nats.Conn, stream, filter string) (*Message, error) {
	return get(ctx, nc, stream, filter, map[string]any{"seq": 1, "next_by_subj": filter})
}

func get(ctx context.Context, nc *nats.Conn, stream, subject string, req map[string]any) (*Message, error) {
	var resp struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Hdrs    []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := Request(ctx, nc, "$JS.API.STREAM.MSG.GET."+stream, req, &resp); err != nil {
		return nil, err
	}
	m := &Message{Subject: resp.Message.Subject, Sequence: resp.Message.Seq, Data: resp.Message.Data, Time: resp.Message.Time}
	if len(resp.Message.Hdrs) > 0 {
		h, err := nats.DecodeHeadersMsg(resp.Message.Hdrs)
		if err != nil {
			return nil, fmt.Errorf("read %s: decode headers: %w", subject, err)
		}
		m.Header = h
	}
	return m, nil
}

// Delete removes one message and returns once it is gone from the stream's leader. A message that is gone already is
// no error.
func Delete(ctx context.Context, nc *nats.Conn, stream string, sequence uint64) error {
	req := map[string]any{"seq": sequence, "no_erase": true}
	err := Request(ctx, nc, "$JS.API.STREAM.MSG.DELETE."+stream, req, nil)
	if errors.Is(err, ErrNoMessage) {
		return nil
	}
	return err
}

// ConfirmedAck acknowledges a delivery, whose reply subject is given, and returns once the server has confirmed that.
func ConfirmedAck(ctx context.Context, nc *nats.Conn, reply string) error {
	if err := connected(nc, reply); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	_, err := nc.RequestWithContext(ctx, reply, []byte("+ACK"))
	return err
}

// Request sends one request of the JetStream API and decodes the answer.
func Request(ctx context.Context, nc *nats.Conn, subject string, req, out any) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	var body []byte
	if req != nil {
		b, err := json.Marshal(req)
		if err != nil {
			return fmt.Errorf("request %s: %w", subject, err)
		}
		body = b
	}
	if err := connected(nc, subject); err != nil {
		return err
	}
	reply, err := nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return explain(nc, subject, err)
	}
	if err := refusal(reply.Data); err != nil {
		return fmt.Errorf("request %s: %w", subject, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(reply.Data, out); err != nil {
		return fmt.Errorf("request %s: decode answer: %w", subject, err)
	}
	return nil
}

// connected fails without a connection. The client would keep the request and send it whenever it is connected again, when
// its time may have passed: a lock for a session that is over, a schedule that replaces a newer one, the removal of a
// notification that somebody else has been given meanwhile.
func connected(nc *nats.Conn, subject string) error {
	if nc.IsConnected() {
		return nil
	}
	return fmt.Errorf("request %s: not connected to NATS: %w", subject, nats.ErrConnectionReconnecting)
}

// explain turns the bare timeout that a denied or unheard request ends in into something an operator can act on.
func explain(nc *nats.Conn, subject string, err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("request %s: nobody answers: is JetStream enabled and the stream there? %w", subject, err)
	case errors.Is(err, context.DeadlineExceeded):
		if last := nc.LastError(); errors.Is(last, nats.ErrPermissionViolation) {
			return fmt.Errorf("request %s: no answer; the connection was told: %w (%w)", subject, last, err)
		}
		return fmt.Errorf("request %s: no answer: %w", subject, err)
	}
	return fmt.Errorf("request %s: %w", subject, err)
}
