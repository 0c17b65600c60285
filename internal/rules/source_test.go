package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// source is one Go file that people write, of any module of the repository.
type source struct {
	path  string // from the root, with slashes
	lines int
	ast   *ast.File
}

func (s *source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s *source) dir() string { return filepath.ToSlash(filepath.Dir(s.path)) }

// imports reports whether the file imports a package, and under which name.
func (s *source) imports(importPath string) (name string, ok bool) {
	for _, i := range s.ast.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err != nil || p != importPath {
			continue
		}
		if i.Name != nil {
			return i.Name.Name, true
		}
		return importPath[strings.LastIndex(importPath, "/")+1:], true
	}
	return "", false
}

// sources are all Go files of the repository that are not generated.
func sources(t *testing.T) (files []*source, positions *token.FileSet) {
	t.Helper()
	positions = token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (name[0] == '.' || name[0] == '_' || name == "testdata" || name == "node_modules" || name == "vendor") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(positions, filepath.ToSlash(rel), text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(f) {
			files = append(files, &source{path: filepath.ToSlash(rel), lines: bytes.Count(text, []byte("\n")), ast: f})
		}
		return nil
	})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(files, func(s *source) bool { return s.path == "internal/rules/source_test.go" }), "not even this file was found")
	return files, positions
}

// TestFileLength: a file is one subject, and one subject fits into a reader's head.
func TestFileLength(t *testing.T) {
	files, _ := sources(t)
	for _, s := range files {
		limit := 300
		if s.isTest() {
			limit = 600
		}
		if s.lines > limit {
			t.Errorf("%s has %d lines, more than %d: which part of it has a name of its own?", s.path, s.lines, limit)
		}
	}
}

// TestNoSleeps: a test that sleeps is slow when it is right and flaky when it is not. In virtual time a sleep takes none
// and ends exactly when everyone else waits too, so there it is how time passes. Where real time is what a test is about,
// the line says so: "// real time: ", and why.
func TestNoSleeps(t *testing.T) {
	files, positions := sources(t)
	bubbles := map[string][]string{} // by folder: functions that open a bubble
	for _, s := range files {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.virtual(nil) && calls(f, "synctest", "Test") {
				bubbles[s.dir()] = append(bubbles[s.dir()], f.Name.Name)
			}
		}
	}
	for _, s := range files {
		name, ok := s.imports("time")
		if !ok || !s.isTest() || s.virtual(bubbles[s.dir()]) {
			continue
		}
		excused := map[int]bool{} // lines
		for _, c := range s.ast.Comments {
			if strings.HasPrefix(c.Text(), "real time: ") {
				excused[positions.Position(c.Pos()).Line] = true
			}
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if isSelector(n, name, "Sleep") && !excused[positions.Position(n.Pos()).Line] {
				t.Errorf("%s: a test in real time sleeps: wait for a signal, or run it in virtual time (testing/synctest, reconcilertest), or say why not", positions.Position(n.Pos()))
			}
			return true
		})
	}
}

// virtual reports whether the tests of a file run in virtual time: it imports what makes bubbles, or calls a function of
// its own package that opens one.
func (s *source) virtual(bubbles []string) bool {
	for _, p := range []string{"testing/synctest", module + "/reconciler/reconcilertest"} {
		if _, ok := s.imports(p); ok {
			return true
		}
	}
	found := false
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			switch f := c.Fun.(type) {
			case *ast.Ident:
				found = found || slices.Contains(bubbles, f.Name)
			case *ast.SelectorExpr:
				found = found || slices.Contains(bubbles, f.Sel.Name)
			}
		}
		return !found
	})
	return found
}

func calls(f *ast.FuncDecl, pkg, function string) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		found = found || isSelector(n, pkg, function)
		return !found
	})
	return found
}

func isSelector(n ast.Node, pkg, name string) bool {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// TestNoPackageState: two runners in one process, or two tests, must not meet in a variable. Package-level variables of
// the SDK are errors, compiled expressions and tables.
func TestNoPackageState(t *testing.T) {
	files, positions := sources(t)
	libraries := []string{"apiclient", "lock", "notify", "requeue", "reconciler"}
	seen := map[string]bool{}
	for _, s := range files {
		if s.isTest() || !slices.Contains(libraries, s.dir()) {
			continue
		}
		seen[s.dir()] = true
		for _, d := range s.ast.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				v, ok := spec.(*ast.ValueSpec)
				if ok && !constant(v) {
					t.Errorf("%s: %s looks like state of the package: keep it in a value that somebody owns", positions.Position(v.Pos()), v.Names[0].Name)
				}
			}
		}
	}
	require.Len(t, seen, len(libraries), "a library package has no files: has the rule moved with it?")
}

// constant reports whether a variable can be taken for a constant: made of literals, errors.New or regexp.MustCompile,
// or the blank identifier of an interface check.
func constant(v *ast.ValueSpec) bool {
	blank := !slices.ContainsFunc(v.Names, func(n *ast.Ident) bool { return n.Name != "_" })
	return blank || len(v.Values) == len(v.Names) && !slices.ContainsFunc(v.Values, func(e ast.Expr) bool { return !constantExpr(e) })
}

func constantExpr(e ast.Expr) bool {
	ok := true
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			ok = ok && (isSelector(n.Fun, "errors", "New") || isSelector(n.Fun, "regexp", "MustCompile"))
		case *ast.UnaryExpr:
			ok = ok && n.Op != token.AND // a pointer is shared
		case *ast.SelectorExpr:
			x, isName := n.X.(*ast.Ident)
			ok = ok && !(isName && (x.Name == "sync" || x.Name == "atomic"))
		case *ast.ChanType:
			ok = false
		}
		return ok
	})
	return ok
}
