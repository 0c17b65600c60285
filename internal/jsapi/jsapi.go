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
	if err := refusal(data); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("answer %.100q is none to a publish: something else listens to the subject", data)
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

// Next reads the oldest message with at least that sequence whose subject matches a filter, in the same way.
//
// A sequence at or below the stream's first one makes a server with file storage count every subject that matches
// (nats-server 2.15.2, fileStore.LoadNextMsg): 30 ms at 300,000 of them, against 0.1 ms behind it.
func Next(ctx context.Context, nc *nats.Conn, stream, filter string, sequence uint64) (*Message, error) {
	return get(ctx, nc, stream, filter, map[string]any{"seq": sequence, "next_by_subj": filter})
}

// Get reads the message with a sequence, in the same way.
func Get(ctx context.Context, nc *nats.Conn, stream string, sequence uint64) (*Message, error) {
	return get(ctx, nc, stream, strconv.FormatUint(sequence, 10), map[string]any{"seq": sequence})
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
	if _, err := nc.RequestWithContext(ctx, reply, []byte("+ACK")); err != nil {
		return explain(nc, reply, err)
	}
	return nil
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
