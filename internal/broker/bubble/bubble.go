// Package bubble runs tests that use nats.go and nats-server in virtual time (testing/synctest). Both keep state in package
// variables, which must not pass from one bubble to another, nor to real time.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// register keeps the nats-server's access-time ticker out of bubbles: started inside one, it would stop its time.
var register = sync.OnceFunc(ats.Register)

// running lets one bubble exist at a time, see forgetTimers.
var running sync.Mutex

// forgetTimers empties what sync.Pools hold. nats.go keeps timers in one (globalTimerPool, used when it has reconnected),
// and a timer of one bubble kills the process when it is used in another or outside of any. A pool is emptied by the
// second collection after its last use.
func forgetTimers() {
	runtime.GC()
	runtime.GC()
}

// Run runs f in a bubble. Of bubbles that are started in parallel, one runs at a time; nothing beside them may use nats.go.
// f must not call t.Run, t.Parallel or t.Deadline (testing/synctest forbids them).
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	register()
	running.Lock()
	defer running.Unlock()
	defer oneProcessor()()
	forgetTimers()
	defer forgetTimers()
	synctest.Test(t, f)
}
