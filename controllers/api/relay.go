package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/internal/objects"
)

const (
	// inFlight bounds how many notifications are being published at a time: enough to hide the broker's round trip.
	inFlight = 16
	// batchSize bounds how many rows are published before they are marked, in one transaction.
	batchSize = 256
	// giveUpAfter so many failures in a row a batch is ended: that is an outage, not a bad object, and every row would wait
	// for its time-out.
	giveUpAfter = inFlight
	// publishTimeout bounds one notification, and markTimeout the marking of a batch.
	publishTimeout = 5 * time.Second
	markTimeout    = 5 * time.Second
	// defaultPoll is how often the relay looks for what nobody nudged it about: writes of an API that died before it
	// relayed them.
	defaultPoll = time.Second
	// firstRetry and lastRetry bound the wait after a sweep in which something failed. It doubles so many times before it
	// would be longer than lastRetry.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	doublings  = 6
)

var errOutage = errors.New("gave up: too many failures in a row")

// relay tells controllers of the rows that are dirty. Writes nudge it with the object's key; sweeps find the rest.
type relay struct {
	store  *store
	notify func(ctx context.Context, kind, name, reason string) error
	log    logr.Logger
	// published is told of each kind of which something was published. It must not wait.
	published func(kind string)
	nudges    chan objects.Key
	// turn holds who publishes now, and has room for one: run and flush do not publish the same row twice.
	turn chan struct{}
	// cursor is where the next sweep begins: behind the rows at which the last one gave up, so that a block of bad rows
	// does not hide those behind it. It belongs to who has the turn.
	cursor objects.Key
	// swept is when a sweep last found everything relayed, as Unix nanoseconds; 0 while run does not run.
	swept atomic.Int64
	// poll is defaultPoll, longer in tests of what does not need it.
	poll time.Duration
}

// dirty is a row to be notified, as it was read.
type dirty struct {
	objects.Key
	reason   string
	revision int64
}

func newRelay(s *store, notify func(ctx context.Context, kind, name, reason string) error, log logr.Logger) *relay {
	return &relay{
		store: s, notify: notify, published: func(string) {}, log: log, nudges: make(chan objects.Key, 4*batchSize),
		turn: make(chan struct{}, 1), poll: defaultPoll,
	}
}

// lag is for how long not everything could be relayed, 0 if nobody relays.
func (r *relay) lag() time.Duration {
	at := r.swept.Load()
	if at == 0 {
		return 0
	}
	return max(0, time.Since(time.Unix(0, at))-r.poll)
}

// nudge asks for an object to be relayed soon. It never waits: what finds no room is found by the next sweep.
func (r *relay) nudge(k objects.Key) {
	select {
	case r.nudges <- k:
	default:
	}
}

// run relays until ctx is done.
func (r *relay) run(ctx context.Context) error {
	r.swept.Store(time.Now().UnixNano())
	defer r.swept.Store(0)
	sweep := time.NewTimer(0)
	defer sweep.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case k := <-r.nudges:
			// The first failure brings the sweep forward; later ones leave its backoff alone.
			if err := r.relayNudged(ctx, k); err != nil && failures == 0 {
				failures++
				sweep.Reset(backoff(0))
			}
		case <-sweep.C:
			wait, err := r.poll, r.sweep(ctx)
			if err == nil || ctx.Err() != nil {
				failures = 0
				r.swept.Store(time.Now().UnixNano())
			} else {
				wait = backoff(failures)
				failures++
				r.log.Error(err, "relay of notifications, trying again", "failures", failures)
			}
			sweep.Reset(wait)
		}
	}
}

// flush relays what is dirty now.
func (r *relay) flush(ctx context.Context) error {
	return r.inTurn(ctx, func() error {
		r.cursor = objects.Key{}
		return r.pages(ctx)
	})
}

func (r *relay) sweep(ctx context.Context) error {
	return r.inTurn(ctx, func() error {
		if r.cursor != (objects.Key{}) {
			if err := r.pages(ctx); err != nil {
				return err
			}
		}
		return r.pages(ctx)
	})
}

func (r *relay) inTurn(ctx context.Context, do func() error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case r.turn <- struct{}{}:
	}
	defer func() { <-r.turn }()
	return do()
}

// pages publishes all dirty rows from the cursor to the end. A row that fails does not keep it from the others.
func (r *relay) pages(ctx context.Context) error {
	var failed error
	for {
		page, err := r.store.dirtyAfter(ctx, r.cursor)
		if err != nil {
			return errors.Join(failed, err)
		}
		last, err := r.publishAll(ctx, page)
		if errors.Is(err, errOutage) {
			r.cursor = last
			return err
		}
		failed = errors.Join(failed, err)
		if len(page) < batchSize {
			r.cursor = objects.Key{}
			return failed
		}
		r.cursor = last
	}
}

// relayNudged publishes the objects that writes have asked for, if they are still dirty: a sweep may have been there first.
func (r *relay) relayNudged(ctx context.Context, first objects.Key) error {
	return r.inTurn(ctx, func() error {
		asked := map[objects.Key]bool{first: true}
		for len(asked) < batchSize && len(r.nudges) > 0 {
			asked[<-r.nudges] = true
		}
		var batch []dirty
		for k := range asked {
			d, ok, err := r.store.dirtyOne(ctx, k)
			if err != nil {
				return err
			}
			if ok {
				batch = append(batch, d)
			}
		}
		_, err := r.publishAll(ctx, batch)
		return err
	})
}

// publishAll publishes a batch and then marks what the broker has taken. It returns the last row that it got to, and the
// first error. It never marks before it has published: a crash in between must cost a second notification, not the only one.
func (r *relay) publishAll(ctx context.Context, batch []dirty) (last objects.Key, err error) {
	var mu sync.Mutex // guards what follows
	var taken []dirty
	inARow := 0
	var publishing errgroup.Group
	publishing.SetLimit(inFlight)
	for _, d := range batch {
		mu.Lock()
		outage := inARow >= giveUpAfter
		mu.Unlock()
		if outage || ctx.Err() != nil {
			break
		}
		last = d.Key
		publishing.Go(func() error {
			err := r.publish(ctx, d)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				inARow++
				return err
			}
			inARow = 0
			taken = append(taken, d)
			r.published(d.Kind)
			return nil
		})
	}
	err = publishing.Wait()
	if inARow >= giveUpAfter {
		err = fmt.Errorf("%w: %w", errOutage, err)
	}
	return last, errors.Join(err, ctx.Err(), r.mark(ctx, taken))
}

func (r *relay) publish(ctx context.Context, d dirty) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := r.notify(ctx, d.Kind, d.Name, d.reason); err != nil {
		return fmt.Errorf("notify %s %s: %w", d.Key, d.reason, err)
	}
	return nil
}

// mark stores what has been notified, also when the relay is being stopped: in one order everywhere, so that relays of two
// APIs do not wait for each other's rows in a circle.
func (r *relay) mark(ctx context.Context, taken []dirty) error {
	if len(taken) == 0 {
		return nil
	}
	slices.SortFunc(taken, func(a, b dirty) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	return r.store.transact(ctx, func(tx *transaction) error {
		for _, d := range taken {
			if err := markNotified(ctx, tx, d); err != nil {
				return err
			}
		}
		return nil
	})
}

// backoff is the wait after so many earlier failures: doubling, and somewhere in its upper half, so that APIs that saw
// the same outage do not all come back at once.
func backoff(failures int) time.Duration {
	d := lastRetry
	if failures < doublings {
		d = firstRetry << failures
	}
	return d/2 + rand.N(d/2)
}
