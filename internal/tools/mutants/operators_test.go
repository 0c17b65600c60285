package main

import (
	"go/importer"
	"go/token"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// positions and std are shared by all tests: the standard library is checked from source, which takes seconds.
var (
	positions = token.NewFileSet()
	std       = importer.ForCompiler(positions, "source", nil)
)

// collected are the mutants of a file of package p.
func collected(t *testing.T, text string) *collector {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "p.go"), []byte(text), 0o600))
	p := &listed{ImportPath: "p", Name: "p", Dir: dir, GoFiles: []string{"p.go"}}
	s, err := check(dir, p, "", positions, std)
	require.NoError(t, err)
	next := 0
	return collect(s.files[0], &next)
}

// TestOperators: which mutants a piece of code gets, and which it does not get because they would say nothing.
func TestOperators(t *testing.T) {
	tests := []struct {
		name string
		code string
		want []string
	}{
		{
			name: "the check of an error",
			code: "func f(err error) { if err != nil { _ = 0.5 } }",
			want: []string{"always: err != nil -> true", "never: err != nil -> false", "drop-statement: _ = 0.5 -> (nothing)"},
		},
		{
			name: "conditions",
			code: "func f(a, b bool) { if !a { }; for a { }; if x := a; x != b { } }",
			want: []string{
				"always: !a -> true", "never: !a -> false", "never: a -> false", "always: x != b -> true", "never: x != b -> false",
			},
		},
		{
			name: "a chain has one mutant for each operand",
			code: "func f(a, b, c bool) bool { return a && b && c }",
			want: []string{
				"always: a && b && c -> true", "never: a && b && c -> false", "drop-operand: a && b && c -> b && c",
				"drop-operand: a && b && c -> a && c", "drop-operand: a && b && c -> a && b",
			},
		},
		{
			name: "operands are swapped where the order may matter",
			code: "func f(g, h func() bool) { _ = g() && h(); _ = len(\"\") > 0 || g() || g() }",
			want: []string{
				"drop-statement: _ = g() && h() -> (nothing)",
				"swap-statements: _ = g() && h(); _ = len(\"\") > 0 || g() || g() -> _ = len(\"\") > 0 || g() || g(); _ = g() && h()",
				"drop-statement: _ = len(\"\") > 0 || g() || g() -> (nothing)",
				"drop-operand: g() && h() -> h()", "drop-operand: g() && h() -> g()", "swap-operands: g() && h() -> h() && g()",
				"drop-operand: len(\"\") > 0 || g() || g() -> len(\"\") > 0 || g()",
				"drop-operand: len(\"\") > 0 || g() || g() -> len(\"\") > 0 || g()",
			},
		},
		{
			name: "a boundary and its number are moved in opposite directions",
			code: "func f(n int) { _ = 0.5; if n < 3 { } }",
			want: []string{
				"drop-statement: _ = 0.5 -> (nothing)", "always: n < 3 -> true", "never: n < 3 -> false", "boundary: n < 3 -> n <= 3", "minus-one: 3 -> 2",
			},
		},
		{
			name: "a switch without a tag",
			code: "func f(a bool, err error) { switch { case a, err != nil: } }",
			want: []string{"always: a -> true", "always: err != nil -> true", "never: a, err != nil -> false, false"},
		},
		{
			name: "a switch with a tag",
			code: "func f(a bool) { switch a { case true: } }",
		},
		{
			name: "statements that stay",
			code: "import \"sync\"\nfunc f() { var mu sync.Mutex; mu.Lock(); defer mu.Unlock(); x := 0.5; _ = x; panic(x) }",
			want: []string{"drop-statement: _ = x -> (nothing)"},
		},
		{
			name: "statements are swapped where the order may matter",
			code: "func f(a, b float64, g, h func()) { a = 0.5; b = 0.5; b = a; g(); h(); h() }",
			want: []string{
				"drop-statement: a = 0.5 -> (nothing)", "drop-statement: b = 0.5 -> (nothing)",
				"swap-statements: b = 0.5; b = a -> b = a; b = 0.5", "drop-statement: b = a -> (nothing)",
				"drop-statement: g() -> (nothing)", "swap-statements: g(); h() -> h(); g()", "drop-statement: h() -> (nothing)",
				"drop-statement: h() -> (nothing)",
			},
		},
		{
			name: "an atomic that is stored is a statement like others, one that is loaded is none",
			code: `
				import "sync/atomic"
				func f(a, b *atomic.Bool) { a.Store(b.Load()); b.Store(a.Load()); _ = a.Load() && a.Load() }`,
			want: []string{
				"drop-statement: a.Store(b.Load()) -> (nothing)",
				"swap-statements: a.Store(b.Load()); b.Store(a.Load()) -> b.Store(a.Load()); a.Store(b.Load())",
				"drop-statement: b.Store(a.Load()) -> (nothing)",
				"swap-statements: b.Store(a.Load()); _ = a.Load() && a.Load() -> _ = a.Load() && a.Load(); b.Store(a.Load())",
				"drop-statement: _ = a.Load() && a.Load() -> (nothing)",
				"drop-operand: a.Load() && a.Load() -> a.Load()", "drop-operand: a.Load() && a.Load() -> a.Load()",
			},
		},
		{
			name: "delete changes one map",
			code: "func f(a, b map[any]any) { delete(a, true); delete(b, true); a = nil }",
			want: []string{
				"drop-statement: delete(a, true) -> (nothing)", "drop-statement: delete(b, true) -> (nothing)",
				"drop-statement: a = nil -> (nothing)", "flip: true -> false", "flip: true -> false",
			},
		},
		{
			name: "errors that are returned",
			code: `
				func f(err error) error      { return err }
				func g() (bool, error)       { return h() }
				func h() (x bool, err error) { return true, nil }`,
			want: []string{
				"drop-error: return err -> return nil", "drop-error: return h() -> v0, _ := h(); return v0, nil", "flip: true -> false",
			},
		},
		{
			name: "a function inside has results of its own",
			code: "func f() func() error { return func() error { return nil } }",
		},
		{
			name: "cases of a select",
			code: "func f(a, b chan int) { select { case x, ok := <-a: _, _ = x, ok; case b <- 1: }; select { case <-a: } }",
			want: []string{
				"drop-case: x, ok := <-a -> (nothing)", "drop-statement: _, _ = x, ok -> (nothing)",
				"drop-case: b <- 1 -> (nothing)", "plus-one: 1 -> 2", "minus-one: 1 -> 0",
			},
		},
		{
			name: "durations and numbers",
			code: "import \"time\"\nfunc f() (time.Duration, uint, int) { return 2 * time.Second, 0, 404 }",
			want: []string{
				"double: 2 * time.Second -> (2 * time.Second) * 2", "halve: 2 * time.Second -> (2 * time.Second) / 2",
				"plus-one: 0 -> 1", "double: 404 -> 808", "halve: 404 -> 202",
			},
		},
		{
			name: "constants that are none of our numbers",
			code: `
				type e int
				const (
					a = iota
					b
				)
				func f() (byte, e, int) { const c = 7; var x [7]int; _ = map[int]int{}; _ = x; return 'x', 3, b }`,
			want: []string{"drop-statement: _ = map[int]int{} -> (nothing)", "drop-statement: _ = x -> (nothing)"},
		},
		{
			name: "values ignored beside an error",
			code: `
				func f(err error) (int, error) { return 1, err }
				func g() (int, bool)           { return 1, false }
				func h() (byte, error)         { return 0, nil }`,
			want: []string{"drop-error: return 1, err -> return …, nil", "flip: false -> true", "plus-one: 0 -> 1"},
		},
		{
			name: "what make is told",
			code: "func f() (_, _, _ any) { return make([]int, 0, 9), make(map[int]int, 9), make(chan int, 9) }",
			want: []string{"plus-one: 0 -> 1", "minus-one: 0 -> -1", "plus-one: 9 -> 10", "minus-one: 9 -> 8"},
		},
		{
			name: "arguments that are true or false",
			code: "func f(g func(bool, any)) { g(true, false) }",
			want: []string{"drop-statement: g(true, false) -> (nothing)", "flip: true -> false", "flip: false -> true"},
		},
		{
			name: "loops",
			code: `
				func f(a []int) {
					for range a { continue }
					for { break }
					for _, x := range a { switch { case x == x: break }; _ = x }
				}`,
			want: []string{
				"drop-jump: continue -> (nothing)", "drop-jump: break -> (nothing)",
				"once: for _, x := range a -> for _, x := range a { …; break }",
				"drop-statement: _ = x -> (nothing)", "always: x == x -> true", "never: x == x -> false",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, m := range collected(t, "package p\n"+tt.code).mutants {
				got = append(got, m.what())
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestKeyAndDiff(t *testing.T) {
	c := collected(t, `package p

type list[T any] struct{ n []T }

func (l *list[T]) clear(f func(int)) {
	f(1)
	l.n = nil
	f(1)
}
`)
	var last *mutant
	for _, m := range c.mutants {
		if m.op == opDropStatement {
			last = m
		}
	}
	assert.Equal(t, `p.go list.clear drop-statement "f(1)" #2`, last.key())
	assert.Equal(t, `--- a/p.go
+++ b/p.go
@@ -6,4 +6,3 @@ list.clear
 	f(1)
 	l.n = nil
-	f(1)
 }
`, last.diff())
}

func TestSchemaNests(t *testing.T) {
	text := []byte("abcdef")
	assert.Equal(t, "(a[{bc}]d)ef", schema(text, []wrap{{1, 3, "[", "]"}, {1, 3, "{", "}"}, {0, 4, "(", ")"}}))
	assert.Equal(t, "<ab><cd>!ef", schema(text, []wrap{{2, 4, "<", ">"}, {0, 2, "<", ">"}, {4, 4, "!", ""}}))
}
