// Command kubebin builds the program that is a Kubernetes cluster, unless it is in the cache, and prints where it is. The
// Makefile runs it for kube and kube-up.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/evenkeel-io/evenkeel/controllers/internal/kubebin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	program, err := kubebin.Build(ctx, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "build Kubernetes:", err)
		os.Exit(1)
	}
	fmt.Println(program)
}
