package requeue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
	"github.com/evenkeel-io/evenkeel/internal/random"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// Defaults of [Backoff].
const (
	// DefaultBase is the longest first delay: long enough for a passing fault to pass.
	DefaultBase = time.Second
	// DefaultCap is the longest delay: an object whose cause of failure was mended is back within it.
	DefaultCap = 5 * time.Minute
	// Floor is the shortest delay. The server's timer for schedules ticks no faster (nats-server 2.15.2).
	Floor = 250 * time.Millisecond
)

// Backoff is exponential with full jitter and a cap: the delay before attempt n+1 is uniform between Floor and
// min(Cap, Base * 2^(n-1)). Full jitter spreads a burst of failures best (AWS Architecture Blog, "Exponential Backoff
// And Jitter", 2015). The zero value uses the defaults.
type Backoff struct {
	Base time.Duration
	Cap  time.Duration
}

// Ceiling is the longest delay after so many failures in a row, 1 or more.
func (b Backoff) Ceiling(failures int) time.Duration {
	base, ceiling := b.Base, b.Cap
	if base <= 0 {
		base = DefaultBase
	}
	if ceiling <= 0 {
		ceiling = DefaultCap
	}
	d := base
	for range failures - 1 {
		if d > ceiling/2 {
			return ceiling
		}
		d *= 2
	}
	return min(d, ceiling)
}

// Delay draws the delay after so many failures in a row, 1 or more.
func (b Backoff) Delay(failures int) time.Duration {
	return Jitter(b.Ceiling(failures))
}

// Jitter draws a delay between Floor and ceiling.
func Jitter(ceiling time.Duration) time.Duration {
	if ceiling <= Floor {
		return ceiling
	}
	return Floor + random.N(ceiling-Floor+1)
}

// maxSleep bounds how far ahead a schedule lies. The server counts nanoseconds since 1970 and takes a time after 2262 for
// one that has passed.
const maxSleep = 365 * 24 * time.Hour

// Queue schedules objects. It is safe for concurrent use.
type Queue struct {
	nc    *nats.Conn
	names subject.Names
}

// NewQueue returns a queue over the work stream of a prefix, which notify.Streams has made.
func NewQueue(nc *nats.Conn, prefix string) (*Queue, error) {
	if err := subject.CheckPrefix(prefix); err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return &Queue{nc: nc, names: subject.Names{Prefix: prefix}}, nil
}

// maxReplaced is how many schedules that another process puts in between At replaces before it gives up.
const maxReplaced = 5

// ErrNoRoom means that the server refuses to store a requeue because of a limit or a full disk. It was not stored, and
// trying again helps only once an operator has made room.
var ErrNoRoom = jsapi.ErrNoRoom

// At looks at the object again at a time, or after a year if that is sooner, and returns once the server has stored that.
// It replaces what was scheduled for the object before. header travels along (a trace context, say); it may be nil.
//
// The request names the schedule that it replaces, none at first. So one that is on its way for long, from a former holder
// of the object's lock, does not replace a newer schedule: it is refused. At then asks to replace that one, which is right
// only for the present holder: ctx must end when the lock is lost.
//
// Errors: [ErrNoRoom]; after any other the requeue may have been stored all the same. Doing it again does no harm while the
// lock is held.
func (q *Queue) At(ctx context.Context, kind, name string, at time.Time, header nats.Header) error {
	if err := subject.CheckObject(kind, name); err != nil {
		return fmt.Errorf("requeue: %w", err)
	}
	if limit := time.Now().Add(maxSleep); at.After(limit) {
		at = limit
	}
	// With fractions of a second, which nats.go's own option would cut off.
	due := at.UTC().Format(time.RFC3339Nano)
	m := nats.NewMsg(q.names.Schedule(kind, name))
	maps.Copy(m.Header, header)
	m.Header[jsapi.HeaderSchedule] = []string{"@at " + due}
	m.Header[jsapi.HeaderTarget] = []string{q.names.Later(kind, name)}
	wrong := new(jsapi.WrongSequence)
	for range 1 + maxReplaced {
		maps.Copy(m.Header, jsapi.Expect(wrong.Last))
		_, err := jsapi.Publish(ctx, q.nc, m)
		if err == nil {
			return nil
		}
		if !errors.As(err, &wrong) {
			return fmt.Errorf("requeue %s/%s: %w", kind, name, err)
		}
	}
	return fmt.Errorf("requeue %s/%s: replaced %d times while it was stored: does another process hold its lock? %w", kind, name, maxReplaced, wrong)
}
