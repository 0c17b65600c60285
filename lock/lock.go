package lock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-io/evenkeel/internal/jsapi"
)

// Errors of locks; test with errors.Is.
var (
	// ErrHeld: somebody else holds the lock.
	ErrHeld = errors.New("lock is held")
	// ErrLost: the session could not be renewed in time; its locks may pass to others. Also the cause that a lock's
	// context is cancelled with.
	ErrLost = errors.New("lock lost: the lease could not be renewed in time")
	// ErrReleased is the cause that a lock's context is cancelled with by Unlock.
	ErrReleased = errors.New("lock released")
	// ErrNoSession: there is no session now, because Run is not running or the server is out of reach.
	ErrNoSession = errors.New("no lock session")
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
	// Holder is how this process is named to people who look at a lock.
	Holder string
	// Keys are the filters (NATS subject wildcards on keys) of the locks that Recover can handle. Default: none.
	Keys []string
	// Recover is called for each lock whose holder is gone, before it is freed; any number of Lockers may call it for
	// the same key, also at once. After an error the lock stays and the call is repeated. Required if Keys are given.
	Recover func(ctx context.Context, key string) error
	// OnReady is called when a session has begun, so that TryLock may succeed. Default: nobody is told.
	OnReady func()
	// OnError is told of what went wrong in the background and is being retried. Default: nobody is told.
	OnError func(doing string, err error)
}

// Locker grants locks while its Run runs. It is safe for concurrent use.
type Locker struct {
	nc   *nats.Conn
	cfg  Config
	kv   string // subject prefix of the bucket's keys
	name string // stream of the bucket
	self []byte // Holder as JSON

	session  atomic.Pointer[session]
	releases releases
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
	self, err := json.Marshal(cfg.Holder)
	if err != nil {
		return nil, fmt.Errorf("lock: Config.Holder: %w", err)
	}
	return &Locker{nc: nc, cfg: cfg, kv: "$KV." + cfg.Bucket + ".", name: "KV_" + cfg.Bucket, self: self}, nil
}

// entry is the value of a lock's key.
type entry struct {
	Session string    `json:"session"`
	Holder  string    `json:"holder"`
	Nonce   uint64    `json:"nonce"`
	Since   time.Time `json:"since"`
}

// TryLock takes the lock on a key, or fails with [ErrHeld] or [ErrNoSession]. The lock's context derives from ctx.
//
// After any other error the lock may have been taken on the server; the Locker finds out and frees it.
func (l *Locker) TryLock(ctx context.Context, key string) (*Lock, error) {
	s := l.session.Load()
	if s == nil {
		return nil, fmt.Errorf("lock %s: %w", key, ErrNoSession)
	}
	nonce := s.begin()
	lk, err := l.tryLock(ctx, s, key, nonce)
	if err != nil {
		s.end(nonce)
	}
	return lk, err
}

func (l *Locker) tryLock(ctx context.Context, s *session, key string, nonce uint64) (*Lock, error) {
	m := nats.NewMsg(l.kv + "lock." + key)
	m.Data = value(s.id, l.self, nonce)
	expect := uint64(0)
	for range 4 {
		m.Header = jsapi.Expect(expect)
		seq, err := jsapi.Publish(ctx, l.nc, m)
		var wrong *jsapi.WrongSequence
		switch {
		case err == nil:
			return s.grant(ctx, l, key, seq, nonce)
		case errors.As(err, &wrong):
			last, err := l.look(ctx, key)
			if err != nil {
				return nil, err
			}
			if last.entry != nil && last.entry.Session == s.id && last.entry.Nonce == nonce {
				return s.grant(ctx, l, key, last.revision, nonce) // an earlier try got through after all
			}
			if last.entry != nil {
				return nil, fmt.Errorf("lock %s: %w by %s", key, ErrHeld, last.entry.Holder)
			}
			expect = last.revision
		default:
			var refused *jsapi.APIError
			if !errors.As(err, &refused) {
				s.doubt(key, nonce)
			}
			return nil, fmt.Errorf("lock %s: %w", key, err)
		}
	}
	return nil, fmt.Errorf("lock %s: %w: it keeps changing hands", key, ErrHeld)
}

