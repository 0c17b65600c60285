package e2e

import (
	"encoding/json"
	"sync"

	"github.com/go-logr/logr/funcr"

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

// with returns the lines of a message, decoded; all of them if it is empty.
func (l *lines) with(msg string) (found []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			panic(line)
		}
		if msg == "" || m["msg"] == msg {
			found = append(found, m)
		}
	}
	return found
}
