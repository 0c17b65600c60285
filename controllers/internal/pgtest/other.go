//go:build !unix

package pgtest

import "os/exec"

func unprivileged(*exec.Cmd) {}

func giveAway(string) error { return nil }

func killAll(cmd *exec.Cmd) { _ = cmd.Process.Kill() } // fails if it has ended
