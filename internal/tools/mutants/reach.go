package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// test is a test of a binary, and what it does without a mutant.
type test struct {
	binary *binary
	record
	reaches map[int]struct{}
}

// record is what is stored of a test: a line of the file reach.
type record struct {
	Package string
	Test    string
	Hash    string // of the text of its function
	Passed  bool
	Seconds float64
	Reaches []int // ids of mutants
}

// name is the test's, and its package's.
func (r *record) name() string { return r.Package + " " + r.Test }

// version is the name of the test as its function is written now.
func (r *record) version() string { return r.name() + " " + r.Hash }

// patience is how long a test by itself may take. TestSeeds takes half a minute.
const patience = 10 * time.Minute

// reach runs each test by itself, unless it is known what it reaches, and keeps those that pass. Tests that skip themselves
// reach nothing.
func (p *program) reach(ctx context.Context, progress io.Writer) error {
	name := p.reachFile()
	known, err := readLines[record](name)
	if err != nil {
		return err
	}
	all, err := p.listTests(ctx)
	if err != nil {
		return err
	}
	done := map[string]record{}
	for _, r := range known {
		done[r.version()] = r
	}
	var missing []*test
	for _, t := range all {
		if r := done[t.version()]; r.Passed {
			t.record = r
		} else {
			missing = append(missing, t)
		}
	}
	if err := p.measure(ctx, missing, name, progress); err != nil {
		return err
	}
	for _, t := range all {
		if !t.Passed {
			fmt.Fprintf(progress, "left out, because it fails without a mutant: %s %s\n", t.Package, t.Test)
			continue
		}
		t.reaches = map[int]struct{}{}
		for _, id := range t.Reaches {
			t.reaches[id] = struct{}{}
		}
		p.tests = append(p.tests, t)
	}
	return nil
}

// reaching are the tests to run against a mutant: those that reach it, and of these the long ones only if all are long.
func (p *program) reaching(m *mutant) []*test {
	var quick, long []*test
	for _, t := range p.tests {
		if _, ok := t.reaches[m.id]; !ok {
			continue
		}
		if p.longest > 0 && t.Seconds > p.longest.Seconds() {
			long = append(long, t)
		} else {
			quick = append(quick, t)
		}
	}
	if len(quick) == 0 {
		return long
	}
	return quick
}

// listTests are all tests that -tests asks for.
func (p *program) listTests(ctx context.Context) ([]*test, error) {
	var all []*test
	for _, b := range p.binaries {
		hashes, err := b.functions()
		if err != nil {
			return nil, err
		}
		cmd := limited(ctx, b.path, "-test.list=^(Test|Example|Fuzz)")
		cmd.Dir = b.Dir
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list the tests of %s: %w", b.ImportPath, err)
		}
		for name := range strings.Lines(string(out)) {
			if name = strings.TrimSpace(name); p.config.tests.MatchString(name) {
				all = append(all, &test{binary: b, record: record{Package: b.ImportPath, Test: name, Hash: hashes[name]}})
			}
		}
	}
	return all, nil
}

// functions are the hashes of the functions in the test files of a package, by name.
func (b *binary) functions() (map[string]string, error) {
	hashes := map[string]string{}
	for _, name := range slices.Concat(b.TestGoFiles, b.XTestGoFiles) {
		f := &file{path: filepath.Join(b.Dir, name), pos: token.NewFileSet()}
		var err error
		if f.text, err = os.ReadFile(f.path); err != nil {
			return nil, err
		}
		if f.ast, err = parser.ParseFile(f.pos, f.path, f.text, 0); err != nil {
			return nil, err
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				sum := sha256.Sum256([]byte(f.of(fn)))
				hashes[fn.Name.Name] = short(sum[:])
			}
		}
	}
	return hashes, nil
}

// measure runs tests, and stores each record as soon as it is known.
func (p *program) measure(ctx context.Context, tests []*test, name string, progress io.Writer) error {
	if len(tests) == 0 {
		return nil
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // its lines have been written
	var mu sync.Mutex
	bar := newBar(progress, "tests measured", len(tests))
	return each(ctx, p.jobs, tests, func(t *test) error {
		r, err := t.measure(ctx)
		if err != nil {
			return err
		}
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		t.record = r
		bar.step("")
		_, err = file.Write(append(line, '\n'))
		return err
	})
}

// measure runs the test by itself without a mutant.
func (t *test) measure(ctx context.Context) (record, error) {
	file, err := os.CreateTemp("", "mutant-reach-")
	if err != nil {
		return record{}, err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	if err := file.Close(); err != nil {
		return record{}, err
	}
	o, err := t.binary.process(ctx, []string{t.Test}, patience, envReach+"="+file.Name())
	if err != nil {
		return record{}, err
	}
	if ctx.Err() != nil {
		return record{}, ctx.Err()
	}
	r := record{Package: t.Package, Test: t.Test, Hash: t.Hash, Passed: o.passed, Seconds: o.took.Seconds()}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		return record{}, err
	}
	for line := range strings.Lines(string(text)) {
		id, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return record{}, fmt.Errorf("what %s reaches: %w", t.Test, err)
		}
		r.Reaches = append(r.Reaches, id)
	}
	slices.Sort(r.Reaches)
	r.Reaches = slices.Compact(r.Reaches) // a test may be several processes
	return r, nil
}

// readLines reads a file of one JSON value per line. The last line may be cut short, by the end of the run that wrote it.
func readLines[T any](name string) ([]T, error) {
	text, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []T
	lines := bufio.NewReader(bytes.NewReader(text))
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return all, nil // its end
		}
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			return nil, fmt.Errorf("line %d of %s: %w (delete the file to begin anew)", n, name, err)
		}
		all = append(all, v)
	}
}
