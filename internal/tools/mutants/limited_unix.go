//go:build unix

package main

import (
	"context"
	"os/exec"
	"syscall"
)

// limited runs a program that may be broken in any way: it gets 12 GB of addresses at most, and is killed with all the
// programs that it has started.
func limited(ctx context.Context, program string, args ...string) *exec.Cmd {
	script := []string{"-c", `ulimit -v 12582912; exec "$0" "$@"`, program}
	cmd := exec.CommandContext(ctx, "sh", append(script, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}
