package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/evenkeel-io/evenkeel/reconciler"
)

// Replicas are this program again, told by its environment to be one: a process that can be killed.
const replicaEnv, natsEnv, apiEnv = "HELLO_REPLICA", "HELLO_NATS", "HELLO_API"

func isReplica() bool { return os.Getenv(replicaEnv) != "" }

// replica runs the controller until it is told to stop or its parent is gone: then its standard input ends.
func replica(ctx context.Context) error {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the observer below says what is to be seen
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return controller(ctx, os.Getenv(replicaEnv), os.Getenv(natsEnv), os.Getenv(apiEnv))
}

// show is the replica's observer: it prints what a person wants to follow.
func show(e reconciler.Event) {
	object := e.Kind + "/" + e.Name
	switch e.Step {
	case reconciler.StepStarted:
		say("%-12s   reconcile of %s begins (%s)", e.Replica, object, e.Reason)
	case reconciler.StepPatched:
		say("%-12s   %s is %s, generation %d", e.Replica, object, e.State, e.Generation)
	case reconciler.StepTookOver:
		say("%-12s   takes over %s: %s died", e.Replica, object, e.Holder)
	case reconciler.StepTrouble:
		say("%-12s   %s: %v; will be retried", e.Replica, e.Reason, e.Err)
	}
}

// crew are the replicas that run.
type crew struct{ members map[string]*member }

type member struct {
	process *exec.Cmd
	stdin   io.Closer
}

func (c *crew) start(h *installation, name string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(self) //nolint:gosec,noctx // it is this program; it is stopped by name, not by a context
	cmd.Env = append(os.Environ(), replicaEnv+"="+name, natsEnv+"="+h.natsURL, apiEnv+"="+h.apiURL)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	apart(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start replica %s: %w", name, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start replica %s: %w", name, err)
	}
	if c.members == nil {
		c.members = map[string]*member{}
	}
	c.members[name] = &member{process: cmd, stdin: stdin}
	return nil
}

// kill is kill -9: the replica gets no chance to say good-bye.
func (c *crew) kill(name string) error {
	m := c.members[name]
	delete(c.members, name)
	if err := m.process.Process.Kill(); err != nil {
		return fmt.Errorf("kill replica %s: %w", name, err)
	}
	var died *exec.ExitError
	if err := m.process.Wait(); err != nil && !errors.As(err, &died) {
		return fmt.Errorf("kill replica %s: %w", name, err)
	}
	return nil
}

// stopAll asks every replica to stop and waits until it has.
func (c *crew) stopAll() {
	for _, m := range c.members {
		_ = m.stdin.Close() // how they are told; one that is gone already needs no telling
	}
	for name, m := range c.members {
		report("stop replica "+name, m.process.Wait())
	}
	c.members = nil
}

var saying sync.Mutex

func say(format string, args ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(time.Now().Format("15:04:05.000 ") + strings.TrimRight(fmt.Sprintf(format, args...), " "))
}
