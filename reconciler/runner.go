package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/repeat"
	"github.com/evenkeel-io/evenkeel/internal/subject"
	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/notify"
	"github.com/evenkeel-io/evenkeel/requeue"
)

// Runner runs the controllers of one process. Make it with [New], use it once.
type Runner struct {
	cfg       Config
	locker    *lock.Locker
	publisher *notify.Publisher
	queue     *requeue.Queue
	kinds     []*kind
	gate      gate
	running   atomic.Bool
	preparing atomic.Pointer[error] // why the server could not be prepared at the last try; nil when it is
	unknown   atomic.Pointer[error] // why the API has not said yet who this controller is; nil when it has
	missing   chan struct{}         // something that Evenkeel needs on the server is gone
	rewoundAt atomic.Int64          // when it was last said that fences went backwards, in nanoseconds since 1970
	troubles  repeat.Filter         // what was logged lately
}

// Run is New followed by Runner.Run.
func Run(ctx context.Context, cfg Config, controllers ...Controller) error {
	r, err := New(cfg, controllers...)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// New checks everything that can be checked without a server, and names the field that is wrong.
func New(cfg Config, controllers ...Controller) (*Runner, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if len(controllers) == 0 {
		return nil, errors.New("reconciler: no controllers: pass at least one, made with For")
	}
	r := &Runner{cfg: cfg, missing: make(chan struct{}, 1), troubles: repeat.Filter{First: repeatFirst, Max: repeatMax}}
	seen := map[string]bool{}
	var keys []string
	for _, c := range controllers {
		c = c.withDefaults()
		if err := c.validate(); err != nil {
			return nil, err
		}
		if seen[c.kind] {
			return nil, fmt.Errorf("reconciler: two controllers of %s: a kind has one function", c.kind)
		}
		seen[c.kind] = true
		api, err := apiclient.New[json.RawMessage, json.RawMessage](apiclient.Config{URL: cfg.API, HTTP: cfg.HTTP, Token: cfg.Token, Tries: 1}, c.kind) // it retries by itself, and lets others go first
		if err != nil {
			return nil, fmt.Errorf("reconciler: Config.API: %w", err)
		}
		r.kinds = append(r.kinds, newKind(r, c, api))
		keys = append(keys, c.kind+".>", subject.ResyncLockKey(c.kind))
	}
	return r, r.connect(keys)
}

func (r *Runner) connect(keys []string) (err error) {
	if r.publisher, err = notify.NewPublisher(r.cfg.NATS, r.cfg.notify()); err != nil {
		return fmt.Errorf("reconciler: %w", err)
	}
	if r.queue, err = requeue.NewQueue(r.cfg.NATS, r.cfg.Prefix); err != nil {
		return fmt.Errorf("reconciler: %w", err)
	}
	r.locker, err = lock.New(r.cfg.NATS, lock.Config{
		Bucket: subject.Names{Prefix: r.cfg.Prefix}.LockBucket(), TTL: r.cfg.Lease, Holder: r.cfg.Name,
		Keys: keys, Recover: r.takeOver,
		OnReady: func() {
			for _, k := range r.kinds {
				k.consumer.Wake()
			}
			r.emit(Event{Step: StepRunning})
		},
		OnError: r.lockTrouble,
	})
	if err != nil {
		return fmt.Errorf("reconciler: Config.Lease: %w", err)
	}
	return nil
}

// lockTrouble says what the locker met, and has the bucket made again if it is gone or has got settings that lose locks.
func (r *Runner) lockTrouble(doing string, err error) {
	r.trouble(doing, err)
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, lock.ErrLimited) {
		r.lacks()
	}
}

// Notify asks for a look at an object, with a reason that logs and events show. It is for code outside of the functions
// that learns of something: a watch, a poller. It works whether Run runs or not.
func (r *Runner) Notify(ctx context.Context, kind, name, reason string) error {
	return r.publisher.Publish(ctx, kind, name, reason)
}

