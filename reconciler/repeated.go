package reconciler

import (
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// sayAgainFirst is how soon trouble that goes on is logged again; the pause doubles up to sayAgainLast.
	sayAgainFirst, sayAgainLast = 5 * time.Second, 30 * time.Second
	// maxRepeated bounds how many different troubles are remembered.
	maxRepeated = 100
)

// repeated bounds how often the same trouble is logged: what is retried each second would fill the log while it lasts. It is
// safe for concurrent use.
type repeated struct {
	mu  sync.Mutex
	all map[string]*trouble
}

// trouble is one that may happen again.
type trouble struct {
	logged, last time.Time
	pause        time.Duration
	unsaid       int // how often it happened since it was logged
}

// over reports whether it has stopped: the next one of its kind is logged at once.
func (t *trouble) over(now time.Time) bool { return now.Sub(t.last) > 2*sayAgainLast }

// log reports whether trouble that happens now is to be logged, and how often it happened since it was, without being logged.
// Words with digits do not count: the id of each session that could not be opened is another one.
func (r *repeated) log(kind, what string, now time.Time) (unsaid int, ok bool) {
	what = kind + " " + strings.Join(slices.DeleteFunc(strings.Fields(what), hasDigit), " ")
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.all[what]
	if t == nil || t.over(now) {
		r.forget(now)
		r.all[what] = &trouble{logged: now, last: now, pause: sayAgainFirst}
		return 0, true
	}
	t.last = now
	if now.Sub(t.logged) < t.pause {
		t.unsaid++
		return 0, false
	}
	unsaid = t.unsaid
	t.logged, t.pause, t.unsaid = now, min(2*t.pause, sayAgainLast), 0
	return unsaid, true
}

func hasDigit(word string) bool { return strings.ContainsAny(word, "0123456789") }

// forget makes room. Callers hold mu.
func (r *repeated) forget(now time.Time) {
	for what, t := range r.all {
		if t.over(now) {
			delete(r.all, what)
		}
	}
	if r.all == nil || len(r.all) >= maxRepeated {
		r.all = map[string]*trouble{}
	}
}
