// Command evenkeel-kube is a Kubernetes cluster in one program, for tests and to play with: the real etcd, API server,
// controller manager and scheduler, and kwok in the place of nodes.
//
//	evenkeel-kube up        starts a cluster and runs it until Ctrl-C
//	evenkeel-kube kubectl   is kubectl
//
// What is real is everything up to the decision on which node a pod runs: objects, their validation, versions, watches,
// rights, the garbage collection, the rollout of Deployments. No container runs: a pod that has been scheduled is Running
// and Ready at once, because kwok says so, and has no logs, no shell and no network. A pod with the annotation
// evenkeel.io/hold-pod stays Pending until the annotation goes.
//
// It is a module of its own because Kubernetes is built with replacements (go.mod), which hold for a whole workspace; build
// it with make kube. Names of components as commands (evenkeel-kube etcd …) are for up alone, which runs this program again
// for each of them.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/evenkeel-io/evenkeel/controllers/kuberig/internal/cluster"
)

const usage = `usage:
  evenkeel-kube up [--dir FOLDER] [--nodes N] [--kubeconfig FILE]   start a Kubernetes cluster; Ctrl-C stops it
  evenkeel-kube kubectl ...                                         kubectl
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...) // components parse os.Args as their own
	switch component, ok := components[name]; {
	case ok:
		endWithParent()
		os.Exit(component())
	case name == "kubectl":
		os.Exit(kubectl())
	case name == "up":
		os.Exit(up(os.Args[1:]))
	case name == "help", strings.TrimLeft(name, "-") == "help", name == "-h":
		fmt.Print(usage)
	default:
		fmt.Fprintf(os.Stderr, "evenkeel-kube: there is no command %q\n%s", name, usage)
		os.Exit(2)
	}
}

func up(args []string) int {
	options, err := cluster.ParseOptions(args, os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "evenkeel-kube: %s\n%s", err, usage)
		return 2
	}
	options.Stages = stages
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := cluster.Run(ctx, options); err != nil {
		fmt.Fprintln(os.Stderr, "evenkeel-kube:", err)
		return 1
	}
	return 0
}

// endWithParent ends this process when its parent has ended, however that went: then the pipe that is its standard input
// does. (Linux's parent-death signal comes when the thread that started the child ends, which a Go program does not see.)
func endWithParent() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends, that is all it says
		os.Exit(1)
	}()
}
