package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stream is go test -json output of package p: a line "action test: text" per event; no test is the package itself.
func stream(t *testing.T, lines ...string) io.Reader {
	t.Helper()
	var b strings.Builder
	for _, line := range lines {
		head, text, _ := strings.Cut(line, ": ")
		action, test, _ := strings.Cut(head, " ")
		e := event{Action: action, Package: "p", Test: test}
		if text != "" {
			e.Output = text + "\n"
		}
		data, err := json.Marshal(e)
		require.NoError(t, err)
		b.Write(append(data, '\n'))
	}
	return strings.NewReader(b.String())
}

func TestRun(t *testing.T) {
	tests := []struct {
		name  string
		lines []string
		code  int
		total string
		says  []string
		not   []string
	}{
		{
			name:  "passes",
			lines: []string{"start", "run TestA", "output TestA: chatter", "pass TestA", "output: PASS", "pass"},
			total: "1 passed, 0 failed, 0 skipped",
			says:  []string{"ok    p "},
			not:   []string{"chatter"},
		},
		{
			name:  "a repeated test counts each time",
			lines: []string{"run TestA", "pass TestA", "run TestA", "pass TestA", "pass"},
			total: "2 passed, 0 failed, 0 skipped",
		},
		{
			name:  "a failure shows what the test wrote, and nothing of others",
			lines: []string{"run TestA", "run TestB", "output TestB: fine", "output TestA:     a_test.go:3: want 1", "fail TestA", "pass TestB", "fail"},
			code:  1,
			total: "1 passed, 1 failed, 0 skipped",
			says:  []string{"    --- FAIL: p TestA\n", "a_test.go:3: want 1", "FAIL  p "},
			not:   []string{"fine"},
		},
		{
			name:  "a skip that says what it needs",
			lines: []string{"run TestA", "output TestA:     a_test.go:3: needs a browser", "skip TestA", "pass"},
			total: "0 passed, 0 failed, 1 skipped",
			says:  []string{"with an explanation:\n    p TestA: needs a browser\n"},
		},
		{
			name:  "a skip that is repeated is explained once",
			lines: []string{"run TestA", "output TestA:     a_test.go:3: needs x", "skip TestA", "run TestA", "output TestA:     a_test.go:3: needs x", "skip TestA", "pass"},
			total: "0 passed, 0 failed, 2 skipped",
			says:  []string{"with an explanation:\n    p TestA: needs x\n0 passed"},
		},
		{
			name:  "the explanation may stand among other messages",
			lines: []string{"run TestA", "output TestA:     a_test.go:1: looking", "output TestA:     a_test.go:3: needs x", "output TestA:     b.go:9: bye", "skip TestA", "pass"},
			total: "0 passed, 0 failed, 1 skipped",
			says:  []string{"p TestA: needs x"},
		},
		{
			name:  "a skip with another reason",
			lines: []string{"run TestA", "pass TestA", "run TestB", "output TestB:     a_test.go:3: flaky", "skip TestB", "pass"},
			code:  1,
			total: "1 passed, 0 failed, 1 skipped",
			says:  []string{"without an explanation", "p TestB: flaky"},
		},
		{
			name:  "a skip without a reason",
			lines: []string{"run TestA/b", "output TestA/b:     --- SKIP: TestA/b (0.00s)", "skip TestA/b", "pass"},
			code:  1,
			total: "0 passed, 0 failed, 1 skipped",
			says:  []string{"p TestA/b: no reason given"},
		},
		{
			name:  "no test ran",
			lines: []string{"start", "output: ok p 0.1s [no tests to run]", "pass"},
			code:  1,
			total: "0 passed, 0 failed, 0 skipped",
			says:  []string{"no test ran"},
		},
		{
			name:  "a package without tests beside one with",
			lines: []string{"output: ? p [no test files]", "skip", "run TestA", "pass TestA", "pass"},
			total: "1 passed, 0 failed, 0 skipped",
			says:  []string{"-     p "},
		},
		{
			name:  "the package fails although its tests pass",
			lines: []string{"run TestA", "pass TestA", "output: panic: in TestMain", "fail"},
			code:  1,
			total: "1 passed, 1 failed, 0 skipped",
			says:  []string{"    panic: in TestMain"},
		},
		{
			name:  "a test that never ended",
			lines: []string{"run TestA", "output TestA: panic: test timed out", "output: FAIL p 1s", "fail"},
			code:  1,
			total: "0 passed, 1 failed, 0 skipped",
			says:  []string{"--- UNFINISHED: p TestA", "panic: test timed out"},
		},
		{
			name:  "a test that never ended in a package that passed",
			lines: []string{"run TestA", "pass"},
			code:  1,
			total: "0 passed, 1 failed, 0 skipped",
			says:  []string{"FAIL  p "},
		},
		{
			name:  "the stream was cut",
			lines: []string{"start", "run TestA", "pass TestA"},
			code:  1,
			total: "1 passed, 1 failed, 0 skipped",
			says:  []string{"the output of p ends before its result"},
		},
		{
			name:  "a benchmark has no end of its own",
			lines: []string{"run TestA", "pass TestA", "run BenchmarkA", "output BenchmarkA: 100 ns/op", "pass"},
			total: "1 passed, 0 failed, 0 skipped",
		},
		{
			name:  "output cannot pass for the last line",
			lines: []string{"run TestA", "output TestA: 9 passed, 0 failed, 0 skipped", "fail TestA", "fail"},
			code:  1,
			total: "0 passed, 1 failed, 0 skipped",
			not:   []string{"\n9 passed"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			assert.Equal(t, tt.code, run(stream(t, tt.lines...), &out))
			assert.True(t, strings.HasSuffix(out.String(), "\n"+tt.total+"\n"), out.String())
			for _, s := range tt.says {
				assert.Contains(t, out.String(), s)
			}
			for _, s := range tt.not {
				assert.NotContains(t, out.String(), s)
			}
		})
	}
}

