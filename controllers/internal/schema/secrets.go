package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	compiler "github.com/santhosh-tekuri/jsonschema/v6"
)

// Redacted stands in place of a secret for who may not read it, and means "as it was" in what they write.
const Redacted = "REDACTED"

// HasSecrets reports whether fields of the kind may be secrets.
func (s *Schema) HasSecrets() bool { return s.sensitive }

// EachSecret puts, in place of each secret of a document, what replace returns of it. Paths are JSON pointers (RFC 6901). The
// document is written anew, so that nothing is left of what a decoder skips, such as the first of two members of one name.
func (s *Schema) EachSecret(doc json.RawMessage, replace func(path string, v any) (any, error)) (json.RawMessage, error) {
	v, err := decode(doc)
	if err != nil {
		return nil, err
	}
	if v, err = eachSecret(view{s.root}, "", v, replace); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

func eachSecret(at view, path string, v any, replace func(path string, v any) (any, error)) (_ any, err error) {
	if len(at) == 0 {
		return v, nil // nothing is said of it, nor of what is in it
	}
	at = at.possible()
	if at.isSecret() {
		return replace(path, v)
	}
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			if v[name], err = eachSecret(at.possibleField(name), path+"/"+escaper.Replace(name), v[name], replace); err != nil {
				return nil, err
			}
		}
	case []any:
		for i := range v {
			if v[i], err = eachSecret(at.possibleItem(i), fmt.Sprintf("%s/%d", path, i), v[i], replace); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// escaper writes a name as a step of a JSON pointer.
var escaper = strings.NewReplacer("~", "~0", "/", "~1")

// Redact puts Redacted in place of each secret of a document.
func (s *Schema) Redact(doc json.RawMessage) (json.RawMessage, error) {
	return s.EachSecret(doc, redact)
}

func redact(string, any) (any, error) { return Redacted, nil }

// IsSecret reports whether the value at a path is a secret, or part of one.
func (s *Schema) IsSecret(path []string) bool {
	_, _, is := s.walk(path)
	return is
}

// secretIn returns how much of a path leads to the first secret on it, all of it if there is none.
func (s *Schema) secretIn(path []string) (steps int, is bool) {
	if !s.sensitive {
		return len(path), false
	}
	_, steps, is = s.walk(path)
	return steps, is
}

// HoldsSecret reports whether the value at a path is a secret, part of one, or may have one in it.
func (s *Schema) HoldsSecret(path []string) bool {
	at, _, is := s.walk(path)
	below := slices.Clone(at)
	for i := 0; i < len(below) && !is; i++ { // it grows
		for _, one := range (view{below[i]}).children() {
			below = below.with(one)
		}
		is = below.isSecret()
	}
	return is
}

// children is all that is said of what may be in a value.
func (v view) children() (all view) {
	for _, s := range v.possible() {
		all = all.with(s.UnevaluatedProperties).with(s.Items2020).with(s.UnevaluatedItems).with(s.Contains)
		all = all.withAny(s.AdditionalProperties).withAny(s.AdditionalItems).withAny(s.Items)
		for _, one := range s.Properties {
			all = all.with(one)
		}
		for _, one := range s.PatternProperties {
			all = all.with(one)
		}
		list, _ := s.Items.([]*compiler.Schema)
		for _, one := range slices.Concat(s.PrefixItems, list) {
			all = all.with(one)
		}
	}
	return all.possible()
}

// walk returns what is said of the value at a path, or of the first secret on the way to it, and how many steps that is.
func (s *Schema) walk(path []string) (at view, steps int, secret bool) {
	at = view{s.root}.possible()
	for i, step := range path {
		if at.isSecret() {
			return at, i, true
		}
		next := at.possibleField(step)
		if i, err := strconv.Atoi(step); err == nil && i >= 0 { // a field may be called -1
			for _, item := range at.possibleItem(i) {
				next = next.with(item)
			}
		}
		at = next.possible()
	}
	return at, len(path), at.isSecret()
}

func (v view) isSecret() bool { return v.has(func(k keywords) bool { return k.sensitive }) }

// possible adds whatever may also be said of a value, in whichever case: a field that may be a secret is one.
func (v view) possible() view {
	all := slices.Clone(v)
	for i := 0; i < len(all); i++ { // it grows
		s := all[i]
		for _, list := range [][]*compiler.Schema{s.AllOf, s.AnyOf, s.OneOf, {s.Ref, s.Not, s.If, s.Then, s.Else, s.RecursiveRef}} {
			for _, one := range list {
				all = all.with(one)
			}
		}
		for _, one := range s.DependentSchemas {
			all = all.with(one)
		}
		for _, one := range s.Dependencies {
			all = all.withAny(one)
		}
	}
	return all
}

func (v view) withAny(s any) view {
	one, _ := s.(*compiler.Schema)
	return v.with(one)
}

func (v view) possibleField(name string) (field view) {
	for _, s := range v {
		field = field.with(s.Properties[name])
		named := s.Properties[name] != nil
		for pattern, one := range s.PatternProperties {
			if pattern.MatchString(name) {
				field, named = field.with(one), true
			}
		}
		if !named {
			field = field.withAny(s.AdditionalProperties).with(s.UnevaluatedProperties)
		}
	}
	return field
}

func (v view) possibleItem(i int) (item view) {
	for _, s := range v {
		item = item.with(s.Contains).withAny(s.Items)
		if list, ok := s.Items.([]*compiler.Schema); ok && i < len(list) {
			item = item.with(list[i])
		}
		if i < len(s.PrefixItems) {
			item = item.with(s.PrefixItems[i])
			continue
		}
		item = item.with(s.Items2020).with(s.UnevaluatedItems).withAny(s.AdditionalItems)
	}
	return item
}

// mentions reports whether a member of that name and value stands anywhere in a document.
func mentions(doc any, is func(name string, v any) bool) bool {
	switch doc := doc.(type) {
	case map[string]any:
		for name, v := range doc {
			if is(name, v) || mentions(v, is) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(doc, func(v any) bool { return mentions(v, is) })
	}
	return false
}

func marksSecret(name string, v any) bool { return name == Sensitive && v == true }

// checkSecrets refuses schemas of which it could not be told what is a secret.
func (s *Schema) checkSecrets(root map[string]any) error {
	s.sensitive = mentions(root, marksSecret) // anywhere: a reference may lead to where no keyword does
	inNames := func(name string, v any) bool { return name == "propertyNames" && mentions(v, marksSecret) }
	// Whether an item is refused for being there already would tell whether it is the secret.
	compared := func(_ string, v any) bool {
		m, _ := v.(map[string]any)
		return m["uniqueItems"] == true && mentions(m, marksSecret)
	}
	dynamic := func(name string, _ any) bool { return name == "$dynamicRef" || name == "$recursiveRef" }
	switch {
	case !s.sensitive:
		return nil
	case mentions(root, inNames):
		return fmt.Errorf("propertyNames: %s is for values; the names of fields are not kept secret", Sensitive)
	case mentions(root, compared):
		return fmt.Errorf("uniqueItems: %s does not go with it: what is refused would tell the secret", Sensitive)
	case mentions(root, dynamic):
		return fmt.Errorf("%s does not go with $dynamicRef: want $ref", Sensitive)
	case view{s.root}.possible().isSecret():
		return errors.New(Sensitive + ": put it on fields, not on the whole spec")
	}
	return nil
}
