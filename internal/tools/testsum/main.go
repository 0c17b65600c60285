// Command testsum reads the output of go test -json and says what came of it: one line per package, what failing tests
// wrote, every skipped test with its reason, and last the line "N passed, N failed, N skipped".
//
//	go test -json work | testsum
//
// It exits 1 if a test or a package failed, if no test ran at all (a wrong pattern is not a success), or if a test was
// skipped without an explanation. An explanation is a message that begins with "needs " and names what is missing:
//
//	t.Skip("needs moto_server on PATH: pip install 'moto[server]'")
//
// Subtests count as tests, as they do for go test. A package that fails although none of its tests did (it does not
// build, it panics, it exits) counts as one failure.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

func main() { os.Exit(run(os.Stdin, os.Stdout)) }

// run reads events from in until its end and returns the exit code.
func run(in io.Reader, out io.Writer) int {
	s := &summary{out: out, packages: map[string]*pkg{}}
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			s.line(line)
		}
		if errors.Is(err, io.EOF) {
			return s.close()
		}
		if err != nil {
			fmt.Fprintln(out, "read the test output:", err)
			s.failed++
			return s.close()
		}
	}
}

// event is one line of go test -json: see go doc test2json, and go help buildjson for those with an ImportPath.
type event struct {
	Action     string
	Package    string
	Test       string
	Output     string
	ImportPath string
	Elapsed    float64 // seconds
}

// line takes one line of input. What is not an event (a tool that writes beside go test) is shown as it is.
func (s *summary) line(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
		s.show(string(line))
		return
	}
	switch {
	case e.Action == "build-output":
		s.show(e.Output)
	case e.Package == "":
	case e.Test == "":
		s.packageEvent(s.of(e.Package), e)
	default:
		s.testEvent(s.of(e.Package), e)
	}
}
