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

const (
	headerSubject = "Evenkeel-Subject"
	headerWhy     = "Evenkeel-Why"
	headerAt      = "Evenkeel-At"
)

// Aside is the record of a message that nobody could handle.
type Aside struct {
	// Sequence identifies the record to [DropAside].
	Sequence uint64
	// Subject is where the message came from.
	Subject string
	// Why is what was wrong with it.
	Why string
	// At is when it was set aside.
	At time.Time
	// Data is the message's body.
	Data []byte
}

// ListAside returns what was set aside of a kind, oldest first, at most [HistoryPerSubject] records.
func ListAside(ctx context.Context, nc *nats.Conn, cfg Config, kind string) ([]Aside, error) {
	stream, filter, err := asideStream(ctx, nc, cfg, kind)
	if err != nil {
		return nil, err
	}
	var records []Aside
	for seq := uint64(1); ; {
		m, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(filter))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return records, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list what is set aside of %s: %w", kind, err)
		}
		at, _ := time.Parse(time.RFC3339Nano, m.Header.Get(headerAt)) // zero if somebody else wrote the record
		records = append(records, Aside{
			Sequence: m.Sequence, Subject: m.Header.Get(headerSubject), Why: m.Header.Get(headerWhy), At: at, Data: m.Data,
		})
		seq = m.Sequence + 1
	}
}

// DropAside removes one record for good. One that is gone already is no error.
func DropAside(ctx context.Context, nc *nats.Conn, cfg Config, sequence uint64) error {
	names, err := cfg.names()
	if err != nil {
		return err
	}
	if err := jsapi.Delete(ctx, nc, names.HistoryStream(), sequence); err != nil {
		return fmt.Errorf("drop record %d: %w", sequence, err)
	}
	return nil
}

func asideStream(ctx context.Context, nc *nats.Conn, cfg Config, kind string) (jetstream.Stream, string, error) {
	names, err := cfg.names()
	if err != nil {
		return nil, "", err
	}
	if err := subject.CheckKind(kind); err != nil {
		return nil, "", fmt.Errorf("notify: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, "", fmt.Errorf("notify: %w", err)
	}
	s, err := js.Stream(ctx, names.HistoryStream())
	if err != nil {
		return nil, "", fmt.Errorf("look at stream %s: %w", names.HistoryStream(), err)
	}
	return s, names.Aside(kind), nil
}