// Run works until ctx ends, then stops cleanly: it takes no new work, lets running functions finish within the grace
// period, cancels the rest, hands unfinished work over, and releases its locks. It returns nil then, and an error if it
// could not start or if functions ignored their cancelled context.
//
// It stops by itself, as cleanly as it then can, and returns an error if the connection to NATS is closed for good, and if the API
// says that the controller cannot do its work: its Prefix is another one, or its token does not let it write the status of a kind.
func (r *Runner) Run(ctx context.Context) error {
	if err := r.prepare(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	asked := ctx
	ctx, end := context.WithCancelCause(asked)
	defer end(nil)
	locking, unlock := context.WithCancel(context.WithoutCancel(ctx))
	defer unlock()
	working, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)

	var background sync.WaitGroup
	background.Go(func() { r.mendAlways(ctx) })
	background.Go(func() { r.watchNATS(ctx, end) })
	background.Go(func() { r.introduce(ctx, end) })
	var pulling sync.WaitGroup
	for _, k := range r.kinds {
		pulling.Go(func() {
			if err := k.run(ctx, working); err != nil {
				end(err)
			}
		})
		pulling.Go(func() { k.resyncAlways(ctx) })
		pulling.Go(func() { k.reviveAlways(ctx) })
	}
	r.running.Store(true)
	background.Go(func() { // last, for "running" is said when its session begins
		if err := r.locker.Run(locking); err != nil {
			end(err)
		}
	})
	<-ctx.Done()
	r.running.Store(false)
	within(ended(&pulling), stalledFor)
	r.emit(Event{Step: StepStopping, After: r.cfg.Grace})
	stuck := r.finish(abort)
	unlock()
	if !within(ended(&pulling, &background), r.cfg.Lease+stalledFor) {
		stuck = errors.Join(stuck, errStalled)
	}
	var failed error
	if cause := context.Cause(ctx); cause != context.Cause(asked) { //nolint:errorlint // whether nobody asked for the stop
		failed = cause
	}
	return errors.Join(failed, stuck)
}

// Ready returns nil while the runner can take up work, and else why it cannot. It is for readiness probes: it asks no
// server. A replica that is not ready needs no restart; it goes on by itself.
func (r *Runner) Ready() error {
	preparing, unknown := r.preparing.Load(), r.unknown.Load()
	switch {
	case preparing != nil:
		return fmt.Errorf("reconciler: not running yet: prepare NATS: %w", *preparing)
	case !r.running.Load():
		return errors.New("reconciler: not running")
	case !r.cfg.NATS.IsConnected():
		return errors.New("reconciler: not connected to NATS")
	case !r.locker.Ready():
		return fmt.Errorf("reconciler: %w", lock.ErrNoSession)
	case r.gate.closed():
		return errors.New("reconciler: the API is out of reach")
	case unknown != nil:
		return fmt.Errorf("reconciler: %w", *unknown)
	}
	for _, k := range r.kinds {
		if err := k.consumer.Err(); err != nil {
			return fmt.Errorf("reconciler: %s get no notifications: %w", k.kind, err)
		}
	}
	return nil
}

// offsetIgnored is how far this host's clock may be from the server's before times are taken from the server's: below,
// the estimate is worth no more than the clock.
const offsetIgnored = time.Second

// now is the time by the server's clock, by which requeues come due.
func (r *Runner) now() time.Time {
	return serverTime(time.Now(), r.locker.ClockOffset())
}

func serverTime(now time.Time, offset time.Duration) time.Time {
	if offset.Abs() <= offsetIgnored {
		return now
	}
	return now.Add(offset)
}

// names are the kinds.
func (r *Runner) names() (kinds []string) {
	for _, k := range r.kinds {
		kinds = append(kinds, k.kind)
	}
	return kinds
}

// takeOver queues an object whose holder died. It is called before the dead holder's lock is freed. holder is the name of the
// replica that died.
func (r *Runner) takeOver(ctx context.Context, key, holder string) error {
	if slices.ContainsFunc(r.kinds, func(k *kind) bool { return key == subject.ResyncLockKey(k.kind) }) {
		return nil // the next search begins from the start
	}
	kind, name, err := subject.ParseLockKey(key)
	if err != nil {
		r.trouble("take over "+key, err)
		return nil // nobody's object: there is no work behind the lock
	}
	if err := r.publisher.PublishAlways(ctx, kind, name, "its holder "+holder+" died"); err != nil {
		return err
	}
	r.emit(Event{Step: StepTookOver, Kind: kind, Name: name, Holder: holder})
	return nil
}

func (r *Runner) trouble(doing string, err error) {
	r.emit(Event{Step: StepTrouble, Reason: doing, Err: err})
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
