package notify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// Timing of the pull loop.
const (
	// pullExpires is how long the server keeps a pull that it has nothing for.
	pullExpires = time.Second
	// pullGrace is how long past that its answer may take. Then the pull counts as lost (a cut link, a leader that
	// died: nats.go#2063) and is sent again, so a stall costs a second and a half, not a heartbeat's half minute.
	pullGrace = 500 * time.Millisecond
	// gather is how long, while there is a backlog, a few free workers wait for more to become free, so that one pull
	// serves them all: a pull for each message would cost the server a tenth more.
	gather = 250 * time.Microsecond
	// probeEvery is how often the later lane is asked when so few workers are free that it has no pull of its own.
	probeEvery = 250 * time.Millisecond
	// errorPause is how long a lane rests after the server said that it cannot serve it, doubling up to maxErrorPause.
	errorPause    = 50 * time.Millisecond
	maxErrorPause = 2 * time.Second
	// laterShare is the share of pulls, one in so many, that the later lane gets while both lanes have a backlog.
	laterShare = 4
)

// ConsumerConfig says what to consume.
type ConsumerConfig struct {
	Config
	// Kind is the kind whose notifications to pull. Required.
	Kind string
	// MaxFree is the largest value that Free returns: the number of workers. Required.
	MaxFree int
	// Free says how many workers could start now. It is called from the pull loop. Required.
	Free func() int
	// OnError is told of what went wrong and is being retried. Default: nobody is told.
	OnError func(doing string, err error)
	// OnMissing is called when the server knows no such consumer; it may call [Streams] in the background. Default: none.
	OnMissing func()
}

// Consumer pulls the notifications of one kind, never more than there are free workers.
type Consumer struct {
	nc         *nats.Conn
	cfg        ConsumerConfig
	names      subject.Names
	kind       string
	stream     string
	replicated bool
	wake       chan struct{}
	handle     func(*Delivery)

	suspects map[uint64]time.Time // of Revive: what was not delivered at its last call, by sequence, and since when
}

// NewConsumer looks the stream up; it and the kind's consumers must have been made by [Streams].
func NewConsumer(ctx context.Context, nc *nats.Conn, cfg ConsumerConfig) (*Consumer, error) {
	names, err := cfg.names()
	if err != nil {
		return nil, err
	}
	if err := subject.CheckKind(cfg.Kind); err != nil {
		return nil, fmt.Errorf("notify: ConsumerConfig.Kind: %w", err)
	}
	if cfg.Free == nil || cfg.MaxFree < 1 {
		return nil, errors.New("notify: ConsumerConfig needs Free and MaxFree")
	}
	if cfg.OnError == nil {
		cfg.OnError = func(string, error) {}
	}
	if cfg.OnMissing == nil {
		cfg.OnMissing = func() {}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	s, err := js.Stream(ctx, names.WorkStream())
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", names.WorkStream(), err)
	}
	return &Consumer{
		nc: nc, cfg: cfg, names: names, kind: cfg.Kind, stream: names.WorkStream(),
		replicated: s.CachedInfo().Config.Replicas > 1, wake: make(chan struct{}, 1),
	}, nil
}

// Wake tells the pull loop that Free has grown.
func (c *Consumer) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run pulls until the context ends, and passes each notification to handle, which is called from the pull loop and must
// not block. It returns an error only if it cannot start. Call it once.
func (c *Consumer) Run(ctx context.Context, handle func(*Delivery)) error {
	c.handle = handle
	// Room for every message and every status that can be under way, or the client would drop some.
	inbox, in := c.nc.NewRespInbox(), make(chan *nats.Msg, 4*c.cfg.MaxFree+64)
	sub, err := c.nc.ChanSubscribe(inbox+".*", in)
	if err != nil {
		return fmt.Errorf("notify: subscribe: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	p := newPuller(c, inbox)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next := p.pull(time.Now())
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			c.handBack(in)
			return nil
		case m := <-in:
			p.receive(ctx, m)
		case <-c.wake:
		case <-timer.C:
		}
		p.drain(ctx, in)
	}
}

// handBack returns what arrived and was not handed out, so that another replica need not wait for it.
func (c *Consumer) handBack(in chan *nats.Msg) {
	for {
		select {
		case m := <-in:
			if m.Header.Get("Status") == "" {
				_ = m.Respond([]byte("-NAK")) // best effort: AckWait does the same, later
			}
		default:
			return
		}
	}
}

// deliver hands a message out, or sets it aside if it is no notification of this kind.
func (c *Consumer) deliver(ctx context.Context, lane int, m *nats.Msg, seq, attempts uint64) {
	kind, name, err := c.names.Parse(m.Subject)
	if err == nil && kind != c.kind {
		err = fmt.Errorf("kind %s on a consumer of %s", kind, c.kind)
	}
	if err != nil {
		c.cfg.OnError("read notification", err)
		if err := c.setAside(ctx, m, err); err != nil {
			c.cfg.OnError("set aside", err) // it comes back after AckWait
		}
		return
	}
	givenUp, _ := strconv.Atoi(m.Header.Get(headerGivenUp)) // 0 without one
	c.handle(&Delivery{
		Kind: kind, Name: name, Asked: lane == laneFresh || givenUp > 0, GivenUp: givenUp,
		Reason: m.Header.Get(headerReason), Header: m.Header, Attempts: attempts,
		c: c, msg: m, seq: seq,
	})
}

// Later returns how many notifications wait in the later lane.
func (c *Consumer) Later(ctx context.Context) (uint64, error) {
	var info struct {
		NumPending uint64 `json:"num_pending"`
	}
	l := lanes(c.names, c.kind)[laneLater]
	if err := jsapi.Request(ctx, c.nc, "$JS.API.CONSUMER.INFO."+c.stream+"."+l.consumer, nil, &info); err != nil {
		return 0, fmt.Errorf("notify: %w", err)
	}
	return info.NumPending, nil
}
