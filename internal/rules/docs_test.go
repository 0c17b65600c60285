package rules

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocsNameTestsThatExist: where a page says which test holds a promise, there is such a test. A star stands for any
// end of the name.
func TestDocsNameTestsThatExist(t *testing.T) {
	var tests []string
	files, _ := sources(t)
	for _, s := range files {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.isTest() && f.Recv == nil {
				tests = append(tests, f.Name.Name)
			}
		}
	}
	pages, err := filepath.Glob(filepath.Join(root, "*.md"))
	require.NoError(t, err)
	named := regexp.MustCompile("`((?:Test|Benchmark)[A-Za-z0-9_]+)(\\*?)`")
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			if !exists(tests, m[1], m[2] != "") {
				t.Errorf("%s names %s, which does not exist", filepath.Base(page), m[0])
			}
		}
	}
	require.Greater(t, found, 10)
}

func exists(tests []string, name string, prefix bool) bool {
	for _, test := range tests {
		if test == name || prefix && strings.HasPrefix(test, name) {
			return true
		}
	}
	return false
}
