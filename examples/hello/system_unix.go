//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// apart keeps Ctrl-C in the terminal from reaching a replica before hello has told it to stop.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// claim locks a file until release is called or the process ends: two NATS servers on one folder would spoil it.
func claim(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { report("release the data folder", f.Close()) }, nil
}
