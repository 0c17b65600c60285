// Package realtime has no code, only the tests that need real processes, clusters, or a client that hangs with its mutex held.
// They wait most of the time, so they all run in parallel.
package realtime

import (
	"fmt"
	"os"
	"testing"
)

// TestMain is three programs: the tests, and, when its environment says so, a replica of a controller or a node of a cluster,
// which they start, kill and freeze as processes of their own.
func TestMain(m *testing.M) {
	for env, program := range map[string]func() error{replicaEnv: replica, nodeEnv: node} {
		if os.Getenv(env) == "" {
			continue
		}
		if err := program(); err != nil {
			fmt.Fprintln(os.Stderr, env, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}