// value is written by hand: it is on the path of every reconcile, and encoding/json would be a tenth of its cost.
func value(session string, holder []byte, nonce uint64) []byte {
	b := make([]byte, 0, 128)
	b = append(b, `{"session":"`...)
	b = append(b, session...)
	b = append(b, `","holder":`...)
	b = append(b, holder...)
	b = append(b, `,"nonce":`...)
	b = strconv.AppendUint(b, nonce, 10)
	b = append(b, `,"since":"`...)
	b = time.Now().UTC().AppendFormat(b, time.RFC3339Nano)
	return append(b, `"}`...)
}

// last is what a key holds: a lock (entry), or nothing or a delete marker (entry nil) at a revision to expect.
type last struct {
	entry    *entry
	revision uint64
}

func (l *Locker) look(ctx context.Context, key string) (last, error) {
	m, err := jsapi.Last(ctx, l.nc, l.name, l.kv+"lock."+key)
	if errors.Is(err, jsapi.ErrNoMessage) {
		return last{}, nil
	}
	if err != nil {
		return last{}, fmt.Errorf("look at lock %s: %w", key, err)
	}
	if m.Header.Get(jsapi.HeaderOperation) != "" {
		return last{revision: m.Sequence}, nil
	}
	e := new(entry)
	if err := json.Unmarshal(m.Data, e); err != nil {
		return last{}, fmt.Errorf("look at lock %s: its value is not ours (delete the key to free it): %w", key, err)
	}
	return last{entry: e, revision: m.Sequence}, nil
}

// Held reports whether somebody, this process included, has the lock on a key now.
func (l *Locker) Held(ctx context.Context, key string) (bool, error) {
	last, err := l.look(ctx, key)
	return last.entry != nil, err
}

// Ready reports whether locks can be taken now.
func (l *Locker) Ready() bool {
	s := l.session.Load()
	return s != nil && s.valid()
}

// OnRelease calls f whenever the key's lock is released, until stop is called. To miss none, call TryLock once more
// behind it. f is a hint that saves polling, not a promise: it does not come over a link that is cut.
func (l *Locker) OnRelease(key string, f func()) (stop func(), err error) {
	sub, err := l.nc.Subscribe(l.kv+"lock."+key, func(m *nats.Msg) {
		if m.Header.Get(jsapi.HeaderOperation) != "" {
			f()
		}
	})
	if err != nil {
		return nil, fmt.Errorf("watch lock %s: %w", key, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only on a closed connection, where there is nothing to end
}

// Lock is a lock that was granted. Its methods are safe for concurrent use.
type Lock struct {
	locker *Locker
	s      *session
	key    string
	fence  uint64
	nonce  uint64
	ctx    context.Context //nolint:containedctx // it is the lock's lifetime, which is what the type is about
	cancel context.CancelCauseFunc
	once   sync.Once
}

// Key is the key that is locked.
func (k *Lock) Key() string { return k.key }

// Fence is the fencing token: the KV revision at which the lock was taken. Later locks have higher ones.
func (k *Lock) Fence() uint64 { return k.fence }

// Context is cancelled when the lock is lost or released, with the cause ErrLost or ErrReleased.
func (k *Lock) Context() context.Context { return k.ctx }

// Lost reports whether the lock may have passed to somebody else. It asks the clocks, not the context, so it is right
// also in the first moment after a freeze.
func (k *Lock) Lost() bool { return !k.s.valid() }

// Unlock releases the lock, by its revision, so that a lock that has passed on is left alone. It does not wait for the
// server; the Locker repeats the release until it is confirmed. Calling it again does nothing.
func (k *Lock) Unlock() {
	k.once.Do(func() {
		k.s.forget(k)
		k.cancel(ErrReleased)
		k.locker.release(k.key, k.fence)
	})
}
