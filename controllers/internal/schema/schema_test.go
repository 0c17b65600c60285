package schema

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// engine is a Go type with all that tags can say.
type engine struct {
	Size     int               `json:"size" jsonschema:"minimum=1,maximum=9"`
	Region   string            `json:"region" jsonschema_extras:"x-immutable=true"`
	Mode     string            `json:"mode,omitempty" jsonschema:"enum=slow,enum=fast,default=slow"`
	Password string            `json:"password,omitempty" jsonschema:"minLength=8" jsonschema_extras:"x-sensitive=true"`
	Mail     string            `json:"mail,omitempty" jsonschema:"format=email"`
	Tags     map[string]string `json:"tags,omitempty"`
	Parts    []part            `json:"parts,omitempty" jsonschema:"maxItems=2,uniqueItems=true"`
	Cooling  *part             `json:"cooling,omitempty"`
}

type part struct {
	Name  string `json:"name" jsonschema:"pattern=^[a-z]+$"`
	Count int    `json:"count,omitempty" jsonschema:"default=1"`
}

func compile(t *testing.T, text string) *Schema {
	t.Helper()
	s, err := Compile(json.RawMessage(text))
	require.NoError(t, err)
	return s
}

// said are the errors as lines, in order.
func said(found []apiclient.FieldError) string {
	var lines []string
	for _, e := range found {
		lines = append(lines, e.Location+": "+e.Message)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestEveryOffendingFieldIsNamed(t *testing.T) {
	s := compile(t, string(Of[engine]()))
	for doc, want := range map[string]string{
		`{"size":3,"region":"eu"}`: "",
		`{"size":3,"region":"eu","tags":{"a":"b"},"parts":[{"name":"x"}],"cooling":{"name":"y","count":2}}`: "",
		`{}`:           "spec.region: is required\nspec.size: is required",
		`{"size":"3"}`: "spec.region: is required\nspec.size: want integer, not string",
		`{"size":0,"region":"eu","colour":"red","cooling":{"name":"A","colour":1}}`: "spec.colour: is no field of this kind\n" +
			"spec.cooling.colour: is no field of this kind\nspec.cooling.name: want what matches ^[a-z]+$\nspec.size: want at least 1",
		`{"size":10,"region":"eu","mode":"hunter2","password":"hunter2","mail":"hunter2"}`: "spec.mail: want a valid email\n" +
			"spec.mode: want one of slow, fast\nspec.password: want 8 characters or more\nspec.size: want at most 9",
		`{"size":3.5,"region":null}`: "spec.region: want string, not null\nspec.size: want integer, not number",
		`{"size":3,"region":"eu","parts":[{"name":"x"},{"name":"x"},{}]}`: "spec.parts.2.name: is required\n" +
			"spec.parts: want 2 items or fewer\nspec.parts: want each item once",
		`{"size":3,"region":"eu","tags":{"a":1}}`: "spec.tags.a: want string, not number",
		`[]`:          "spec: want object, not array",
		`{"size":3`:   "spec: not JSON: unexpected EOF",
		`{"size":3}{`: "spec: not one JSON value",
	} {
		require.Equal(t, want, said(s.Check("spec", json.RawMessage(doc))), doc)
	}
}

// TestFieldsThatNobodyNamedAreRefused also where a schema is put together of others, and nowhere else.
func TestFieldsThatNobodyNamedAreRefused(t *testing.T) {
	for text, docs := range map[string][2]string{
		`{"type":"object"}`: {`{"any":{"thing":1}}`, ``},
		`{"type":"object","properties":{"a":{"type":"object","properties":{"b":{}}}}}`:                                                                      {`{"a":{"b":{"x":1}}}`, `{"a":{"c":1}}`},
		`{"type":"object","properties":{"a":{}},"additionalProperties":true}`:                                                                               {`{"b":1}`, ``},
		`{"type":"object","properties":{"a":{}},"patternProperties":{"^x-":{}}}`:                                                                            {`{"x-b":1}`, ``},
		`{"type":"object","allOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}]}`:                                                                       {`{"a":1,"b":1}`, `{"a":1,"c":1}`},
		`{"type":"object","properties":{"k":{}},"oneOf":[{"properties":{"a":{}},"required":["a"]},{"properties":{"b":{}},"required":["b"]}]}`:               {`{"k":1,"b":1}`, `{"k":1,"a":1,"c":1}`},
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/d"}},"$defs":{"d":{"properties":{"b":{}}}}}`:                                                   {`{"a":{"b":1}}`, `{"a":{"c":1}}`},
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/d"}},"$defs":{"d":{"type":"object"}}}`:                                                         {`{"a":{"c":1}}`, ``},
		`{"type":"object","allOf":[{"$ref":"#/$defs/d"}],"properties":{"a":{}},"$defs":{"d":{"properties":{"b":{"type":"object","properties":{"c":{}}}}}}}`: {`{"a":1,"b":{"c":1}}`, `{"b":{"d":1}}`},
		`{"type":"object","properties":{"next":{"$ref":"#"},"v":{}}}`:                                                                                       {`{"next":{"next":{"v":1}}}`, `{"next":{"next":{"w":1}}}`},
		`{"type":"object","properties":{"l":{"type":"array","items":{"properties":{"a":{}}}}}}`:                                                             {`{"l":[{"a":1}]}`, `{"l":[{"a":1},{"b":1}]}`},
	} {
		s := compile(t, text)
		require.Empty(t, s.Check("spec", json.RawMessage(docs[0])), text)
		if docs[1] != "" {
			require.Contains(t, said(s.Check("spec", json.RawMessage(docs[1]))), "is no field of this kind", text)
		}
	}
}

func TestDefaultsAreFilledIn(t *testing.T) {
	s := compile(t, `{"type":"object","properties":{
		"mode":{"type":"string","default":"slow"},
		"limits":{"type":"object","default":{},"properties":{"cpu":{"type":"number","default":0.50}}},
		"parts":{"type":"array","items":{"$ref":"#/$defs/part"}},
		"named":{"type":"object","additionalProperties":{"$ref":"#/$defs/part"}},
		"kind":{"$ref":"#/$defs/kind"}},
		"allOf":[{"properties":{"more":{"default":[1]}}}],
		"$defs":{"part":{"type":"object","properties":{"count":{"type":"integer","default":12345678901234567890}}},"kind":{"default":"k"}}}`)
	got, err := s.Default(json.RawMessage(`{"mode":null,"parts":[{},{"count":2}],"named":{"a":{}}}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"kind":"k","limits":{"cpu":0.50},"mode":null,"more":[1],"named":{"a":{"count":12345678901234567890}},
		"parts":[{"count":12345678901234567890},{"count":2}]}`, string(got))
	require.Contains(t, string(got), "0.50", "numbers keep their digits")

	again, err := s.Default(json.RawMessage(`{}`))
	require.NoError(t, err)
	require.NotContains(t, string(again), "named", "a default that was given out is not changed by what was made of it")

	full := json.RawMessage(`{ "mode":"x", "limits":{"cpu":1}, "more":[], "kind":1 }`)
	got, err = s.Default(full)
	require.NoError(t, err)
	require.Equal(t, string(full), string(got), "a document that has everything keeps its text")
}

func TestImmutableFieldsAreFound(t *testing.T) {
	s := compile(t, `{"type":"object","properties":{"a":{"x-immutable":true},"b":{},
		"c":{"type":"object","properties":{"d":{"x-immutable":true}}},"e":{"$ref":"#/$defs/e"},"f":{"type":"array","x-immutable":true}},
		"$defs":{"e":{"type":"object","properties":{"g":{"x-immutable":true}}}}}`)
	for _, c := range []struct{ before, after, want string }{
		{`{"a":1,"b":1}`, `{"a":1.0,"b":2}`, ""},
		{`{}`, `{"a":1}`, ""},
		{`{"a":1}`, `{"a":2}`, "spec.a: cannot be changed"},
		{`{"a":{"x":1,"y":2}}`, `{"a":{"y":2,"x":1}}`, ""},
		{`{"a":1}`, `{}`, "spec.a: cannot be changed"},
		{`{"c":{"d":1}}`, `{"c":{"d":2}}`, "spec.c.d: cannot be changed"},
		{`{"c":{"d":1}}`, `{}`, "spec.c.d: cannot be changed"},
		{`{"e":{"g":1},"f":[1]}`, `{"e":{"g":2},"f":[1,2]}`, "spec.e.g: cannot be changed\nspec.f: cannot be changed"},
	} {
		found, err := s.Changed("spec", json.RawMessage(c.before), json.RawMessage(c.after))
		require.NoError(t, err)
		require.Equal(t, c.want, said(found), "%s to %s", c.before, c.after)
	}
	found, err := compile(t, string(Of[engine]())).Changed("spec", json.RawMessage(`{"region":"eu"}`), json.RawMessage(`{"region":"us"}`))
	require.NoError(t, err)
	require.Equal(t, "spec.region: cannot be changed", said(found))
}

func TestBadSchemasAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                  "want a JSON Schema",
		`true`:              "want a JSON Schema that is an object",
		`{}`:                `want "type": "object"`,
		`{"type":"string"}`: `want "type": "object"`,
		`{"type":"object","properties":{"a":{"type":"text"}}}`:                                     "schema.properties.a.type",
		`{"type":"object","properties":{"a":{"pattern":"("}}}`:                                     "pattern",
		`{"type":"object","properties":{"a":{"$ref":"#/nowhere"}}}`:                                "nowhere",
		`{"type":"object","properties":{"a":{"$ref":"file:///etc/passwd"}}}`:                       "nowhere but into the schema itself",
		`{"type":"object","properties":{"a":{"$ref":"https://example.com/s"}}}`:                    "nowhere but into the schema itself",
		`{"type":"object","$schema":"http://json-schema.org/draft-04/schema#"}`:                    "want https://json-schema.org/draft/2020-12/schema",
		`{"type":"object","properties":{"a":{"x-immutable":"yes"}}}`:                               "schema.properties.a.x-immutable: want true or false",
		`{"type":"object","properties":{"a":{"items":{"properties":{"b":{"x-immutable":true}}}}}}`: "put it on the array",
	} {
		_, err := Compile(json.RawMessage(text))
		require.ErrorContains(t, err, want, text)
	}
}

// TestSchemasThatReferToThemselvesEnd also when each level doubles what there is to look at.
func TestSchemasThatReferToThemselvesEnd(t *testing.T) {
	s := compile(t, `{"type":"object","allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{
		"a":{"properties":{"n":{"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]}}},
		"b":{"properties":{"n":{"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]},"x":{"x-immutable":true,"default":1}}}}}`)
	deep := strings.Repeat(`{"n":`, 200) + "{}" + strings.Repeat("}", 200)
	filled, err := s.Default(json.RawMessage(deep))
	require.NoError(t, err)
	require.Equal(t, 201, strings.Count(string(filled), `"x":1`))
	found, err := s.Changed("spec", filled, json.RawMessage(strings.ReplaceAll(string(filled), `"x":1`, `"x":2`)))
	require.NoError(t, err)
	require.Len(t, found, 201)

	endless := compile(t, `{"type":"object","properties":{"a":{"$ref":"#","default":{}},"b":{"$ref":"#","default":{}}}}`)
	_, err = endless.Default(json.RawMessage(`{}`))
	require.ErrorContains(t, err, "more than 10000 defaults to fill in")
}

// FuzzSchema: whatever somebody posts as a schema or as a document ends in an answer.
func FuzzSchema(f *testing.F) {
	f.Add(string(Of[engine]()), `{"size":3,"region":"eu"}`, `{}`)
	f.Add(`{"type":"object","properties":{"a":{"$ref":"#","default":{}}}}`, `{"a":{}}`, `{"a":{"a":1}}`)
	f.Add(`{"type":"object","allOf":[{"$ref":"#"}]}`, `{}`, `[]`)
	f.Fuzz(func(t *testing.T, text, before, after string) {
		s, err := Compile(json.RawMessage(text))
		if err != nil {
			return
		}
		filled, err := s.Default(json.RawMessage(after))
		if err == nil && len(s.Check("spec", filled)) == 0 && !json.Valid(filled) {
			t.Fatalf("%q was taken", filled)
		}
		_, _ = s.Changed("spec", json.RawMessage(before), filled) // an error is an answer, too
	})
}
