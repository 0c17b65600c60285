//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// apart keeps Ctrl-C in the terminal from reaching a replica before hello has told it to stop.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
