package notify

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// headerReason carries why a notification was sent, for people; nothing is decided by it.
const headerReason = "Evenkeel-Reason"

// headerGivenUp counts the turns in a row that ended without a stored outcome: what was asked for is still owed.
const headerGivenUp = "Evenkeel-Given-Up"

// Publisher sends notifications. It is safe for concurrent use.
type Publisher struct {
	nc    *nats.Conn
	names subject.Names
}

// NewPublisher checks the configuration. The streams must have been made by [Streams].
func NewPublisher(nc *nats.Conn, cfg Config) (*Publisher, error) {
	names, err := cfg.names()
	if err != nil {
		return nil, err
	}
	return &Publisher{nc: nc, names: names}, nil
}

// Publish asks for a look at an object and returns once the server has stored that. If one is queued already, it keeps
// its place and stands for both. A pending requeue of the object is cancelled: it is looked at now.
//
// After an error the notification may have been stored all the same; publishing again does no harm.
func (p *Publisher) Publish(ctx context.Context, kind, name, reason string) error {
	err := p.publish(ctx, kind, name, reason, true)
	var wrong *jsapi.WrongSequence
	if errors.As(err, &wrong) {
		return nil
	}
	return err
}

// PublishAlways is Publish for a look that must come after this call whatever is in the queue: a notification that is
// queued is replaced, so the object moves to the end. It is for work that was taken and not finished.
func (p *Publisher) PublishAlways(ctx context.Context, kind, name, reason string) error {
	return p.publish(ctx, kind, name, reason, false)
}

func (p *Publisher) publish(ctx context.Context, kind, name, reason string, ifAbsent bool) error {
	if err := subject.CheckObject(kind, name); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	m := nats.NewMsg(p.names.Fresh(kind, name))
	if ifAbsent {
		m.Header = jsapi.Expect(0)
	}
	m.Header[headerReason] = []string{reason}
	if !ifAbsent {
		m.Header[headerGivenUp] = []string{"1"}
	}
	m.Header[jsapi.HeaderScheduleNext] = []string{"purge"}
	m.Header[jsapi.HeaderScheduler] = []string{p.names.Schedule(kind, name)}
	if _, err := jsapi.Publish(ctx, p.nc, m); err != nil {
		return fmt.Errorf("notify %s/%s: %w", kind, name, err)
	}
	return nil
}

// Queued reports whether the object is looked at without anybody's doing: a fresh notification is in the stream, be it that
// it waits or that it is being worked on, or a turn that was given up sleeps ([Again]).
func (p *Publisher) Queued(ctx context.Context, kind, name string) (bool, error) {
	for _, subj := range []string{p.names.Fresh(kind, name), p.names.Schedule(kind, name)} {
		m, err := jsapi.Last(ctx, p.nc, p.names.WorkStream(), subj)
		switch {
		case errors.Is(err, jsapi.ErrNoMessage):
		case err != nil:
			return false, fmt.Errorf("look for a notification of %s/%s: %w", kind, name, err)
		case m.Subject == p.names.Fresh(kind, name), m.Header.Get(headerGivenUp) != "":
			return true, nil
		}
	}
	return false, nil
}

// PublishLater puts an object into the lane behind all fresh changes. It reports false if it is there already. It is for
// resync.
func (p *Publisher) PublishLater(ctx context.Context, kind, name, reason string) (put bool, err error) {
	if err := subject.CheckObject(kind, name); err != nil {
		return false, fmt.Errorf("notify: %w", err)
	}
	m := nats.NewMsg(p.names.Later(kind, name))
	m.Header = jsapi.Expect(0)
	m.Header[headerReason] = []string{reason}
	_, err = jsapi.Publish(ctx, p.nc, m)
	var wrong *jsapi.WrongSequence
	switch {
	case errors.As(err, &wrong):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("notify %s/%s later: %w", kind, name, err)
	}
	return true, nil
}
