package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// TestMain is two programs: the tests, and, when its environment says so, a replica of a controller that they start,
// kill and freeze as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv(replicaEnv) != "" {
		if err := replica(); err != nil {
			fmt.Fprintln(os.Stderr, "replica:", err)
			os.Exit(1)
		}
		return
	}
	ats.Register() // outside of any bubble: inside one its ticker would keep time from passing
	os.Exit(m.Run())
}
