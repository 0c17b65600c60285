package realtime

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

func TestProcessKilledHolderIsTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.spawn("a")
	started := a.on(reconciler.StepStarted, "x")
	r.put("x", job{Millis: 3000, Value: 1})
	await(t, "a starts", started)
	b := r.spawn("b")
	again := b.on(reconciler.StepStarted, "x")
	a.signal(syscall.SIGKILL)
	killed := time.Now()
	await(t, "b takes over", again)
	t.Logf("taken over %s after the kill", time.Since(killed).Round(10*time.Millisecond))
	require.Equal(t, "b", r.converged("x").Status.By)
}

func TestProcessKilledAloneIsTakenOverByTheNextToStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.spawn("a")
	started := a.on(reconciler.StepStarted, "x")
	r.put("x", job{Millis: 1000, Value: 1})
	await(t, "a starts", started)
	a.signal(syscall.SIGKILL)
	<-a.exited
	r.spawn("b")
	require.Equal(t, "b", r.converged("x").Status.By)
}

func TestProcessFrozenHolderIsFencedOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.spawn("a")
	started := a.on(reconciler.StepStarted, "x")
	r.put("x", job{Millis: 1500, Value: 1})
	await(t, "a starts", started)
	a.signal(syscall.SIGSTOP)
	b := r.spawn("b")
	patched := b.on(reconciler.StepPatched, "x")
	await(t, "b finishes what a holds", patched)
	fence := r.converged("x").Reconciliation.Fence
	lost := a.on(reconciler.StepLost, "x")
	a.signal(syscall.SIGCONT)
	await(t, "a learns that it lost the lock", lost)
	o := r.converged("x")
	require.Equal(t, "b", o.Status.By, "the status of the frozen holder came too late")
	require.Equal(t, fence, o.Reconciliation.Fence)
	// It is not left crippled: it opens a new session and works on.
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-b.exited)
	r.put("x", job{Value: 2})
	require.Equal(t, "a", r.converged("x").Status.By)
}

func TestProcessStopIsClean(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.spawn("a")
	started, patched, stopping := a.on(reconciler.StepStarted, "x"), a.on(reconciler.StepPatched, "x"), a.on(reconciler.StepStopping, "")
	r.put("x", job{Millis: 1500, Value: 1})
	await(t, "a starts", started)
	a.signal(syscall.SIGTERM)
	await(t, "a stops pulling", stopping)
	r.put("y", job{Value: 1})
	await(t, "a finishes what it is at", patched)
	require.NoError(t, <-a.exited, "exit code 0")
	require.Equal(t, "a", r.converged("x").Status.By)
	r.spawn("b")
	require.Equal(t, "b", r.converged("y").Status.By, "no new work after the signal")
}

func TestProcessSurvivesBrokerRestarts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.spawn("a")
	r.spawn("b")
	const objects = 40
	for round := range 3 {
		for i := range objects {
			r.put(fmt.Sprintf("o%d", i), job{Millis: 20, Value: round + 1})
		}
		r.restart(time.Duration(round) * 4 * time.Second) // the last is longer than a session lives
	}
	for i := range objects {
		r.converged(fmt.Sprintf("o%d", i))
	}
}
