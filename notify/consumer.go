package notify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/repeat"
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
	// OnError is called with what went wrong and is being retried: once, and then at growing intervals up to ten minutes. It
	// must not block. Default: none.
	OnError func(doing string, err error)
	// OnMissing is called when a stream or a consumer is gone; it may call [Streams] in the background. It must not block.
	// Default: none.
	OnMissing func()
	// OnChanged is called when the work stream was made again, purged, limited, or put on another number of servers, or when
	// the settings of a consumer were changed, with a sentence that says so. Notifications may be lost then: call [Streams],
	// which repairs the stream, and look for objects that are owed a reconcile. It must not block. Default: none.
	OnChanged func(what string)
}

// Consumer pulls the notifications of one kind, never more than there are free workers.
type Consumer struct {
	nc     *nats.Conn
	cfg    ConsumerConfig
	names  subject.Names
	kind   string
	stream string
	wake   chan struct{}
	poison chan poison
	handle func(*Delivery)
	opened seen // the stream at the start

	replicated atomic.Bool
	troubles   repeat.Filter // what was reported lately

	mu   sync.Mutex
	errs [laneCount]error // why a lane is not served; guarded by mu

	// Of Revive: what was not delivered at its last call, by sequence, and since when; and what it found wrong with the
	// settings of each consumer, and which are paused.
	suspects  map[uint64]time.Time
	differing map[string]string
	paused    map[string]bool
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
	if cfg.OnChanged == nil {
		cfg.OnChanged = func(string) {}
	}
	var info streamInfo
	if err := jsapi.Request(ctx, nc, "$JS.API.STREAM.INFO."+names.WorkStream(), nil, &info); err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", names.WorkStream(), err)
	}
	c := &Consumer{
		nc: nc, cfg: cfg, names: names, kind: cfg.Kind, stream: names.WorkStream(), opened: info.seen(""),
		wake: make(chan struct{}, 1), poison: make(chan poison, maxPoison), differing: map[string]string{}, paused: map[string]bool{},
		troubles: repeat.Filter{First: 10 * time.Second, Max: 10 * time.Minute},
	}
	c.replicated.Store(info.Config.Replicas > 1)
	return c, nil
}

// Err returns why the kind gets no notifications although the connection is up: its pulls are refused or not answered,
// three in a row. It is nil while they are answered, and before [Consumer.Run]. It asks no server and may be called from
// any goroutine.
func (c *Consumer) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range c.errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Consumer) setErr(lane int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs[lane] = err
}

// report calls OnError unless it has been called for the same trouble lately. what tells apart the troubles of one action.
func (c *Consumer) report(doing, what string, err error) {
	if _, due := c.troubles.Due(time.Now(), doing+" "+what); due {
		c.cfg.OnError(doing, err)
	}
}

// clustered reports whether the work stream may be replicated.
func (c *Consumer) clustered() bool { return c.replicated.Load() || c.nc.ConnectedClusterName() != "" }

// Wake tells the pull loop that Free has grown.
func (c *Consumer) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// stopWithin bounds how long Run waits, when it is to stop, for calls of the client that hang on a link which has stalled.
const stopWithin = 2 * time.Second

// Run pulls until the context ends, and passes each notification to handle, which is called from the pull loop and must
// not block. handle is not called after the context has ended. It returns an error only if it cannot start. Call it once.
//
// It waits for its goroutines, with one exception: the client may be writing to a link that has stalled, and can not be
// interrupted. After two seconds Run returns then, and the goroutine ends with that write.
func (c *Consumer) Run(ctx context.Context, handle func(*Delivery)) error {
	c.handle = handle
	// Room for every message and every status that can be under way, or the client would drop some.
	inbox, in := c.nc.NewRespInbox(), make(chan *nats.Msg, 4*c.cfg.MaxFree+64)
	sub, err := c.nc.ChanSubscribe(inbox+".*", in)
	if err != nil {
		return fmt.Errorf("notify: subscribe: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var background sync.WaitGroup
		background.Go(func() { c.lookAlways(ctx, c.opened) })
		background.Go(func() { c.setAsideAlways(ctx) })
		c.loop(ctx, newPuller(c, inbox), in)
		c.handBack(in)
		_ = sub.Unsubscribe() // fails only on a closed connection
		background.Wait()
	}()
	<-ctx.Done()
	t := time.NewTimer(stopWithin)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
	return nil
}

// loop is the pull loop.
func (c *Consumer) loop(ctx context.Context, p *puller, in chan *nats.Msg) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		next := p.pull(time.Now())
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return
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
			_ = m.Respond([]byte("-NAK")) // best effort: AckWait does the same, later; a status has nothing to respond to
		default:
			return
		}
	}
}

// deliver hands a message out, has it set aside if it is no notification of this kind, or gives it back at a stop.
func (c *Consumer) deliver(ctx context.Context, lane int, m *nats.Msg, meta *nats.MsgMetadata) {
	if ctx.Err() != nil {
		_ = m.Respond([]byte("-NAK")) // best effort: AckWait does the same, later
		return
	}
	kind, name, err := c.names.Parse(m.Subject)
	if err == nil && kind != c.kind {
		err = fmt.Errorf("kind %s on a consumer of %s", kind, c.kind)
	}
	if err != nil {
		c.poisoned(m, err)
		return
	}
	givenUp, _ := strconv.Atoi(m.Header.Get(headerGivenUp)) // 0 without one
	c.handle(&Delivery{
		Kind: kind, Name: name, Asked: lane == laneFresh || givenUp > 0, GivenUp: givenUp,
		Reason: m.Header.Get(headerReason), Header: m.Header, Attempts: meta.NumDelivered, At: meta.Timestamp,
		c: c, msg: m, seq: meta.Sequence.Stream, received: time.Now(), connects: c.nc.Stats().Reconnects,
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
