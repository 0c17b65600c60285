package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// summary is what is known so far of the whole run.
type summary struct {
	out      io.Writer
	packages map[string]*pkg // those that have not ended

	passed, failed, skipped int
	explained, unexplained  []string // skipped tests, each with its reason
}

// pkg is one package under test.
type pkg struct {
	name    string
	running map[string][]string // what each test that has not ended wrote, line by line
	output  []string            // what the package wrote outside of its tests

	passed, failed, skipped int
}

func (s *summary) of(name string) *pkg {
	p := s.packages[name]
	if p == nil {
		p = &pkg{name: name, running: map[string][]string{}}
		s.packages[name] = p
	}
	return p
}

func (s *summary) testEvent(p *pkg, e event) {
	switch e.Action {
	case "run":
		p.running[e.Test] = nil
	case "output":
		if _, ok := p.running[e.Test]; ok {
			p.running[e.Test] = append(p.running[e.Test], e.Output)
		} else {
			p.output = append(p.output, e.Output)
		}
	case "pass":
		p.passed++
		delete(p.running, e.Test)
	case "fail":
		s.testFailed(p, e.Test, "FAIL")
	case "skip":
		p.skipped++
		s.testSkipped(p, e.Test)
	case "bench":
		delete(p.running, e.Test)
	}
}

func (s *summary) testFailed(p *pkg, test, how string) {
	p.failed++
	s.show(fmt.Sprintf("--- %s: %s %s", how, p.name, test))
	s.show(p.running[test]...)
	delete(p.running, test)
}

// message is a line of a test's log: file, line, text.
var message = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)`)

func (s *summary) testSkipped(p *pkg, test string) {
	reason, explained := "no reason given", false
	for _, line := range p.running[test] {
		if m := message.FindStringSubmatch(line); m != nil && !explained {
			reason, explained = m[1], strings.HasPrefix(m[1], "needs ")
		}
	}
	delete(p.running, test)
	entry := fmt.Sprintf("%s %s: %s", p.name, test, reason)
	if explained {
		s.explained = append(s.explained, entry)
	} else {
		s.unexplained = append(s.unexplained, entry)
	}
}

func (s *summary) packageEvent(p *pkg, e event) {
	switch e.Action {
	case "output":
		p.output = append(p.output, e.Output)
	case "pass", "fail", "skip":
		s.end(p, e)
	}
}

// end closes the account of a package.
func (s *summary) end(p *pkg, e event) {
	for _, test := range slices.Sorted(maps.Keys(p.running)) {
		if !strings.HasPrefix(test, "Benchmark") { // benchmarks end without an event of their own
			s.testFailed(p, test, "UNFINISHED")
		}
	}
	word := map[string]string{"pass": "ok", "fail": "FAIL", "skip": "-"}[e.Action]
	if e.Action == "fail" {
		s.show(p.output...)
		if p.failed == 0 {
			p.failed++
		}
	}
	if p.failed > 0 {
		word = "FAIL"
	}
	fmt.Fprintf(s.out, "%-5s %-60s %6.1fs  %s\n", word, p.name, e.Elapsed, p.counts())
	s.passed, s.failed, s.skipped = s.passed+p.passed, s.failed+p.failed, s.skipped+p.skipped
	delete(s.packages, p.name)
}

func (p *pkg) counts() string {
	if p.passed+p.failed+p.skipped == 0 {
		return "no tests"
	}
	return counts(p.passed, p.failed, p.skipped)
}

func counts(passed, failed, skipped int) string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", passed, failed, skipped)
}

// close says what came of the run, and returns the exit code.
func (s *summary) close() int {
	for _, name := range slices.Sorted(maps.Keys(s.packages)) {
		s.show("the output of " + name + " ends before its result")
		s.end(s.packages[name], event{Action: "fail"})
	}
	s.list("skipped, with an explanation:", s.explained)
	s.list(`skipped without an explanation (say t.Skip("needs ..."), or let it run):`, s.unexplained)
	nothing := s.passed+s.failed+s.skipped == 0
	if nothing {
		fmt.Fprintln(s.out, "no test ran")
	}
	fmt.Fprintln(s.out, counts(s.passed, s.failed, s.skipped))
	if nothing || s.failed > 0 || len(s.unexplained) > 0 {
		return 1
	}
	return 0
}

func (s *summary) list(title string, entries []string) {
	if len(entries) == 0 {
		return
	}
	fmt.Fprintln(s.out, title)
	slices.Sort(entries)
	s.show(slices.Compact(entries)...) // one entry for all turns of -count
}

// show writes text from elsewhere, indented, so that no line of it can be taken for one of ours.
func (s *summary) show(text ...string) {
	for _, t := range text {
		for line := range strings.Lines(t) {
			fmt.Fprintln(s.out, "    "+strings.TrimRight(line, "\n"))
		}
	}
}
