package schema

import (
	"fmt"
	"strings"
)

// prepare closes a schema, in place, and checks the keywords of ours.
func (s *Schema) prepare(root map[string]any) error {
	p := preparation{schema: s, root: root}
	p.place(root, "schema", place{free: true})
	return p.err
}

// maxDepth bounds how far a chain of references is followed.
const maxDepth = 100

type preparation struct {
	schema *Schema
	root   map[string]any
	err    error // the first
}

// place says what holds of a place in a schema.
type place struct {
	// free places describe a value by themselves. Others add to what another schema says of the same value, and
	// cannot know which fields that one names.
	free bool
	// inArray places describe items, which have no identity of their own.
	inArray bool
}

// places are the keywords that lead to the schema of another value, by what they hold: one schema, a list, or a map.
var (
	oneSchema  = []string{"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "contains", "propertyNames"}
	schemaList = []string{"prefixItems"}
	schemaMap  = []string{"properties", "patternProperties"}
	sameOne    = []string{"not", "if", "then", "else"}
	sameList   = []string{"allOf", "anyOf", "oneOf"}
	sameMap    = []string{"dependentSchemas", "$defs", "definitions"}
)

// place closes one place of a schema and goes on below it.
func (p *preparation) place(s map[string]any, at string, where place) {
	p.keywords(s, at, where)
	if where.free && p.closes(s, 0) {
		s["unevaluatedProperties"] = false
	}
	below := place{free: true, inArray: where.inArray}
	for _, k := range oneSchema {
		next := below
		next.inArray = next.inArray || k == "items" || k == "unevaluatedItems" || k == "contains"
		p.one(s[k], at+"."+k, next)
	}
	for _, k := range schemaList {
		p.list(s[k], at+"."+k, place{free: true, inArray: true})
	}
	for _, k := range schemaMap {
		p.named(s[k], at+"."+k, below)
	}
	same := place{inArray: where.inArray}
	for _, k := range sameOne {
		p.one(s[k], at+"."+k, same)
	}
	for _, k := range sameList {
		p.list(s[k], at+"."+k, same)
	}
	for _, k := range sameMap {
		p.named(s[k], at+"."+k, same)
	}
}

func (p *preparation) one(v any, at string, where place) {
	if s, ok := v.(map[string]any); ok {
		p.place(s, at, where)
	}
}

func (p *preparation) list(v any, at string, where place) {
	list, _ := v.([]any)
	for i, v := range list {
		p.one(v, fmt.Sprintf("%s.%d", at, i), where)
	}
}

func (p *preparation) named(v any, at string, where place) {
	all, _ := v.(map[string]any)
	for name, v := range all {
		p.one(v, at+"."+name, where)
	}
}

// closes reports whether a place names fields without saying what of others.
func (p *preparation) closes(s map[string]any, depth int) bool {
	for _, k := range []string{"additionalProperties", "patternProperties", "unevaluatedProperties"} {
		if _, said := s[k]; said {
			return false
		}
	}
	if s["properties"] != nil || s["allOf"] != nil || s["anyOf"] != nil || s["oneOf"] != nil {
		return true
	}
	target := p.local(s["$ref"])
	return target != nil && depth < maxDepth && p.closes(target, depth+1)
}

// local is what a reference into the schema itself leads to, or nil.
func (p *preparation) local(ref any) map[string]any {
	pointer, ok := ref.(string)
	if !ok || !strings.HasPrefix(pointer, "#") {
		return nil
	}
	at := p.root
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "#/"), "/") {
		if pointer == "#" {
			break
		}
		at, _ = at[strings.NewReplacer("~1", "/", "~0", "~").Replace(token)].(map[string]any)
	}
	return at
}

// keywords checks those of ours and notes what the schema has.
func (p *preparation) keywords(s map[string]any, at string, where place) {
	if _, ok := s["default"]; ok {
		p.schema.defaults = true
	}
	for _, k := range []string{Immutable, Sensitive} {
		v, said := s[k]
		yes, ok := v.(bool)
		switch {
		case said && !ok:
			p.refuse(at+"."+k, "want true or false")
		case yes && k == Immutable && where.inArray:
			p.refuse(at+"."+k, "items of an array come and go; put it on the array")
		case yes && k == Immutable:
			p.schema.immutable = true
		}
	}
}

func (p *preparation) refuse(at, why string) {
	if p.err == nil {
		p.err = fmt.Errorf("%s: %s", at, why)
	}
}
