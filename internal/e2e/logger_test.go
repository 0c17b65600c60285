package e2e

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

// quiet is for what would print beside the tests.
var quiet = logr.FromSlogHandler(slog.DiscardHandler)

// shared is a buffer that several goroutines write to.
type shared struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// A controller that says nothing of a Logger is heard; one that asks for silence is not.
func TestLogsGoToTheDefaultLogger(t *testing.T) {
	standard := slog.Default()
	defer slog.SetDefault(standard)
	var out shared
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	play(t, func(t *testing.T, s scenario) {
		s.StartWith("quiet", func(cfg *reconciler.Config) { cfg.Logger = logr.FromSlogHandler(slog.DiscardHandler) }, reconciler.For("jobs", work))
		s.Advance(2 * time.Second)
		require.Empty(t, out.String())
		s.StartWith("heard", func(cfg *reconciler.Config) { cfg.Logger = logr.Logger{} }, reconciler.For("jobs", work))
		s.Advance(2 * time.Second)
		require.Contains(t, out.String(), "level=INFO msg=running replica=heard")
	})
}
