package crash

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// patience is for how long anything may take that takes seconds at the most.
const patience = time.Minute

// process is one of the programs of TestMain.
type process struct {
	role string
	cmd  *exec.Cmd
	in   io.WriteCloser
	said *tail
	up   chan struct{} // closed when it is up
	done chan struct{} // closed when it has ended
	err  error         // of its end, once done is closed
}

// spawn starts a process. Its lines go to heard, except the one that says that it is up.
func spawn(role string, env []string, heard func(line []byte)) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{role: role, cmd: exec.Command(self), said: new(tail), up: make(chan struct{}), done: make(chan struct{})}
	p.cmd.Env = append(slices.Concat(os.Environ(), env), roleEnv+"="+role, "GORACE=halt_on_error=1")
	p.cmd.Stderr = p.said
	out, err1 := p.cmd.StdoutPipe()
	in, err2 := p.cmd.StdinPipe()
	if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
		return nil, err
	}
	p.in = in
	go func() { // kill, stop and start wait for it
		defer close(p.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == upLine {
				close(p.up)
			} else {
				heard(lines.Bytes())
			}
		}
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// start starts a process and waits until it is up.
func start(ctx context.Context, role string, env []string, heard func(line []byte)) (*process, error) {
	p, err := spawn(role, env, heard)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.up:
		return p, nil
	case <-p.done:
	case <-ctx.Done():
	case <-timer.C:
	}
	return nil, errors.Join(fmt.Errorf("the %s does not come up", role), context.Cause(ctx), p.kill())
}

// kill is kill -9. It returns an error if the process had ended by itself: then it is not the kill that was tested.
func (p *process) kill() error {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
	if p.cmd.ProcessState.Exited() {
		return fmt.Errorf("the %s ended by itself: %w\n%s", p.role, p.err, p.said)
	}
	return nil
}

// dies arms a point and waits until the process has died there.
func (p *process) dies(ctx context.Context, at point, nth int) error {
	if _, err := fmt.Fprintf(p.in, "%d %s\n", nth, at); err != nil {
		return err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("the API did not get to the point %q: has what is watched there changed?", at)
	}
	return p.kill()
}

// stop asks the process to end, and returns an error if it does so in any other way than with success.
func (p *process) stop() error {
	if err := p.in.Close(); err != nil {
		return err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		return errors.Join(fmt.Errorf("the %s does not stop within %s\n%s", p.role, patience, p.said), p.kill())
	}
	if p.err != nil {
		return fmt.Errorf("the %s stops: %w\n%s", p.role, p.err, p.said)
	}
	return nil
}

// tail keeps the end of what a process wrote to its standard error.
type tail struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, strings.TrimSpace(string(b)))
	if len(t.lines) > 200 {
		t.lines = slices.Delete(t.lines, 0, 100)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "\n")
}
