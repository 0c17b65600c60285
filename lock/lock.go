package lock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Errors of locks; test with errors.Is.
var (
	// ErrHeld: the lock is held by another holder, or by another goroutine of this process.
	ErrHeld = errors.New("lock is held")
	// ErrLost: the session could not be renewed in time; its locks may pass to others. Also the cause that a lock's
	// context is cancelled with.
	ErrLost = errors.New("lock lost: the lease could not be renewed in time")
	// ErrReleased is the cause that a lock's context is cancelled with by Unlock and Abandon.
	ErrReleased = errors.New("lock released")
	// ErrNoSession: there is no session now, because Run is not running or the server is out of reach.
	ErrNoSession = errors.New("no lock session")
	// ErrLimited is told to Config.OnError when the bucket has settings that remove or refuse locks: call [Ensure], which
	// takes them off.
	ErrLimited = errors.New("the lock bucket has settings that remove or refuse locks")
)

// DefaultTTL is the default lease. A dead holder's locks are free after it and one sweep (a fifth of it), so within
// 15 s; a cut-off holder stops after two thirds of it.
const DefaultTTL = 10 * time.Second

// Config says where locks are kept and for how long.
type Config struct {
	// Bucket is the name of the KV bucket. Required.
	Bucket string
	// TTL is the lease, in whole seconds, at least 2. Default: DefaultTTL.
	TTL time.Duration
	// Holder is how this process is named to people who look at a lock, and to the next holder (see Predecessor).
	Holder string
	// Keys are the filters (NATS subject wildcards on keys) of the locks that Recover can handle. Default: none.
	// Lockers with the same Keys share the work of recovering.
	Keys []string
	// Recover is called for each lock whose holder is gone, before it is freed, with the name of that holder. It is
	// called for up to 128 keys at once; usually once for a key, but several Lockers may call it for the same one, also
	// at once. After an error the lock stays and the call is repeated. Required if Keys are given.
	Recover func(ctx context.Context, key, holder string) error
	// OnReady is called when a session has begun, so that TryLock may succeed. It must not block. Default: no call.
	OnReady func()
	// OnError is told of what went wrong in the background and is being retried. It must not block: the session is not
	// renewed meanwhile. Default: no call.
	OnError func(doing string, err error)
}

// Locker grants locks while its Run runs. It is safe for concurrent use.
type Locker struct {
	nc    *nats.Conn
	cfg   Config
	kv    string // subject prefix of the bucket's keys
	name  string // stream of the bucket
	self  []byte // Holder as JSON
	group string // of Lockers with the same Keys; empty without Keys

	running  atomic.Bool
	session  atomic.Pointer[session]
	offset   atomic.Int64 // see ClockOffset
	releases releases
	watches  watches
	suspects suspects
}

// New checks the configuration. It does not talk to the server; the bucket is made by [Ensure].
func New(nc *nats.Conn, cfg Config) (*Locker, error) {
	if cfg.TTL == 0 {
		cfg.TTL = DefaultTTL
	}
	switch {
	case nc == nil:
		return nil, errors.New("lock: no NATS connection")
	case cfg.Bucket == "":
		return nil, errors.New("lock: Config.Bucket is empty")
	case cfg.TTL < 2*time.Second || cfg.TTL%time.Second != 0:
		return nil, fmt.Errorf("lock: Config.TTL %s: want whole seconds, 2 or more (NATS counts a key's time to live in seconds)", cfg.TTL)
	case len(cfg.Keys) > 0 && cfg.Recover == nil:
		return nil, errors.New("lock: Config.Keys without Config.Recover")
	}
	if cfg.OnError == nil {
		cfg.OnError = func(string, error) {}
	}
	if cfg.OnReady == nil {
		cfg.OnReady = func() {}
	}
	self, _ := json.Marshal(cfg.Holder) // a string always encodes
	return &Locker{
		nc: nc, cfg: cfg, kv: "$KV." + cfg.Bucket + ".", name: "KV_" + cfg.Bucket, self: self, group: group(cfg.Keys),
		releases: newReleases(nc), watches: newWatches(), suspects: suspects{ids: map[string]struct{}{}},
	}, nil
}

// Ready reports whether locks can be taken now.
func (l *Locker) Ready() bool {
	s := l.session.Load()
	return s != nil && s.valid()
}

// ClockOffset is by how much the clock of the server that leads the bucket is ahead of the one here, as the last look for
// dead sessions showed, or else the start of the session. It is 0 until it is known, and if it is within the error of the
// measurement, half a round trip.
func (l *Locker) ClockOffset() time.Duration { return time.Duration(l.offset.Load()) }

// measure takes the server's clock from an answer that was given between sent and answered.
func (l *Locker) measure(server, sent, answered time.Time) {
	if server.IsZero() {
		return
	}
	half := answered.Sub(sent) / 2
	offset := server.Sub(sent.Add(half).Round(0))
	if offset.Abs() <= half {
		offset = 0
	}
	l.offset.Store(int64(offset))
}
