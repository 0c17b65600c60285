package schema

import (
	"slices"

	compiler "github.com/santhosh-tekuri/jsonschema/v6"
)

// view is all that holds of one value: schemas may say of a value what others also do. None is in it twice, so that it
// stays small however schemas refer to each other.
type view []*compiler.Schema

// whole adds what the schemas of a view refer to.
func (v view) whole() view {
	whole := slices.Clone(v)
	for i := 0; i < len(whole); i++ { // it grows
		for _, s := range append(slices.Clip(whole[i].AllOf), whole[i].Ref) {
			whole = whole.with(s)
		}
	}
	return whole
}

func (v view) with(s *compiler.Schema) view {
	if s == nil || slices.Contains(v, s) {
		return v
	}
	return append(v, s)
}

// names are the fields that a view names.
func (v view) names() map[string]bool {
	names := map[string]bool{}
	for _, s := range v {
		for name := range s.Properties {
			names[name] = true
		}
	}
	return names
}

// field is the view of a field.
func (v view) field(name string) (field view) {
	for _, s := range v {
		if p := s.Properties[name]; p != nil {
			field = field.with(p)
		} else if more, ok := s.AdditionalProperties.(*compiler.Schema); ok {
			field = field.with(more)
		}
	}
	return field
}

// items is the view of the items of an array.
func (v view) items() (items view) {
	for _, s := range v {
		items = items.with(s.Items2020)
	}
	return items
}

// preset is the default of a value, or nil.
func (v view) preset() *any {
	for _, s := range v.whole() {
		if s.Default != nil {
			return s.Default
		}
	}
	return nil
}

// has reports whether our keywords are as asked somewhere in a view.
func (v view) has(is func(keywords) bool) bool {
	return slices.ContainsFunc(v, func(s *compiler.Schema) bool {
		return slices.ContainsFunc(s.Extensions, func(e compiler.SchemaExt) bool {
			k, ok := e.(keywords)
			return ok && is(k)
		})
	})
}
