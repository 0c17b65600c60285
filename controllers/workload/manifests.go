package workload

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// document is one thing to deploy, and where it stands in the manifests.
type document struct {
	*unstructured.Unstructured
	// index counts the documents from 1, and line is the one that it begins in.
	index, line int
}

func (d document) String() string {
	name := d.GetName()
	if name == "" {
		name = d.GetGenerateName() + "*"
	}
	return fmt.Sprintf("document %d (line %d, %s %s)", d.index, d.line, d.GetKind(), name)
}

// errManifests is of manifests that cannot be right, whatever the cluster.
var errManifests = errors.New("the manifests are wrong")

// parse takes manifests apart. Its errors name the document and its line.
func parse(manifests string) ([]document, error) {
	var docs []document
	reader := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifests)))
	line := 1
	for index := 1; ; {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w: document %d (line %d): %w", errManifests, index, line, err)
		}
		begins := line + leadingBlank(text)
		line += strings.Count(string(text), "\n") + 1 // and the separator
		object, err := decodeDocument(text)
		if err != nil {
			return nil, fmt.Errorf("%w: document %d (line %d): %w", errManifests, index, begins, err)
		}
		if object == nil {
			continue
		}
		for _, one := range flatten(object) {
			d := document{&unstructured.Unstructured{Object: one}, index, begins}
			if err := d.check(); err != nil {
				return nil, fmt.Errorf("%w: %s: %w", errManifests, d, err)
			}
			d.clean()
			docs = append(docs, d)
		}
		index++
	}
	if len(docs) == 0 {
		return nil, fmt.Errorf("%w: there is no document in them", errManifests)
	}
	return docs, checkUnique(docs)
}

// leadingBlank counts the lines before the first that says something.
func leadingBlank(text []byte) (n int) {
	for line := range strings.Lines(string(text)) {
		trimmed := strings.TrimSpace(line)
		if trimmed != "" && !strings.HasPrefix(trimmed, "#") && trimmed != "---" {
			return n
		}
		n++
	}
	return 0
}

// decodeDocument returns nil for a document with nothing but comments.
func decodeDocument(text []byte) (map[string]any, error) {
	data, err := sigsyaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	if string(data) == "null" {
		return nil, nil //nolint:nilnil // it is no object, and no mistake
	}
	var object map[string]any
	if err := utiljson.Unmarshal(data, &object); err != nil { // whole numbers are int64
		return nil, errors.New("want an object, such as apiVersion: …, kind: …")
	}
	if object["kind"] == nil || object["apiVersion"] == nil {
		return nil, errors.New("apiVersion and kind are missing")
	}
	return object, nil
}

// flatten takes lists apart, also lists in lists.
func flatten(object map[string]any) []map[string]any {
	kind, _ := object["kind"].(string)
	items, ok := object["items"].([]any)
	if !ok || !strings.HasSuffix(kind, "List") {
		return []map[string]any{object}
	}
	var all []map[string]any
	for _, item := range items {
		if one, ok := item.(map[string]any); ok {
			all = append(all, flatten(one)...)
		}
	}
	return all
}

func (d document) check() error {
	gv, err := schema.ParseGroupVersion(d.GetAPIVersion())
	switch {
	case d.GetAPIVersion() == "" || d.GetKind() == "":
		return errors.New("apiVersion and kind are missing")
	case err != nil || gv.Version == "":
		return fmt.Errorf("apiVersion %q: want GROUP/VERSION, or v1", d.GetAPIVersion())
	case d.GetName() == "" && d.GetGenerateName() == "":
		return errors.New("metadata.name is missing")
	}
	return nil
}

// clean drops what only a server says of an object: what was exported from a cluster can be deployed.
func (d document) clean() {
	for _, field := range []string{"creationTimestamp", "resourceVersion", "uid", "generation", "managedFields", "selfLink", "ownerReferences", "deletionTimestamp", "deletionGracePeriodSeconds"} {
		unstructured.RemoveNestedField(d.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(d.Object, "status")
}

func checkUnique(docs []document) error {
	first := map[string]document{}
	for _, d := range docs {
		if d.GetName() == "" {
			continue
		}
		k := fmt.Sprint(d.GroupVersionKind().GroupKind(), "|", d.GetNamespace(), "|", d.GetName())
		if before, ok := first[k]; ok {
			return fmt.Errorf("%w: %s is there already, as %s", errManifests, d, before)
		}
		first[k] = d
	}
	return nil
}
