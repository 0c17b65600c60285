// Package proc runs programs for tests that kill them: kill -9 of a process is the only way to know what a process leaves
// behind that had no time to tidy up.
package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// patience is for how long anything may take that takes seconds at the most.
const patience = 5 * time.Minute

// Process is a program that runs. On Linux it ends with the one that has started it, also if that one is killed.
type Process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	said *tail
	up   chan struct{} // closed when it is up
	done chan struct{} // closed when it has ended
	err  error         // of its end, once done is closed
}

// Start starts a program and waits until it is up, which is when it prints a line that begins with up. Its other lines go to
// heard, which may be nil. The name is for errors.
func Start(ctx context.Context, name string, cmd *exec.Cmd, up string, heard func(line []byte)) (*Process, error) {
	p := &Process{name: name, cmd: cmd, said: new(tail), up: make(chan struct{}), done: make(chan struct{})}
	if err := p.spawn(up, heard); err != nil {
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
	return nil, errors.Join(fmt.Errorf("the %s does not come up", name), context.Cause(ctx), p.Kill())
}

func (p *Process) spawn(up string, heard func(line []byte)) error {
	p.cmd.Stderr = p.said
	endWithParent(p.cmd)
	out, err1 := p.cmd.StdoutPipe()
	in, err2 := p.cmd.StdinPipe()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.in = in
	go func() { // Start, Kill, Dies and Stop wait for it
		defer close(p.done)
		isUp := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			switch {
			case !isUp && strings.HasPrefix(lines.Text(), up):
				isUp = true
				close(p.up)
			case heard != nil:
				heard(lines.Bytes())
			}
		}
		p.err = p.cmd.Wait()
	}()
	return nil
}

// Kill is kill -9. It returns an error if the process had ended by itself: then it is not the kill that was tested.
func (p *Process) Kill() error {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
	if p.cmd.ProcessState.Exited() {
		return fmt.Errorf("the %s ended by itself: %w\n%s", p.name, p.err, p.said)
	}
	return nil
}

// Tell writes to the process' standard input.
func (p *Process) Tell(text string) error {
	_, err := io.WriteString(p.in, text)
	return err
}

// Dies waits until the process has been killed, by itself or by somebody else.
func (p *Process) Dies(ctx context.Context) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.Kill()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("the %s still runs after %s", p.name, patience)
	}
}

// Stop ends the input of a process that ends with it, and returns an error if it does so in any other way than with success.
func (p *Process) Stop() error {
	if err := p.in.Close(); err != nil {
		return err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		return errors.Join(fmt.Errorf("the %s does not stop within %s\n%s", p.name, patience, p.said), p.Kill())
	}
	if p.err != nil {
		return fmt.Errorf("the %s stops: %w\n%s", p.name, p.err, p.said)
	}
	return nil
}

// Said is the end of what the process has written to its standard error.
func (p *Process) Said() string { return p.said.String() }

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
