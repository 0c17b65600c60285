// Package schema checks documents against JSON Schemas (draft 2020-12), fills in their defaults, and knows which of their
// fields may not change.
//
// Two keywords are ours:
//
//	x-immutable: true   the field keeps the value that it was first given
//	x-sensitive: true   the field is a secret: encrypted in the store, and shown to few
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/invopop/jsonschema"
	compiler "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Keywords of ours.
const (
	Immutable = "x-immutable"
	Sensitive = "x-sensitive"
)

// Schema is a compiled JSON Schema. It is safe for concurrent use.
type Schema struct {
	root *compiler.Schema
	// whether it has anything of the kind at all
	defaults, immutable, sensitive bool
}

// Of is the schema of a Go type, as encoding/json writes it: fields that may be left out have omitempty, others are
// required. The tag jsonschema:"minimum=1,default=3,enum=…,pattern=…,description=…" says more of a field
// (github.com/invopop/jsonschema), jsonschema_extras:"x-immutable=true" sets keywords of ours.
func Of[T any]() json.RawMessage {
	r := jsonschema.Reflector{Anonymous: true, ExpandedStruct: true}
	data, err := json.Marshal(r.Reflect(new(T)))
	if err != nil {
		panic(fmt.Sprintf("schema of %T: %v", *new(T), err)) // a default in a tag that is no JSON
	}
	return data
}

// Compile reads a schema. It has to describe an object. References lead nowhere but into itself.
//
// Fields that it does not name are refused, also of objects further down, unless additionalProperties,
// patternProperties or unevaluatedProperties say otherwise, or nothing is said of an object's fields at all.
func Compile(text json.RawMessage) (*Schema, error) {
	var doc any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("want a JSON Schema: %w", err)
	}
	root, ok := doc.(map[string]any)
	if !ok {
		return nil, errors.New("want a JSON Schema that is an object")
	}
	if root["type"] != "object" {
		return nil, errors.New(`want "type": "object": a spec is one`)
	}
	if draft, given := root["$schema"]; given && draft != draft2020 {
		return nil, fmt.Errorf("want %s as $schema, or none", draft2020)
	}
	s := new(Schema)
	if err := s.prepare(root); err != nil {
		return nil, err
	}
	c := compiler.NewCompiler()
	c.AssertFormat()
	c.AssertVocabs()
	c.UseLoader(noLoader{})
	c.RegisterVocabulary(&compiler.Vocabulary{URL: "evenkeel:keywords", Compile: compileKeywords})
	if err := c.AddResource("evenkeel:spec", root); err != nil {
		return nil, readable(err)
	}
	compiled, err := c.Compile("evenkeel:spec")
	if err != nil {
		return nil, readable(err)
	}
	s.root = compiled
	if err := s.checkSecrets(root); err != nil {
		return nil, err
	}
	return s, nil
}

const draft2020 = "https://json-schema.org/draft/2020-12/schema"

// noLoader refuses references to elsewhere: who may post a schema must not make the server read files or call others.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s: references lead nowhere but into the schema itself", url)
}

// readable takes apart the errors of the compiler that hold a list.
func readable(err error) error {
	var invalid *compiler.SchemaValidationError
	var detail *compiler.ValidationError
	if !errors.As(err, &invalid) || !errors.As(invalid.Err, &detail) {
		return err
	}
	p := &apiclient.Problem{Title: "not a JSON Schema", Errors: report("schema", detail, noSecrets)}
	return errors.New(p.Error())
}

// keywords are ours, at one place of a schema.
type keywords struct{ immutable, sensitive bool }

// Validate is part of the compiler's interface; what the keywords mean is not a matter of one value.
func (keywords) Validate(*compiler.ValidatorContext, any) {}

func compileKeywords(_ *compiler.CompilerContext, at map[string]any) (compiler.SchemaExt, error) {
	k := keywords{immutable: at[Immutable] == true, sensitive: at[Sensitive] == true}
	if k == (keywords{}) {
		return nil, nil //nolint:nilnil // the compiler's word for "none of mine"
	}
	return k, nil
}

// Check returns everything that is wrong with a document, each thing with its place: at, such as body.spec, and below it.
// It says nothing of values, which may be secrets.
func (s *Schema) Check(at string, doc json.RawMessage) []apiclient.FieldError {
	v, err := decode(doc)
	if err != nil {
		return []apiclient.FieldError{{Location: at, Message: err.Error()}}
	}
	var wrong *compiler.ValidationError
	if err := s.root.Validate(v); errors.As(err, &wrong) {
		return report(at, wrong, s.secretIn)
	}
	return nil
}

// Default fills in the defaults of fields that a document does not have. One that has them all comes back as it is.
func (s *Schema) Default(doc json.RawMessage) (json.RawMessage, error) {
	if !s.defaults {
		return doc, nil
	}
	v, err := decode(doc)
	if err != nil {
		return doc, err
	}
	f := filling{left: maxDefaults}
	f.fill(view{s.root}, v)
	switch {
	case f.left < 0:
		return doc, fmt.Errorf("more than %d defaults to fill in: does a default have itself as a default?", maxDefaults)
	case f.left == maxDefaults:
		return doc, nil
	}
	return json.Marshal(v)
}

// maxDefaults bounds what one document is given.
const maxDefaults = 10_000

// filling is one call of Default.
type filling struct{ left int }

func (f *filling) fill(at view, v any) {
	at = at.whole()
	switch v := v.(type) {
	case map[string]any:
		for name := range at.names() {
			if _, given := v[name]; given {
				continue
			}
			if preset := at.field(name).preset(); preset != nil && f.left >= 0 {
				f.left--
				v[name] = clone(*preset)
			}
		}
		for name, value := range v {
			if f.left >= 0 {
				f.fill(at.field(name), value)
			}
		}
	case []any:
		items := at.items()
		for _, item := range v {
			f.fill(items, item)
		}
	}
}

func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := maps.Clone(v)
		for name := range c {
			c[name] = clone(c[name])
		}
		return c
	case []any:
		c := slices.Clone(v)
		for i := range c {
			c[i] = clone(c[i])
		}
		return c
	}
	return v
}

func decode(doc json.RawMessage) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("not one JSON value")
	}
	return v, nil
}
