package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// A panic's stack is logged as its frames, from the panic outwards.
func TestFramesOfAPanicAreReadable(t *testing.T) {
	_, _, err := guarded(t.Context(), new(checkpoint), func(context.Context, *apiclient.Raw) (json.RawMessage, Result, error) {
		panic("a bug")
	}, &apiclient.Raw{Name: "x"})
	var p *PanicError
	require.ErrorAs(t, err, &p)
	frames := p.frames()
	require.Regexp(t, `^github.com/evenkeel-io/evenkeel/reconciler.TestFramesOfAPanicAreReadable.func1 .*result_test.go:\d+$`, frames[0])
	require.LessOrEqual(t, len(frames), maxFrames)
}

func TestErrorsThatAreMarkedStayWhatTheyAre(t *testing.T) {
	cause := errors.New("no such region")
	for _, err := range []error{Terminal(cause), Throttled(cause, time.Minute)} {
		require.ErrorIs(t, err, cause)
		require.EqualError(t, err, "no such region")
	}
	require.NoError(t, Terminal(nil))
	require.NoError(t, Throttled(nil, time.Minute))
	require.True(t, isThrottled(fmt.Errorf("make: %w", Throttled(cause, time.Minute))))
	require.False(t, isThrottled(Terminal(cause)))
	require.False(t, isThrottled(nil))
}

// A stack is cut to what says where the panic was: innermost first, without what recovered it, and not endlessly.
func TestFramesLeaveOutTheRecovery(t *testing.T) {
	var b strings.Builder
	b.WriteString("goroutine 7 [running]:\nruntime/debug.Stack()\n\t/go/debug/stack.go:26 +0x64\npanic({0x1, 0x2})\n\t/go/panic.go:770 +0x132\n")
	for i := range 2 * maxFrames {
		fmt.Fprintf(&b, "main.(*T).f%d(0x%x)\n\t/src/main.go:%d +0x1d\n", i, i, i)
	}
	p := &PanicError{Value: "a bug", Stack: []byte(b.String())}
	require.EqualError(t, p, "panic: a bug")
	frames := p.frames()
	require.Len(t, frames, maxFrames)
	require.Equal(t, "main.(*T).f0 /src/main.go:0", frames[0])
	require.Equal(t, "main.(*T).f19 /src/main.go:19", frames[19])

	p.Stack = []byte("goroutine 7 [running]:\nmain.f(0x1)\n\t/src/main.go:3 +0x1d\ncreated by main.g in goroutine 1\n\t/src/main.go:9 +0x2")
	require.Equal(t, []string{"main.f /src/main.go:3"}, p.frames())
	p.Stack = []byte("goroutine 7 [running]:\nmain.f(0x1)\n\t/src/main.go:3 +0x1d\nmain.g\n\t/src/main.go:9\n")
	require.Equal(t, []string{"main.f /src/main.go:3", "main.g /src/main.go:9"}, p.frames())
	p.Stack = p.Stack[:len(p.Stack)-1]
	require.Equal(t, []string{"main.f /src/main.go:3", "main.g /src/main.go:9"}, p.frames())
	require.Empty(t, new(PanicError).frames())
}
