// Package rules has no code, only tests: they hold the source to the rules of CONTRIBUTING.md that no compiler or linter
// knows. Each rule has its reason, which is printed when it is broken.
package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root       = "../.."
	module     = "github.com/evenkeel-io/evenkeel"
	natsServer = "github.com/nats-io/nats-server/v2"
)

// pkg is what go list tells about a package.
type pkg struct {
	ImportPath   string
	Name         string
	Dir          string
	Module       *struct{ Path string }
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// testImports are the direct imports of the package's tests.
func (p *pkg) testImports() []string { return slices.Concat(p.TestImports, p.XTestImports) }

// run runs the go command on the root module by itself, as its users get it, and decodes each JSON value that it prints.
func run[T any](args ...string) ([]T, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	var values []T
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var v T
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return values, nil
		} else if err != nil {
			return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
		}
		values = append(values, v)
	}
}

// list is run once for all tests: it takes most of their time.
var list = sync.OnceValues(func() ([]*pkg, error) {
	return run[*pkg]("list", "-deps", "-test", "-json=ImportPath,Name,Dir,Module,Imports,TestImports,XTestImports", "./...")
})

// graph is every package that the root module's packages and tests are made of, by import path.
func graph(t *testing.T) map[string]*pkg {
	t.Helper()
	packages, err := list()
	require.NoError(t, err)
	all := map[string]*pkg{}
	for _, p := range packages {
		// With -test, go list also gives the packages as they are compiled for a test, named "p [q.test]", and "q.test".
		if !strings.Contains(p.ImportPath, " ") && !strings.HasSuffix(p.ImportPath, ".test") {
			all[p.ImportPath] = p
		}
	}
	for _, name := range []string{"apiclient", "lock", "notify", "requeue", "reconciler", "internal/rules"} {
		require.Contains(t, all, module+"/"+name, "the rules name a package that does not exist: have they moved with it?")
	}
	return all
}

// own are the packages of the root module, in order.
func own(all map[string]*pkg) []*pkg {
	var ps []*pkg
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if p := all[name]; p.Module != nil && p.Module.Path == module {
			ps = append(ps, p)
		}
	}
	return ps
}

