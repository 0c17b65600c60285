package proc

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel kill a process when the one that starts it ends: a program that does not look at its input
// would outlive tests that were killed.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
