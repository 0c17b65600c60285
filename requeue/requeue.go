package requeue

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
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
		if d >= ceiling/2 {
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
	return Floor + rand.N(ceiling-Floor+1)
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

// At looks at the object again at a time, or after a year if that is sooner, and returns once the server has stored that.
// It replaces what was scheduled for the object before. header travels along (a trace context, say); it may be nil.
func (q *Queue) At(ctx context.Context, kind, name string, at time.Time, header nats.Header) error {
	if err := subject.CheckObject(kind, name); err != nil {
		return fmt.Errorf("requeue: %w", err)
	}
	m := nats.NewMsg(q.names.Schedule(kind, name))
	maps.Copy(m.Header, header)
	// With fractions of a second, which nats.go's own option would cut off.
	if limit := time.Now().Add(maxSleep); at.After(limit) {
		at = limit
	}
	m.Header[jsapi.HeaderSchedule] = []string{"@at " + at.UTC().Format(time.RFC3339Nano)}
	m.Header[jsapi.HeaderTarget] = []string{q.names.Later(kind, name)}
	if _, err := jsapi.Publish(ctx, q.nc, m); err != nil {
		return fmt.Errorf("requeue %s/%s: %w", kind, name, err)
	}
	return nil
}