// within returns the path of a package inside the module, or false if it is not of it.
func within(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// under reports whether an import path is the given one or below it.
func under(importPath, parent string) bool {
	return importPath == parent || strings.HasPrefix(importPath, parent+"/")
}

// reach are the import paths that the given ones lead to, themselves included, each with a way to it.
func reach(all map[string]*pkg, from ...string) map[string]string {
	way := map[string]string{}
	var visit func(importPath, via string)
	visit = func(importPath, via string) {
		if _, seen := way[importPath]; seen {
			return
		}
		way[importPath] = strings.TrimPrefix(via+" -> "+importPath, " -> ")
		if p := all[importPath]; p != nil {
			for _, i := range p.Imports {
				visit(i, way[importPath])
			}
		}
	}
	for _, f := range from {
		visit(f, "")
	}
	return way
}

// TestLayers: who may import whom inside the module, tests left aside.
func TestLayers(t *testing.T) {
	const apart = "the four parts are usable alone and replaceable one at a time; only reconciler brings them together"
	const upward = "reconciler stands on the parts; a part that imports it cannot be used without it"
	parts := []string{"apiclient", "lock", "notify", "requeue"}

	all := graph(t)
	forbid := func(from, to, reason string) {
		for importPath, way := range reach(all, module+"/"+from) {
			if under(importPath, module+"/"+to) {
				t.Errorf("%s must not import %s: %s\n\tthe way: %s", from, importPath, reason, way)
			}
		}
	}
	for _, part := range parts {
		forbid(part, "reconciler", upward)
		for _, other := range parts {
			if other != part {
				forbid(part, other, apart)
			}
		}
	}
	for _, from := range append(parts, "reconciler") {
		forbid(from, "reconciler/reconcilertest", "test kits bring a broker, which must not get into a controller's binary")
		forbid(from, "apiclient/apitest", "test kits are for tests")
		forbid(from, "internal/broker", "it is the embedded server of our tests")
	}
	for _, part := range parts {
		if !slices.Contains(all[module+"/reconciler"].Imports, module+"/"+part) {
			t.Errorf("reconciler no longer imports %s: it must not do that part's work itself", part)
		}
	}
}

// mayEmbed reports whether a package (given by its path inside the module) may import the server.
func mayEmbed(p string) bool {
	base := path.Base(p)
	return base == "reconcilertest" || base == "apitest" || under(p, "internal/e2e") || under(p, "internal/broker")
}

// TestServerStaysOut: `go mod tidy` reads the tests of every package that a user's program is made of, and the tests'
// imports in turn. A test beside a library package that starts a server makes every user download it.
func TestServerStaysOut(t *testing.T) {
	const reason = "only reconcilertest, apitest, internal/broker and internal/e2e may: everyone else's users would download the server on go mod tidy"
	all := graph(t)
	for _, p := range own(all) {
		name, _ := within(p.ImportPath)
		if mayEmbed(name) {
			continue
		}
		for _, i := range slices.Concat(p.Imports, p.testImports()) {
			if under(i, natsServer) {
				t.Errorf("%s imports %s: %s", name, i, reason)
			}
		}
		if strings.HasPrefix(name, "internal/") {
			continue // nobody outside can import it; what a library package takes in comes up below
		}
		taken := reach(all, p.ImportPath)
		if way := toServer(taken); way != "" {
			t.Errorf("%s takes in the server: %s\n\tthe way: %s", name, reason, way)
		}
		for importPath := range taken {
			if _, ours := within(importPath); !ours {
				continue
			}
			if way := toServer(reach(all, all[importPath].testImports()...)); way != "" {
				t.Errorf("the tests of %s, of which %s is made, take in the server: %s\n\tthe way: %s", importPath, name, reason, way)
			}
		}
	}
}

// toServer is the shortest of the ways that end in the server, or empty.
func toServer(ways map[string]string) string {
	shortest := ""
	for importPath, way := range ways {
		if under(importPath, natsServer) && (shortest == "" || len(way) < len(shortest)) {
			shortest = way
		}
	}
	return shortest
}

// TestForbiddenImports: what no package of the root module imports, not even in tests.
func TestForbiddenImports(t *testing.T) {
	const floor = "a root requirement is every user's version floor; it belongs in controllers/"
	forbidden := map[string]string{
		"k8s.io":                   floor,
		"sigs.k8s.io":              floor,
		"github.com/aws":           floor,
		"go.uber.org/zap":          "logging goes through logr, so that users choose; " + floor,
		"github.com/go-logr/zapr":  "logging goes through logr, so that users choose; " + floor,
		"database/sql":             "the SDK has no database; the API in controllers/ has",
		"github.com/jackc":         floor,
		"github.com/lib/pq":        floor,
		"modernc.org":              floor,
		"github.com/mattn":         floor,
		"github.com/go-sql-driver": floor,
		"github.com/prometheus":    "metrics are made from reconciler.Event by whoever wants them; " + floor,
		"go.opentelemetry.io":      "traces are made from reconciler.Event by whoever wants them; " + floor,
		module + "/controllers":    "the root is what the controllers stand on",
		module + "/examples":       "examples show the root; nothing needs them",
	}
	for _, p := range own(graph(t)) {
		for _, i := range slices.Concat(p.Imports, p.testImports()) {
			for parent, reason := range forbidden {
				if under(i, parent) {
					t.Errorf("%s imports %s: %s", p.ImportPath, i, reason)
				}
			}
		}
	}
}

// TestPackageNames: a package is named after what it does for its user.
func TestPackageNames(t *testing.T) {
	for _, p := range own(graph(t)) {
		for _, name := range append(strings.Split(p.ImportPath, "/"), p.Name) {
			if slices.Contains([]string{"pkg", "util", "utils", "common", "types", "models", "helpers", "misc"}, name) {
				t.Errorf("%s: %q says nothing about what is inside, so everything ends up there", p.ImportPath, name)
			}
		}
	}
}

// TestDirectRequirements: adding a dependency is a big deal. CONTRIBUTING.md has the reason for each of these.
func TestDirectRequirements(t *testing.T) {
	required := map[string]bool{ // whether it must be there
		"github.com/nats-io/nats.go":        true,
		"github.com/go-logr/logr":           true,
		"github.com/stretchr/testify":       true,
		natsServer:                          true,
		"github.com/anishathalye/porcupine": false, // until the lock histories are checked with it
	}
	type goMod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Replace []struct{ Old struct{ Path string } }
	}
	_, err := os.Stat(root + "/go.mod") // tells go test that the cached result ends with this file
	require.NoError(t, err)
	mods, err := run[goMod]("mod", "edit", "-json")
	require.NoError(t, err)
	require.Len(t, mods, 1)
	direct := map[string]bool{}
	for _, r := range mods[0].Require {
		if r.Indirect {
			continue
		}
		direct[r.Path] = true
		if _, known := required[r.Path]; !known {
			t.Errorf("go.mod requires %s: every requirement of the root becomes every user's; give the reason in CONTRIBUTING.md and here, or do without", r.Path)
		}
	}
	for name, must := range required {
		if must && !direct[name] {
			t.Errorf("go.mod does not require %s directly: is it tidy?", name)
		}
	}
	for _, r := range mods[0].Replace {
		t.Errorf("go.mod replaces %s: a replacement holds for us only, users would get something else", r.Old.Path)
	}
}
