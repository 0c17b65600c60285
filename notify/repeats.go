package notify

import "time"

// Pauses between reports of the same trouble.
const (
	firstRepeat = 10 * time.Second
	maxRepeat   = 10 * time.Minute
	// forgetRepeat is after how long without it a trouble is reported as a new one.
	forgetRepeat = time.Minute
)

// repeats decides how often a trouble that goes on is reported: at once, after ten seconds, and then after twice as long
// each time. The key says which trouble it is. It belongs to one goroutine; the zero value is not usable.
type repeats map[string]*repeat

type repeat struct {
	last, next time.Time
	pause      time.Duration
}

// due reports whether a trouble that was met now is to be reported.
func (r repeats) due(now time.Time, trouble string) bool {
	e := r[trouble]
	if e == nil || now.Sub(e.last) > forgetRepeat {
		e = &repeat{next: now, pause: firstRepeat}
		r[trouble] = e
	}
	e.last = now
	if now.Before(e.next) {
		return false
	}
	e.next, e.pause = now.Add(e.pause), min(2*e.pause, maxRepeat)
	return true
}
