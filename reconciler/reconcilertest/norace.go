//go:build !race

package reconcilertest

// oneProcessor does nothing without the race detector.
func oneProcessor() (restore func()) { return func() {} }
