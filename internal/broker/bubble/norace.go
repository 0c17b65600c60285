//go:build !race

package bubble

// oneProcessor does nothing without the race detector.
func oneProcessor() (restore func()) { return func() {} }
