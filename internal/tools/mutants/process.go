package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
)

// How tests fail.
const (
	howFailed   = "failed"
	howTimedOut = "timed out"
	howCrashed  = "crashed"
)

// outcome is what came of one test process.
type outcome struct {
	passed bool
	how    string // howFailed, howTimedOut or howCrashed, unless they passed
	test   string // that did, if it is known
	took   time.Duration
}

// process runs tests of a binary, with more variables in its environment. It gets a folder for its temporary files, which is
// removed with whatever a test that crashed has left there.
func (b *binary) process(ctx context.Context, tests []string, timeout time.Duration, env ...string) (outcome, error) {
	tmp, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	// A test may start a server as another user, who has to find a folder of his own in this one.
	if err := os.Chmod(tmp, 0o711); err != nil { //nolint:gosec // what is in it cannot be listed
		return outcome{}, err
	}
	// The process ends itself by then, unless not even its timers run.
	ctx, cancel := context.WithTimeout(ctx, timeout+10*time.Second)
	defer cancel()
	quoted := make([]string, len(tests))
	for i, t := range tests {
		quoted[i] = regexp.QuoteMeta(t)
	}
	pattern := "^(" + strings.Join(quoted, "|") + ")$"
	cmd := limited(ctx, b.path, "-test.run="+pattern, "-test.failfast", "-test.timeout="+timeout.String())
	cmd.Dir = b.Dir
	cmd.Env = append(append(os.Environ(), "TMPDIR="+tmp), env...)
	cmd.WaitDelay = 5 * time.Second // for programs that a test started and that hold our end of the pipe
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	read := make(chan outcome, 1)
	go func() { read <- verdict(out) }() // ends when in is closed
	began := time.Now()
	err = cmd.Run()
	_ = in.Close()
	o := <-read
	o.took = time.Since(began)
	if cmd.ProcessState == nil {
		return o, fmt.Errorf("start the tests of %s: %w", b.ImportPath, err)
	}
	_ = cmd.Cancel() // what the tests have started and left
	o.passed = cmd.ProcessState.Success()
	if !o.passed && o.how == "" {
		o.how = howCrashed
		if ctx.Err() != nil {
			o.how = howTimedOut
		}
	}
	if o.test == "" && len(tests) == 1 {
		o.test = tests[0]
	}
	return o, nil
}

var (
	failed  = regexp.MustCompile(`^--- FAIL: (\S+)`)
	running = regexp.MustCompile(`^\s+((?:Test|Fuzz|Example)\w*)\S* \(\d`) // below "running tests:" of a timeout
)

// verdict reads the output of a test process to its end, which may be endless chatter, and keeps nothing of it.
func verdict(out io.Reader) outcome {
	var o outcome
	r := bufio.NewReaderSize(out, 1<<16)
	for {
		line, err := r.ReadSlice('\n') // the rest of a line that is too long counts as another line
		if m := failed.FindSubmatch(line); m != nil && o.how == "" {
			o.how, o.test = howFailed, string(m[1])
		}
		if strings.HasPrefix(string(line), "panic: test timed out") {
			o.how, o.test = howTimedOut, ""
		}
		if m := running.FindSubmatch(line); m != nil && o.how == howTimedOut && o.test == "" {
			o.test = string(m[1])
		}
		if err != nil && err != bufio.ErrBufferFull { //nolint:errorlint // ReadSlice returns it as it is
			return o
		}
	}
}
