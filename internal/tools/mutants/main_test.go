package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sample runs the command in testdata/sample and returns what it prints.
func sample(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "")
	t.Chdir(filepath.Join("testdata", "sample"))
	var out strings.Builder
	err := run(t.Context(), append([]string{"-packages", ".", "-by", ""}, args...), &out, io.Discard)
	return out.String(), err
}

// TestRun breaks the sample with every operator. That its tests pass before shows that the rewritten code does what it did
// while no mutant is on, and that they fail after, that a mutant does something else.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	list := filepath.Join(dir, "survivors.txt")
	write(t, list, "# none\nsample.go Slack drop-statement \"s = nil\" #1\n\tempty either way\n")
	out, err := sample(t, "-dir", dir, "-survivors", list)
	require.NoError(t, err)
	assert.Contains(t, out, `
sample.go Slack
  sample.go:107 Slack: never: len(s) == 0 -> false (tests: 1, id 69)
  sample.go:107 Slack: plus-one: 0 -> 1 (tests: 1, id `)
	assert.Contains(t, out, `
sample.go Unreached
  sample.go:114 Unreached: flip: false -> true (reached by no test, id `)
	assert.Regexp(t, `\d+ mutants: \d+ killed, 3 survived, 1 equivalent, 0 not run; `, out)
	for _, op := range []string{
		opAlways, opNever, opDropOperand, opSwapOperands, opBoundary, opDropStatement, opSwapStatements,
		opDropError, opDropCase, opPlusOne, opMinusOne, opDouble, opHalve, opFlip, opDropJump, opOnce,
	} {
		assert.Regexp(t, `(?m)^`+op+` +\d+ +[1-9]`, out, "no mutant of this operator was killed")
	}

	stored, err := os.ReadFile(filepath.Join(dir, "results"))
	require.NoError(t, err)
	write(t, list, "sample.go Status halve \"404\" #1\n\twrong\nsample.go Gone flip \"true\" #1\n\tx\n")
	out, err = again(t, "-dir", dir, "-survivors", list, "-only", "Status")
	require.ErrorContains(t, err, `sample.go Status halve "404" #1: is killed by sample TestStatus`)
	require.ErrorContains(t, err, `sample.go Gone flip "true" #1: no such mutant`)
	assert.Contains(t, out, "2 constants doubled or halved: 2 killed, 0 survived, 0 equivalent, 0 not run; 100.0 %")
	same, err := os.ReadFile(filepath.Join(dir, "results"))
	require.NoError(t, err)
	assert.Equal(t, string(stored), string(same), "nothing ran twice")
}

func write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
}

// again is sample, once the folder and the environment are set.
func again(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(t.Context(), append([]string{"-packages", ".", "-by", ""}, args...), &out, io.Discard)
	return out.String(), err
}

func TestListAndShow(t *testing.T) {
	out, err := sample(t, "-list", "-only", "sample.go:Status")
	require.NoError(t, err)
	assert.Contains(t, out, "-func Status() int { return 404 }\n+func Status() int { return 808 }\n")
	assert.Contains(t, out, "+func Status() int { return 202 }\n")
	assert.Regexp(t, `(?m)^halve +1$`, out)

	out, err = again(t, "-show", "0")
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(out, "sample.go Log.add drop-statement"), out)
	_, err = again(t, "-show", "1000")
	require.ErrorContains(t, err, "no mutant 1000")
	_, err = again(t, "extra")
	require.ErrorContains(t, err, `unexpected argument "extra"`)
}

func TestSample(t *testing.T) {
	c, err := parse([]string{"-sample", "3", "-seed", "7"}, io.Discard)
	require.NoError(t, err)
	var all []*mutant
	for i := range 100 {
		all = append(all, &mutant{id: i, file: &file{}})
	}
	chosen := c.choose(all)
	require.Len(t, chosen, 3)
	assert.Equal(t, chosen, c.choose(all), "the seed decides")
	assert.Less(t, chosen[0].id, chosen[1].id)
	assert.Len(t, all, 100)
}

func TestVerdict(t *testing.T) {
	for text, want := range map[string]outcome{
		"ok\n":                                   {},
		"panic: oh\n\ngorouti":                   {},
		"x\n--- FAIL: TestA (0.1s)\n    a\nFAIL": {how: "failed", test: "TestA"},
		"--- FAIL: TestA/b (0.1s)\n--- FAIL: T":  {how: "failed", test: "TestA/b"},
		strings.Repeat("long", 1<<16) + "\n--- FAIL: TestA (1s)\n":                             {how: "failed", test: "TestA"},
		"panic: test timed out after 1s\n\trunning tests:\n\t\tTestB/sub (1s)\n\t\tTestC (1s)": {how: "timed out", test: "TestB"},
	} {
		assert.Equal(t, want, verdict(strings.NewReader(text)), shorten(text, 100))
	}
}

