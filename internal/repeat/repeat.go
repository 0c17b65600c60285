// Package repeat decides how often trouble that goes on is reported: what is retried each second would fill the log.
package repeat

import (
	"sync"
	"time"
)

const (
	// forget is after how long without it a trouble is reported as a new one.
	forget = time.Minute
	// maxKnown bounds how many different troubles are remembered.
	maxKnown = 100
)

// Filter lets the first report of a trouble through, the next one after First, and further ones after twice as long each
// time, up to Max. Set First and Max before its use. It is safe for concurrent use.
type Filter struct {
	First, Max time.Duration

	mu    sync.Mutex
	known map[string]*trouble
}

// trouble is one that may happen again.
type trouble struct {
	reported, last time.Time
	pause          time.Duration
	unsaid         int // how often it happened since it was reported
}

func (t *trouble) over(now time.Time) bool { return now.Sub(t.last) > forget }

// Due reports whether a trouble that was met now is to be reported, and how often it was met since the last report,
// without being reported. The key says which trouble it is.
func (f *Filter) Due(now time.Time, key string) (unsaid int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.known[key]
	if t == nil || t.over(now) {
		f.makeRoom(now)
		f.known[key] = &trouble{reported: now, last: now, pause: f.First}
		return 0, true
	}
	t.last = now
	if now.Sub(t.reported) < t.pause {
		t.unsaid++
		return 0, false
	}
	unsaid = t.unsaid
	t.reported, t.pause, t.unsaid = now, min(2*t.pause, f.Max), 0
	return unsaid, true
}

// makeRoom forgets what is over, or everything if there is too much. Callers hold mu.
func (f *Filter) makeRoom(now time.Time) {
	for key, t := range f.known {
		if t.over(now) {
			delete(f.known, key)
		}
	}
	if f.known == nil || len(f.known) >= maxKnown {
		f.known = map[string]*trouble{}
	}
}
