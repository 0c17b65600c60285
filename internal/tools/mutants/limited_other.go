//go:build !unix

package main

import (
	"context"
	"os/exec"
)

// limited runs a program, without limits on this system.
func limited(ctx context.Context, program string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, program, args...)
}
