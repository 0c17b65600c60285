package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// stopWithin is how long a component may take to stop before it is killed.
	stopWithin = 5 * time.Second
	// tailBytes and tailLines are how much of a log is shown when its component has died.
	tailBytes = 16 << 10
	tailLines = 20
)

// errEnded: a component has ended by itself.
var errEnded = errors.New("has ended by itself")

// child is a component that was started.
type child struct {
	name  string
	cmd   *exec.Cmd
	pipe  io.Closer     // its standard input: the child ends when this does
	asked atomic.Bool   // it was told to end
	done  chan struct{} // closed when it has ended
}

// spawn starts a component. If it ends by itself, all of the cluster does.
func (c *cluster) spawn(name string) error {
	file := c.logFile(name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // of our own folder
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()                                       // the child has its own
	cmd := exec.Command(c.self, append([]string{name}, c.flags(name)...)...) //nolint:gosec,noctx // ourselves; stop ends it
	cmd.Dir = c.folder
	cmd.Env = append(os.Environ(), "HOME="+c.folder) // they look for settings there, and must not find the user's
	cmd.Stdout, cmd.Stderr = log, log
	ownGroup(cmd) // the terminal's Ctrl-C is for us alone, who stop them in their order
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	ch := &child{name: name, cmd: cmd, pipe: pipe, done: make(chan struct{})}
	c.children[name] = ch
	c.watchers.Go(func() {
		err := cmd.Wait()
		if !ch.asked.Load() {
			c.fail(fmt.Errorf("%s %w: %w; the end of %s:\n%s", name, errEnded, orSuccess(err), file, tail(file)))
		}
		close(ch.done)
	})
	return os.WriteFile(c.path(name+".pid"), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600)
}

func orSuccess(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// stop asks the child to end, kills it if it has not within the grace period, and waits until it is gone.
func (ch *child) stop(grace time.Duration) {
	ch.asked.Store(true)
	if grace > 0 {
		_ = ch.cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-ch.done:
		case <-timer.C:
		}
	}
	_ = ch.cmd.Process.Kill() // likewise
	<-ch.done
	_ = ch.pipe.Close() // nobody reads it any more
}

func (c *cluster) logFile(name string) string { return c.path(filepath.Join("logs", name+".log")) }

// tail is the end of a log.
func tail(file string) string {
	f, err := os.Open(file) //nolint:gosec // of our own folder
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }() // it was only read
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-tailBytes), io.SeekStart) // or the whole of it
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
