package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// program is the code with all its mutants in it, and the tests of it.
type program struct {
	*config
	mutants  []*mutant         // by id
	overlay  map[string]string // the text of each rewritten file, by its path
	hash     string            // of everything that the test binaries are made of
	binaries []*binary
	tests    []*test // those that pass without a mutant; set by reach
}

// binary is the tests of one package.
type binary struct {
	*listed
	path string
}

// newProgram finds the mutants, and builds nothing.
func newProgram(c *config) (*program, error) {
	sources, err := load(c.root, c.packages)
	if err != nil {
		return nil, err
	}
	p := &program{config: c, overlay: map[string]string{}}
	next := 0
	for _, s := range sources {
		for _, f := range s.files {
			found := collect(f, &next)
			p.mutants = append(p.mutants, found.mutants...)
			p.overlay[f.path] = schema(f.text, found.wraps)
		}
	}
	for _, s := range sources {
		p.overlay[filepath.Join(s.Dir, helperName)] = helperOf(s.Name, next)
	}
	slices.SortFunc(p.mutants, func(a, b *mutant) int { return a.id - b.id })
	return p, nil
}

// testPackages are the folders of the packages whose tests run.
func (p *program) testPackages() []string {
	var all []string
	for _, t := range p.packages {
		folder, _, _ := strings.Cut(t, ":")
		all = append(all, folder)
	}
	return append(all, p.by...)
}

// build compiles the test binaries, unless there are some of the same sources.
func (p *program) build(progress io.Writer) error {
	all, err := golist(p.root, append([]string{"-deps", "-test", "-json=" + fields}, p.testPackages()...)...)
	if err != nil {
		return err
	}
	if p.hash, err = p.sum(all); err != nil {
		return err
	}
	if err := p.forgetOthers(); err != nil {
		return err
	}
	overlay, err := p.writeOverlay()
	if err != nil {
		return err
	}
	for _, pkg := range all {
		if pkg.DepOnly || strings.HasSuffix(pkg.ImportPath, ".test") || strings.Contains(pkg.ImportPath, " ") ||
			len(pkg.TestGoFiles)+len(pkg.XTestGoFiles) == 0 {
			continue
		}
		b := &binary{listed: pkg, path: filepath.Join(p.folder(), strings.ReplaceAll(pkg.ImportPath, "/", "_")+".test")}
		p.binaries = append(p.binaries, b)
		if _, err := os.Stat(b.path); err == nil {
			continue
		}
		fmt.Fprintf(progress, "building the tests of %s with %d mutants in the program\n", pkg.ImportPath, len(p.mutants))
		if _, err := gocmd(p.root, "test", "-c", "-vet=off", "-overlay", overlay, "-o", b.path, pkg.ImportPath); err != nil {
			return fmt.Errorf("a rewrite does not compile: leave out its operator there, or correct it: %w", err)
		}
	}
	if len(p.binaries) == 0 {
		return fmt.Errorf("no tests in %s: name packages that have some with -by", strings.Join(p.testPackages(), " "))
	}
	return nil
}

// folder is where everything is that belongs to these sources alone.
func (p *program) folder() string { return filepath.Join(p.dir, p.hash) }

// sum is a hash of the rewritten packages, and of all files of this repository that the tests are made of.
func (p *program) sum(all []*listed) (string, error) {
	var files []string
	for _, pkg := range all {
		if pkg.Standard || !strings.HasPrefix(pkg.Dir, p.root+string(filepath.Separator)) {
			continue
		}
		for _, name := range slices.Concat(pkg.GoFiles, pkg.EmbedFiles, pkg.TestGoFiles, pkg.XTestGoFiles) {
			if path := filepath.Join(pkg.Dir, name); !filepath.IsAbs(name) { // absolute: the main of a test binary
				files = append(files, path)
			}
		}
	}
	version, err := gocmd(p.root, "version")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write(version)
	slices.Sort(files)
	for _, path := range append(slices.Compact(files), filepath.Join(p.root, "go.mod"), filepath.Join(p.root, "go.sum")) {
		text, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) { // a module that requires nothing has no go.sum
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", path, len(text), text)
	}
	h.Write([]byte(p.rewritten()))
	return short(h.Sum(nil)), nil
}

// rewritten is a hash of the packages that are broken.
func (p *program) rewritten() string {
	h := sha256.New()
	for _, path := range slices.Sorted(maps.Keys(p.overlay)) {
		fmt.Fprintf(h, "%s %d\n%s", path, len(p.overlay[path]), p.overlay[path])
	}
	return short(h.Sum(nil))
}

// short is as much of a hash as names need.
func short(sum []byte) string { return hex.EncodeToString(sum[:8]) }

// writeOverlay writes the rewritten files and returns the name of the list of them, as go build -overlay takes it.
func (p *program) writeOverlay() (string, error) {
	folder := filepath.Join(p.folder(), "src")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, text := range p.overlay {
		rel, err := filepath.Rel(p.root, path)
		if err != nil {
			return "", err
		}
		replace[path] = filepath.Join(folder, strings.ReplaceAll(filepath.ToSlash(rel), "/", "__")+".txt")
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(p.folder(), "overlay.json")
	return name, os.WriteFile(name, list, 0o600)
}

// reachFile is what the tests reach. It does not depend on the tests, each of which is looked at by itself.
func (p *program) reachFile() string { return filepath.Join(p.dir, "reach-"+p.rewritten()) }

// forgetOthers removes the binaries of other sources, which are large, and what was reached of other packages.
func (p *program) forgetOthers() error {
	others, err := filepath.Glob(filepath.Join(p.dir, "*", "overlay.json"))
	if err != nil {
		return err
	}
	reaches, err := filepath.Glob(filepath.Join(p.dir, "reach-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, other := range reaches {
		if other != p.reachFile() {
			errs = append(errs, os.Remove(other))
		}
	}
	for _, other := range others {
		if folder := filepath.Dir(other); folder != p.folder() {
			errs = append(errs, os.RemoveAll(folder))
		}
	}
	return errors.Join(errs...)
}
