//go:build race

package bubble

import "runtime"

// oneProcessor has the bubble run on one processor under the race detector. The timers of a bubble share one context of the
// detector, which crashes when two goroutines run timers that are due at once (Go 1.26.8). Races are found all the same: the
// detector compares the order of accesses, not their times.
func oneProcessor() (restore func()) {
	before := runtime.GOMAXPROCS(1)
	return func() { runtime.GOMAXPROCS(before) }
}
