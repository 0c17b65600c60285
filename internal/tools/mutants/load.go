package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// listed is what go list tells about a package.
type listed struct {
	ImportPath string
	Name       string
	Dir        string
	Export     string // file with the types of its exported identifiers
	Standard   bool
	DepOnly    bool

	GoFiles, EmbedFiles, TestGoFiles, XTestGoFiles []string
}

// fields are those of listed, but Export, which makes go list compile.
const fields = "ImportPath,Name,Dir,Standard,DepOnly,GoFiles,EmbedFiles,TestGoFiles,XTestGoFiles"

// source is a package whose files get mutants.
type source struct {
	*listed
	files []*file
}

// file is one file of a package.
type file struct {
	path string // absolute
	name string // from the root of the repository, with slashes
	text []byte
	ast  *ast.File
	info *types.Info
	pos  *token.FileSet
	// names are constants that only stand for something, of which one more is nothing: those that count with iota.
	names map[types.Object]bool
}

// offset is where in the text a position is.
func (f *file) offset(p token.Pos) int { return f.pos.Position(p).Offset }

// of is the text of a node.
func (f *file) of(n ast.Node) string { return string(f.text[f.offset(n.Pos()):f.offset(n.End())]) }

// golist runs go list in the folder root.
func golist(root string, args ...string) ([]*listed, error) {
	out, err := gocmd(root, append([]string{"list"}, args...)...)
	if err != nil {
		return nil, err
	}
	var all []*listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &listed{}
		if err := dec.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the output of go list: %w", err)
		}
		all = append(all, p)
	}
}

// gocmd runs the go command in the folder root and returns what it prints.
func gocmd(root string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...) //nolint:noctx // Ctrl-C reaches it as it reaches us
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// load parses and checks the packages. A target is a package, ./lock, or some files of one: ./lock:s*.go.
func load(root string, targets []string) ([]*source, error) {
	patterns := make([]string, len(targets))
	globs := make([]string, len(targets))
	for i, t := range targets {
		patterns[i], globs[i], _ = strings.Cut(t, ":")
	}
	all, err := golist(root, append([]string{"-export", "-deps", "-json=Export," + fields}, patterns...)...)
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	byDir := map[string]*listed{}
	for _, p := range all {
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			byDir[p.Dir] = p
		}
	}
	var sources []*source
	pos := token.NewFileSet()
	imports := importer.ForCompiler(pos, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for i, pattern := range patterns {
		p := byDir[filepath.Join(root, pattern)]
		if p == nil {
			return nil, fmt.Errorf("package %s: give the folder of one package, as in ./lock", targets[i])
		}
		s, err := check(root, p, globs[i], pos, imports)
		if err != nil {
			return nil, err
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// check parses all files of a package, and returns those whose names match the glob, or all if there is none.
func check(root string, p *listed, glob string, pos *token.FileSet, imports types.Importer) (*source, error) {
	s := &source{listed: p}
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		Defs: map[*ast.Ident]types.Object{},
	}
	var asts []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		a, err := parser.ParseFile(pos, path, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		asts = append(asts, a)
		if ok, err := filepath.Match(glob, name); err != nil {
			return nil, fmt.Errorf("files %q of %s: %w", glob, p.ImportPath, err)
		} else if !ok && glob != "" || ast.IsGenerated(a) {
			continue
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, &file{path: path, name: filepath.ToSlash(rel), text: text, ast: a, info: info, pos: pos})
	}
	conf := types.Config{Importer: imports}
	if _, err := conf.Check(p.ImportPath, pos, asts, info); err != nil {
		return nil, err
	}
	names := map[types.Object]bool{}
	for _, a := range asts {
		addNames(names, a, info)
	}
	for _, f := range s.files {
		f.names = names
	}
	return s, nil
}

// addNames adds the constants of a file that are declared in one group with iota.
func addNames(names map[types.Object]bool, a *ast.File, info *types.Info) {
	for _, d := range a.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		counts := false
		ast.Inspect(group, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			counts = counts || ok && info.Uses[id] == types.Universe.Lookup("iota")
			return true
		})
		for _, spec := range group.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok && counts {
				for _, id := range v.Names {
					names[info.Defs[id]] = true
				}
			}
		}
	}
}