func TestRunOnOtherInput(t *testing.T) {
	var out strings.Builder
	assert.Equal(t, 1, run(strings.NewReader("go: no such pattern\n{\"a\":1}\nhalf a li"), &out))
	assert.Contains(t, out.String(), "    go: no such pattern\n    {\"a\":1}\n    half a li\nno test ran\n")

	out.Reset()
	assert.Equal(t, 1, run(iotest.ErrReader(errors.New("pipe broke")), &out))
	assert.Contains(t, out.String(), "read the test output: pipe broke")
}

// TestRunOnGo holds the summary against what this version of Go writes.
func TestRunOnGo(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module m\n\ngo 1.26.0\n",
		"a/a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestPass(t *testing.T) { t.Run(\"sub\", func(*testing.T) {}) }\n\nfunc TestSkip(t *testing.T) { t.Skip(\"needs a moon\") }\n",
		"b/b_test.go": "package b\n\nimport \"testing\"\n\nfunc TestFail(t *testing.T) { t.Error(\"on purpose\") }\n\nfunc TestPanic(t *testing.T) { panic(\"at the disco\") }\n\nfunc TestNever(t *testing.T) {}\n",
		"c/c_test.go": "package c\n\nfunc init() { undefined() }\n",
		"d/d.go":      "package d\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	events, err := cmd.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "go test must run, and fail")

	var out strings.Builder
	assert.Equal(t, 1, run(strings.NewReader(string(events)), &out))
	for _, s := range []string{
		"ok    m/a", "2 passed, 0 failed, 1 skipped", "m/a TestSkip: needs a moon",
		"--- FAIL: m/b TestFail", "on purpose", "--- FAIL: m/b TestPanic", "at the disco", "FAIL  m/b",
		"undefined: undefined", "FAIL  m/c", "-     m/d",
	} {
		assert.Contains(t, out.String(), s)
	}
	assert.True(t, strings.HasSuffix(out.String(), "\n2 passed, 3 failed, 1 skipped\n"), out.String())
}
