package e2e

import (
	"os"
	"testing"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// TestMain starts the server's access-time ticker outside of any bubble: inside one it would keep time from passing.
func TestMain(m *testing.M) {
	ats.Register()
	os.Exit(m.Run())
}
