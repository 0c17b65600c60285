package reconciler

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Result is what a function says about the next look at its object. The zero value: when something changes.
type Result struct {
	// RequeueAfter, if above zero, looks at the object again after that time, up to a quarter of a second late. With an
	// error it replaces the backoff; with a [Terminal] or [Throttled] one it means nothing. From a cleanup without an error
	// it means that the cleanup is not done yet.
	RequeueAfter time.Duration
}

// Terminal marks an error that trying again will not mend. The object is Stalled with the error's message until its spec
// changes or a retry is asked for. Terminal(nil) is nil.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &terminalError{err}
}

type terminalError struct{ err error }

func (e *terminalError) Error() string { return e.err.Error() }
func (e *terminalError) Unwrap() error { return e.err }

// Throttled marks an error that is no fault of the object: a quota, a rate limit, something that is not there yet. The
// object is Waiting with the error's message, its failures are not counted, and it is looked at again after the given
// time, or at once when something changes. Throttled(nil, …) is nil.
func Throttled(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &throttledError{err, after}
}

type throttledError struct {
	err   error
	after time.Duration
}

func (e *throttledError) Error() string { return e.err.Error() }
func (e *throttledError) Unwrap() error { return e.err }

func isThrottled(err error) bool {
	var t *throttledError
	return errors.As(err, &t)
}

// PanicError is what a panic in a function is turned into.
type PanicError struct {
	// Value is what was passed to panic.
	Value any
	// Stack is where, as debug.Stack prints it. It goes to the log, not into the object's record.
	Stack []byte
}

// Error gives the value without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// ErrStopping is the cause that a function's context is cancelled with when the grace period of a stop is over.
var ErrStopping = errors.New("the controller is stopping")

// maxFrames is how many frames of a panic's stack are logged.
const maxFrames = 20

// frames are the places of the stack below the panic, innermost first, as function and file:line. A stack as
// debug.Stack prints it is unreadable in one log line.
func (e *PanicError) frames() (frames []string) {
	lines := strings.Split(string(e.Stack), "\n")
	for i := 1; i+1 < len(lines) && len(frames) < maxFrames; i += 2 {
		if strings.HasPrefix(lines[i], "created by ") { // by the runner, always
			break
		}
		function := lines[i]
		if arguments := strings.LastIndexByte(function, '('); arguments >= 0 {
			function = function[:arguments]
		}
		place, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
		if function == "panic" { // what is above it is the recovery
			frames = nil
			continue
		}
		frames = append(frames, function+" "+place)
	}
	return frames
}