func TestReadSurvivors(t *testing.T) {
	name := filepath.Join(t.TempDir(), "survivors.txt")
	for text, want := range map[string]string{
		"a #1\n\tone\n\ttwo\n\n# c\nb #1\nc #1\n\tthree\n": "",
		"a #1\n\tone\n\ttwo\nb #1\nc #1\n\tthree\n":        "",
		"\tone\n":                "is a reason of nothing",
		"a #1\n\n\tone\n":        "is a reason of nothing",
		"a #1\n\nb #1\n\tone\n":  "a #1 has no reason",
		"a #1\n":                 "a #1 has no reason",
		"a #1\n\tx\na #1\n\ty\n": "a #1 is named twice",
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		got, err := readSurvivors(name)
		if want != "" {
			require.ErrorContains(t, err, want)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, map[string]string{"a #1": "one two", "b #1": "three", "c #1": "three"}, got)
	}
}

// TestResultsThatStayTrue: killed until the function changes, survived until there is a test that the mutant has not met.
func TestResultsThatStayTrue(t *testing.T) {
	name := filepath.Join(t.TempDir(), "results")
	dead := &mutant{file: &file{name: "a.go"}, fn: "f", op: opAlways, before: "x", n: 1, hash: "1"}
	alive := &mutant{file: &file{name: "a.go"}, fn: "f", op: opAlways, before: "y", n: 1, hash: "1"}
	test1, test2 := &test{record: record{Test: "1", Hash: "a"}}, &test{record: record{Test: "2", Hash: "b"}}
	changed := &test{record: record{Test: "1", Hash: "b"}}
	r, err := openResults(name)
	require.NoError(t, err)
	require.NoError(t, r.add(dead, result{Killed: true}))
	require.NoError(t, r.add(alive, result{Met: []string{test1.version()}}))
	require.NoError(t, r.close())

	r, err = openResults(name)
	require.NoError(t, err)
	defer r.close()
	for _, tt := range []struct {
		name  string
		m     mutant
		hash  string
		tests []*test
		left  []*test
		known bool
	}{
		{"killed", *dead, "1", []*test{test1, test2}, nil, true},
		{"killed, and another function now", *dead, "2", []*test{test1}, []*test{test1}, false},
		{"survived", *alive, "1", []*test{test1}, nil, true},
		{"another test", *alive, "1", []*test{test1, test2}, []*test{test2}, true},
		{"the test is another", *alive, "1", []*test{changed}, []*test{changed}, true},
		{"survived, and another function now", *alive, "2", nil, nil, false},
	} {
		tt.m.hash = tt.hash
		left, known := r.left(&tt.m, tt.tests)
		assert.Equal(t, tt.left, left, tt.name)
		assert.Equal(t, tt.known, known, tt.name)
	}

	require.NoError(t, r.add(alive, result{Met: []string{test2.version()}}))
	left, _ := r.left(alive, []*test{test1, test2})
	assert.Empty(t, left, "what it has met before counts")
}

func TestReadLinesThatWereCutShort(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lines")
	require.NoError(t, os.WriteFile(name, []byte("1\n2\n3"), 0o600))
	got, err := readLines[int](name)
	require.NoError(t, err)
	assert.Equal(t, []int{1, 2}, got)
	require.NoError(t, os.WriteFile(name, []byte("1\nx\n"), 0o600))
	_, err = readLines[int](name)
	require.ErrorContains(t, err, "line 2 of ")
}

// TestPlan: first those that killed others of the function, then the quickest, each process for one binary.
func TestPlan(t *testing.T) {
	a, b := &binary{listed: &listed{}}, &binary{listed: &listed{}}
	m := &mutant{id: 5, file: &file{}}
	make := func(b *binary, name string, seconds float64, reaches bool) *test {
		t := &test{binary: b, record: record{Test: name, Seconds: seconds}, reaches: map[int]struct{}{}}
		if reaches {
			t.reaches[m.id] = struct{}{}
		}
		return t
	}
	killer := make(b, "Killer", 4, true)
	p := &program{config: &config{}, tests: []*test{
		make(b, "Long", 60, true), make(b, "Other", 0.1, false), make(b, "Quick", 0.2, true), make(a, "Own", 0.1, true), killer,
		make(b, "Slow", 2, true), make(b, "Slower", 2, true),
	}}
	r := newRunner(p, nil, io.Discard)
	r.credit(m, killer)
	var got []string
	for _, g := range r.plan(m, p.reaching(m)) {
		got = append(got, strings.Join(g.names(), " "))
	}
	assert.Equal(t, []string{"Killer", "Own", "Quick", "Slow Slower", "Long"}, got)

	p.longest = 3 * time.Second
	assert.Len(t, p.reaching(m), 4, "quick ones, because there are some")
	p.longest = 50 * time.Millisecond
	assert.Len(t, p.reaching(m), 6, "long ones, because there are no others")
	assert.Equal(t, 18*time.Second, (&group{seconds: 2}).timeout())
}
