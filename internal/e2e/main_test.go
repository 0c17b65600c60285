package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/nats-io/nats-server/v2/server/ats"
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
	ats.Register() // outside of any bubble: inside one its ticker would keep time from passing
	os.Exit(m.Run())
}
