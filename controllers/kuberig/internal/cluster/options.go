package cluster

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Options say how to run a cluster.
type Options struct {
	// Dir is the folder of the cluster, which must be empty or not exist. By default it is a new one in the system's
	// temporary folder, which is removed in the end.
	Dir string
	// Nodes is how many nodes there are. Each has room for as much as you like.
	Nodes int
	// Kubeconfig is where to put the settings of an administrator's client, besides the folder. It is removed in the end.
	Kubeconfig string
	// Control lets a program run the cluster. Input has lines "kill COMPONENT", which is kill -9, and "start COMPONENT",
	// which returns when it is ready. Each is answered by a line, "ok" or "error …", after the first one, "ready FOLDER". The
	// cluster ends when the input does.
	Control bool
	Input   io.Reader
	// Answers takes those of control mode, Progress what is for people.
	Answers, Progress io.Writer
	// Stages are kwok's.
	Stages func() (string, error)
}

// ParseOptions reads the flags of the command up.
func ParseOptions(args []string, in io.Reader, out io.Writer) (Options, error) {
	o := Options{Input: in, Answers: out, Progress: out}
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it
	flags.StringVar(&o.Dir, "dir", "", "")
	flags.IntVar(&o.Nodes, "nodes", 2, "")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "")
	flags.BoolVar(&o.Control, "control", false, "")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("up takes no argument %q", flags.Arg(0))
	}
	if o.Nodes < 1 || o.Nodes > 1000 {
		return o, fmt.Errorf("--nodes is %d: it must be between 1 and 1000", o.Nodes)
	}
	if o.Control {
		o.Progress = io.Discard
	}
	return o, nil
}

// obey does what the input says until it ends.
func (c *cluster) obey(ctx context.Context) error {
	lines := make(chan string)
	go func() { // it ends with its input, at the latest with the process: nothing can interrupt the read
		defer close(lines)
		for in := bufio.NewScanner(c.Input); in.Scan(); {
			select {
			case lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	fmt.Fprintln(c.Answers, "ready", c.folder)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case line, more := <-lines:
			if !more {
				return nil
			}
			answer := "ok"
			if err := c.do(ctx, line); err != nil {
				answer = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
			}
			fmt.Fprintln(c.Answers, answer)
		}
	}
}

// do does what one line says.
func (c *cluster) do(ctx context.Context, line string) error {
	verb, name, _ := strings.Cut(line, " ")
	if !slices.Contains(order, name) {
		return fmt.Errorf("there is no component %q", name)
	}
	switch ch := c.children[name]; {
	case verb == "kill" && ch != nil:
		ch.stop(0)
		delete(c.children, name)
		return nil
	case verb == "start" && ch == nil:
		return c.launch(ctx, name, c.readiness(name))
	default:
		return fmt.Errorf("cannot %s %s now", verb, name)
	}
}

// readiness is how one sees that a component is ready. Of some one only sees what they do.
func (c *cluster) readiness(name string) func(context.Context) error {
	switch name {
	case Etcd:
		return c.etcdListens
	case APIServer:
		return c.apiReady
	default:
		return func(context.Context) error { return nil }
	}
}
