package schema

import (
	"encoding/json"
	"slices"

	compiler "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Changed returns the immutable fields in which a document differs from the one before. One that had no value may be
// given its first, and one that has a value cannot lose it.
func (s *Schema) Changed(at string, before, after json.RawMessage) ([]apiclient.FieldError, error) {
	if !s.immutable {
		return nil, nil
	}
	old, err := decode(before)
	if err != nil {
		return nil, err
	}
	wanted, err := decode(after)
	if err != nil {
		return nil, err
	}
	var found []apiclient.FieldError
	changed(&found, s.root, at, old, wanted, 0)
	return found, nil
}

func changed(found *[]apiclient.FieldError, s *compiler.Schema, at string, old, wanted any, depth int) {
	if depth > maxDepth {
		return
	}
	if has(s, func(k keywords) bool { return k.immutable }) && !same(old, wanted) {
		*found = append(*found, apiclient.FieldError{Location: at, Message: "cannot be changed"})
		return
	}
	before, wasObject := old.(map[string]any)
	after, _ := wanted.(map[string]any)
	if wasObject {
		for name, p := range s.Properties {
			if value, had := before[name]; had {
				changed(found, p, at+"."+name, value, after[name], depth+1)
			}
		}
	}
	for _, too := range alsoSaid(s) {
		changed(found, too, at, old, wanted, depth+1)
	}
}

// has reports whether our keywords at a place itself are as asked.
func has(s *compiler.Schema, is func(keywords) bool) bool {
	return slices.ContainsFunc(s.Extensions, func(e compiler.SchemaExt) bool {
		k, ok := e.(keywords)
		return ok && is(k)
	})
}

func same(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && apiclient.SameJSON(x, y)
}
