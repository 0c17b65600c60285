package e2e

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/lock"
	"github.com/evenkeel-io/evenkeel/reconciler"
)

// lines are what a replica logs, at every level.

type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) sink(cfg *reconciler.Config) {
	cfg.Logger = funcr.NewJSON(func(line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, line)
	}, funcr.Options{Verbosity: 10})
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

// with returns the lines of a message, decoded.

func (l *lines) with(msg string) (found []map[string]any) {
	for line := range strings.Lines(l.text()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["msg"] == msg {
			found = append(found, m)
		}
	}
	return found
}

// A look that somebody asked for at a settled object says why, to the function and on the timeline.

// A function knows which attempt of what it is; the idempotency key stands for one generation of one object.

// Whatever is logged about an object can be found by it: by the SDK and by the function, of what goes well and of trouble.

// A replica may be called anything: others can read its locks.

func TestLockOfAHolderWithAnyNameIsHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lockers) {
		a, stopA := l.start("a \"b\" \x00\x7f\u00e9\xff")
		defer stopA()
		b, stopB := l.start("b")
		defer stopB()
		lk, err := a.TryLock(t.Context(), "x")
		require.NoError(t, err)
		defer lk.Unlock()
		_, err = b.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, lock.ErrHeld)
		require.ErrorContains(t, err, "by a \"b\" ")
	})
}

// When a broker lost everything, one replica searches at a time, and no faster than what it finds is worked off.

// R20, P6: the broker is away for five minutes and comes back empty, the API is away for parts of that.
