//go:build unix

package cluster

import (
	"os/exec"
	"syscall"
)

// ownGroup takes a process out of our process group.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
