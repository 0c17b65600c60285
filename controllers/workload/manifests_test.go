package workload

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestManifestsAreTakenApart(t *testing.T) {
	docs, err := parse(`# a comment, and nothing else
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, creationTimestamp: null, resourceVersion: "7", uid: x}
data: {n: "1"}
status: {old: true}
---

---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Secret, metadata: {name: b}}
- apiVersion: v1
  kind: ConfigMapList
  items:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: other}}
---
{"apiVersion":"batch/v1","kind":"Job","metadata":{"generateName":"run-"},"spec":{"parallelism":3}}
`)
	require.NoError(t, err)
	var all []string
	for _, d := range docs {
		all = append(all, d.String())
	}
	require.Equal(t, []string{
		"document 1 (line 3, ConfigMap a)", "document 2 (line 11, Secret b)", "document 2 (line 11, ConfigMap c)", "document 3 (line 20, Job run-*)",
	}, all)
	require.Equal(t, map[string]any{"name": "a"}, docs[0].Object["metadata"], "what only a server says is dropped")
	require.NotContains(t, docs[0].Object, "status")
	require.Equal(t, int64(3), docs[3].Object["spec"].(map[string]any)["parallelism"])
}

func TestWrongManifestsAreNamed(t *testing.T) {
	const good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	for text, want := range map[string]string{
		"":                                  "there is no document in them",
		"# nothing\n---\n":                  "there is no document in them",
		good + "---\nkind: x\n":             "document 2 (line 5): apiVersion and kind are missing",
		good + "---\na: b: c\n":             "document 2 (line 5): ",
		good + "---\n- a\n":                 "document 2 (line 5): want an object",
		good + "---\n" + good:               "document 2 (line 5, ConfigMap a) is there already, as document 1 (line 1, ConfigMap a)",
		good + "data: {}\ndata: {}":         "document 1 (line 1): ",
		"apiVersion: v1\nkind: ConfigMap\n": "document 1 (line 1, ConfigMap *): metadata.name is missing",
		"apiVersion: a/b/c\nkind: X\nmetadata: {name: a}\n": `apiVersion "a/b/c": want GROUP/VERSION, or v1`,
	} {
		_, err := parse(text)
		require.ErrorIs(t, err, errManifests, text)
		require.ErrorContains(t, err, want, text)
	}
}

// FuzzParse: whatever is declared, it is refused or taken apart.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "---", "a: b", "apiVersion: v1\nkind: List\nitems: [1, {}, null]", "apiVersion: v1\nkind: A\nmetadata: []", "apiVersion: 1\nkind: 2\nmetadata: {name: 3}", "{", "a: *b", "apiVersion: v1\nkind: A\nmetadata: {name: a}\n---\n---\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := parse(text)
		if err != nil {
			require.ErrorIs(t, err, errManifests)
			return
		}
		require.NotEmpty(t, docs)
		in := &Instance{Name: "x", UID: "u"}
		if strings.Contains(text, "$") {
			return
		}
		_, err = render(in, &DefinitionSpec{}, docs, "ns", known)
		_ = err // two documents may come to the same name
	})
}
