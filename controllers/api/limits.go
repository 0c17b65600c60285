package api

import (
	"container/list"
	"math"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxCallers bounds how many callers are remembered. Who is forgotten for others begins anew, with a full burst.
	maxCallers = 10_000
	// failuresPerSecond and failuresAtOnce are how many wrong tokens one address may send.
	failuresPerSecond = 1
	failuresAtOnce    = 20
)

// recent is a map that forgets the key which has not been asked for the longest. It is not safe for concurrent use.
type recent[K comparable, V any] struct {
	limit int
	order list.List // of pair[K, V], the latest first
	at    map[K]*list.Element
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

// get returns the value of a key.
func (l *recent[K, V]) get(key K) (value V, ok bool) {
	e, ok := l.at[key]
	if !ok {
		return value, false
	}
	l.order.MoveToFront(e)
	return e.Value.(pair[K, V]).value, true //nolint:errcheck // put puts in nothing else
}

// put adds a key that get did not find.
func (l *recent[K, V]) put(key K, value V) {
	if l.at == nil {
		l.at = map[K]*list.Element{}
	}
	if len(l.at) >= l.limit {
		l.drop(l.order.Back().Value.(pair[K, V]).key) //nolint:errcheck // likewise
	}
	l.at[key] = l.order.PushFront(pair[K, V]{key, value})
}

func (l *recent[K, V]) drop(key K) {
	if e, ok := l.at[key]; ok {
		delete(l.at, key)
		l.order.Remove(e)
	}
}

// limits is a rate limit for each caller. It is safe for concurrent use.
type limits[K comparable] struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	callers recent[K, *rate.Limiter] // guarded by mu
}

// newLimits makes limits of so many a second, and of burst at once; burst 0 is as many as in a second. perSecond 0 is no
// limit.
func newLimits[K comparable](perSecond float64, burst int) *limits[K] {
	l := &limits[K]{rate: rate.Limit(perSecond), burst: burst, callers: recent[K, *rate.Limiter]{limit: maxCallers}}
	if perSecond <= 0 {
		l.rate = rate.Inf
	}
	if burst <= 0 && l.rate != rate.Inf {
		l.burst = max(1, int(math.Ceil(perSecond)))
	}
	return l
}

// take takes one of a caller's requests. It returns 0, or how long the caller has to wait until there is one.
func (l *limits[K]) take(key K, now time.Time) time.Duration {
	if l.rate == rate.Inf {
		return 0
	}
	r := l.of(key).ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// exhausted is take that takes nothing.
func (l *limits[K]) exhausted(key K, now time.Time) time.Duration {
	missing := 1 - l.of(key).TokensAt(now)
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing / float64(l.rate) * float64(time.Second))
}

func (l *limits[K]) of(key K) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter, ok := l.callers.get(key)
	if !ok {
		limiter = rate.NewLimiter(l.rate, l.burst)
		l.callers.put(key, limiter)
	}
	return limiter
}

// familiar remembers the hashes of tokens that were right. It is safe for concurrent use.
type familiar[K comparable] struct {
	mu   sync.Mutex
	keys recent[K, struct{}] // guarded by mu
}

func (f *familiar[K]) has(key K) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.keys.get(key)
	return ok
}

func (f *familiar[K]) add(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.keys.get(key); !ok {
		f.keys.put(key, struct{}{})
	}
}

func (f *familiar[K]) drop(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys.drop(key)
}

// addressOf is who sent a request, as far as limits go: an IPv4 address, or the network of an IPv6 address, of which anybody
// has plenty (RFC 6177).
func addressOf(req *http.Request) netip.Prefix {
	at, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return netip.Prefix{} // one limit for all that cannot be told apart
	}
	ip, bits := at.Addr().Unmap().WithZone(""), 64
	if ip.Is4() {
		bits = 32
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
