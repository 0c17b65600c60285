package schema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// secretsOf are the paths of the secrets of a document.
func secretsOf(t *testing.T, s *Schema, doc string) []string {
	t.Helper()
	var paths []string
	_, err := s.EachSecret(json.RawMessage(doc), func(path string, v any) (any, error) {
		paths = append(paths, path)
		return v, nil
	})
	require.NoError(t, err)
	slices.Sort(paths)
	return paths
}

// TestSecretsAreFoundWhereverASchemaSaysSo: also in one of several cases, and where it is not certain that it applies.
func TestSecretsAreFoundWhereverASchemaSaysSo(t *testing.T) {
	secret := `{"x-sensitive":true}`
	for text, c := range map[string]struct{ doc, want string }{
		`"properties":{"a":` + secret + `,"b":{}}`:                                                     {`{"a":1,"b":2}`, "/a"},
		`"properties":{"a":{"$ref":"#/$defs/s"}},"$defs":{"s":` + secret + `}`:                         {`{"a":null}`, "/a"},
		`"properties":{"a":{"$ref":"#/of/no/keyword"}},"of":{"no":{"keyword":` + secret + `}}`:         {`{"a":1}`, "/a"},
		`"properties":{"a":{"anyOf":[{"type":"string"},` + secret + `]}}`:                              {`{"a":"x"}`, "/a"},
		`"oneOf":[{"properties":{"k":{"const":1},"a":` + secret + `}},{"properties":{"k":{},"a":{}}}]`: {`{"k":2,"a":"x"}`, "/a"},
		`"properties":{"k":{},"a":{}},"if":{"properties":{"k":{"const":1}}},"then":{"properties":{"a":` + secret + `}}`: {
			`{"k":2,"a":"x"}`, "/a",
		},
		`"properties":{"k":{},"a":{}},"dependentSchemas":{"k":{"properties":{"a":` + secret + `}}}`: {`{"k":2,"a":"x"}`, "/a"},
		`"patternProperties":{"^s-":` + secret + `}`:                                                {`{"s-1":1,"t":2}`, "/s-1"},
		`"additionalProperties":` + secret + `,"properties":{"open":{}}`:                            {`{"open":1,"x/y~z":2}`, "/x~1y~0z"},
		`"unevaluatedProperties":` + secret + `,"properties":{"open":{}}`:                           {`{"open":1,"x":2}`, "/x"},
		`"properties":{"l":{"type":"array","items":{"properties":{"p":` + secret + `,"u":{}}}}}`:    {`{"l":[{"p":1},{"u":1},{"p":2}]}`, "/l/0/p /l/2/p"},
		`"properties":{"l":{"type":"array","prefixItems":[{},` + secret + `],"items":{}}}`:          {`{"l":[1,2,3]}`, "/l/1"},
		`"properties":{"l":{"type":"array","prefixItems":[{}],"unevaluatedItems":` + secret + `}}`:  {`{"l":[1,2,3]}`, "/l/1 /l/2"},
		`"properties":{"l":{"type":"array","contains":` + secret + `}}`:                             {`{"l":[1]}`, "/l/0"},
		`"properties":{"next":{"$ref":"#"},"p":` + secret + `}`:                                     {`{"next":{"next":{"p":1}},"p":2}`, "/next/next/p /p"},
		`"properties":{"o":{"type":"object","x-sensitive":true,"properties":{"p":` + secret + `}}}`: {`{"o":{"p":1,"p":2}}`, "/o"},
		`"properties":{"a":{"not":` + secret + `}}`:                                                 {`{"a":1}`, "/a"},
	} {
		s := compile(t, `{"type":"object",`+text+`}`)
		require.True(t, s.HasSecrets(), text)
		paths := secretsOf(t, s, c.doc)
		require.Equal(t, c.want, strings.Join(paths, " "), text)
		for _, path := range paths {
			steps := strings.Split(strings.NewReplacer("~1", "\x00").Replace(path[1:]), "/")
			for i := range steps {
				steps[i] = strings.NewReplacer("\x00", "/", "~0", "~").Replace(steps[i])
			}
			require.True(t, s.IsSecret(steps), path)
			require.True(t, s.IsSecret(append(steps, "below")), path)
		}
	}
	s := compile(t, `{"type":"object","properties":{"a":{},"p":{"x-sensitive":false}}}`)
	require.False(t, s.HasSecrets())
	require.False(t, s.IsSecret([]string{"p"}))
}

func TestRedactedDocumentsHaveNothingOfTheSecrets(t *testing.T) {
	s := compile(t, `{"type":"object","properties":{"p":{"x-sensitive":true},"n":{},"o":{"type":"object","properties":{"p":{"x-sensitive":true},"q":{}}}}}`)
	for doc, want := range map[string]string{
		`{"p":"hunter2","n":9007199254740993}`:       `{"p":"REDACTED","n":9007199254740993}`,
		`{"p":{"a":["hunter2"]},"n":1.10}`:           `{"p":"REDACTED","n":1.10}`,
		`{"p":null,"n":null}`:                        `{"p":"REDACTED","n":null}`,
		`{"p":"hunter2","p":1}`:                      `{"p":"REDACTED"}`,
		`{"o":{"p":"hunter2"},"o":{"q":1}}`:          `{"o":{"q":1}}`,
		`{"o":{"p":"hunter2"},"o":[]}`:               `{"o":[]}`,
		`{"\u0070":"hunter2"}`:                       `{"p":"REDACTED"}`,
		`{"P":"open","o":{"q":"<&>","p":"hunter2"}}`: `{"P":"open","o":{"q":"<&>","p":"REDACTED"}}`,
	} {
		got, err := s.Redact(json.RawMessage(doc))
		require.NoError(t, err)
		require.JSONEq(t, want, string(got))
		require.NotContains(t, string(got), "hunter2")
	}
}

func TestSchemasThatHideWhatIsSecretAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"type":"object","x-sensitive":true}`:                                                                                    "not on the whole spec",
		`{"type":"object","$ref":"#/$defs/a","$defs":{"a":{"x-sensitive":true}}}`:                                                 "not on the whole spec",
		`{"type":"object","properties":{"l":{"type":"array","uniqueItems":true,"items":{"x-sensitive":true}}}}`:                   "uniqueItems",
		`{"type":"object","propertyNames":{"x-sensitive":true}}`:                                                                  "propertyNames",
		`{"type":"object","properties":{"a":{"$dynamicRef":"#x"},"b":{"x-sensitive":true}},"$defs":{"a":{"$dynamicAnchor":"x"}}}`: "$dynamicRef",
		`{"type":"object","properties":{"a":{"x-sensitive":"yes"}}}`:                                                              "schema.properties.a.x-sensitive: want true or false",
	} {
		_, err := Compile(json.RawMessage(text))
		require.ErrorContains(t, err, want, text)
	}
}

// TestHoldersOfSecretsAreFound: a value that may have a secret somewhere in it is none to select by.
func TestHoldersOfSecretsAreFound(t *testing.T) {
	s := compile(t, `{"type":"object","properties":{"open":{"type":"object","properties":{"q":{}}},"p":{"x-sensitive":true},
		"o":{"anyOf":[{"type":"string"},{"properties":{"deep":{"properties":{"p":{"x-sensitive":true},"q":{}}}}}]},
		"l":{"type":"array","items":{"properties":{"p":{"x-sensitive":true},"host":{}}}},"m":{"patternProperties":{"^s-":{"x-sensitive":true}}},
		"t":{"prefixItems":[{},{"x-sensitive":true}]},"u":{"unevaluatedProperties":{"x-sensitive":true}},"next":{"$ref":"#"}}}`)
	for path, want := range map[string]bool{
		"": true, "open": false, "open.q": false, "p": true, "p.below": true, "o": true, "o.deep": true, "o.deep.p": true, "o.deep.q": false,
		"l": true, "l.0": true, "l.7.p": true, "l.7.host": false, "m": true, "m.s-1": true, "m.other": false, "t": true, "t.0": false, "t.1": true,
		"u": true, "u.x": true, "next.next": true, "next.open": false, "unknown": false,
	} {
		steps := strings.Split(path, ".")
		if path == "" {
			steps = nil
		}
		require.Equal(t, want, s.HoldsSecret(steps), path)
	}
}

// TestErrorsSayNothingOfSecrets: neither values nor, within a secret, the names of fields.
func TestErrorsSayNothingOfSecrets(t *testing.T) {
	s := compile(t, `{"type":"object","properties":{"n":{"type":"integer","x-sensitive":true},"e":{"enum":["a","b"],"x-sensitive":true},"open":{"type":"integer"},
		"o":{"type":"object","x-sensitive":true,"additionalProperties":false,"required":["must"],"properties":{"must":{"type":"integer"},"k":{"type":"object","properties":{"q":{}}}}},
		"m":{"type":"object","x-sensitive":true,"additionalProperties":{"type":"integer","x-immutable":true}},
		"f":{"type":"object","x-sensitive":true,"patternProperties":{"^a":{"maxLength":2}},"propertyNames":{"maxLength":5}}}}`)
	for doc, want := range map[string]string{
		`{"n":"hunter2"}`:                         "body.n: want integer, not string",
		`{"e":"hunter2"}`:                         "body.e: want one of a, b",
		`{"o":{"hunter2":1,"must":1}}`:            "body.o: " + inSecret,
		`{"o":{"k":{},"must":"hunter2"}}`:         "body.o: " + inSecret,
		`{"o":{"must":1,"k":{"hunter2":1}}}`:      "body.o: " + inSecret,
		`{"o":{}}`:                                "body.o: " + inSecret,
		`{"m":{"hunter2":"hunter2"}}`:             "body.m: " + inSecret,
		`{"f":{"hunter2":1}}`:                     "want 5 characters or fewer",
		`{"f":{"ahunter2":"hunter2"},"open":"x"}`: "body.f: " + inSecret,
	} {
		wrong := s.Check("body", json.RawMessage(doc))
		require.Contains(t, said(wrong), want, doc)
		for _, w := range wrong {
			require.NotContains(t, w.Location+w.Message, "hunter2", doc)
		}
	}
	wrong, err := s.Changed("body", json.RawMessage(`{"m":{"hunter2":1}}`), json.RawMessage(`{"m":{}}`))
	require.NoError(t, err)
	require.Equal(t, "body.m: cannot be changed", said(wrong))
}

// TestRedactedMeansUnchanged where it is certain what there was, and nowhere else.
func TestRedactedMeansUnchanged(t *testing.T) {
	s := compile(t, `{"type":"object","properties":{"p":{"x-sensitive":true},"open":{},"o":{"type":"object","properties":{"p":{"x-sensitive":true},"q":{}}},
		"l":{"type":"array","items":{"type":"object","properties":{"host":{},"p":{"x-sensitive":true}}}},"s":{"type":"array","items":{"x-sensitive":true}}}}`)
	const missing = "is REDACTED, which means unchanged, and there is no earlier value: want the value"
	for _, c := range []struct{ before, wanted, want, wrong string }{
		{`{"p":"a"}`, `{"p":"REDACTED","open":1}`, `{"p":"a","open":1}`, ""},
		{`{"p":{"deep":[1]}}`, `{"p":"REDACTED"}`, `{"p":{"deep":[1]}}`, ""},
		{`{"p":null}`, `{"p":"REDACTED"}`, `{"p":null}`, ""},
		{`{"p":"a"}`, `{"p":"b"}`, `{"p":"b"}`, ""},
		{`{"p":"a"}`, `{"open":"REDACTED"}`, `{"open":"REDACTED"}`, ""},
		{``, `{"p":"REDACTED"}`, ``, "spec.p: " + missing},
		{`{}`, `{"p":"REDACTED"}`, ``, "spec.p: " + missing},
		{`{"p":"a"}`, `{"o":{"p":"REDACTED"}}`, ``, "spec.o.p: " + missing},
		{`{"o":[1]}`, `{"o":{"p":"REDACTED"}}`, ``, "spec.o.p: " + missing},
		{`{"l":[{"host":"x","p":1},{"host":"y","p":2}]}`, `{"l":[{"host":"y","p":"REDACTED"},{"host":"x","p":"REDACTED"}]}`, `{"l":[{"host":"y","p":2},{"host":"x","p":1}]}`, ""},
		{`{"l":[{"host":"x","p":1},{"host":"y","p":2}]}`, `{"l":[{"host":"y","p":"REDACTED"}]}`, `{"l":[{"host":"y","p":2}]}`, ""},
		{`{"l":[{"host":"x","p":1}]}`, `{"l":[{"host":"evil","p":"REDACTED"}]}`, ``, "spec.l.0.p: " + missing},
		{`{"l":[{"host":"x","p":1},{"host":"x","p":2}]}`, `{"l":[{"host":"x","p":"REDACTED"}]}`, ``, "spec.l.0.p: " + missing},
		{`{"l":[{"host":"x","p":1},{"host":"x","p":2}]}`, `{"l":[{"host":"x","p":"REDACTED"},{"host":"x","p":3}]}`, `{"l":[{"host":"x","p":1},{"host":"x","p":3}]}`, ""},
		{`{"s":["a","b"]}`, `{"s":["REDACTED","c"]}`, `{"s":["a","c"]}`, ""},
		{`{"s":["a","b"]}`, `{"s":["REDACTED"]}`, ``, "spec.s.0: " + missing},
	} {
		got, wrong, err := s.Restore("spec", json.RawMessage(c.before), json.RawMessage(c.wanted))
		require.NoError(t, err)
		require.Equal(t, c.wrong, said(wrong), "%s to %s", c.before, c.wanted)
		if c.wrong == "" {
			require.JSONEq(t, c.want, string(got), "%s to %s", c.before, c.wanted)
		}
	}
}

// TestManyItemsAreRestoredInTime: what is compared does not grow with the square of an array, nor with its depth.
func TestManyItemsAreRestoredInTime(t *testing.T) {
	s := compile(t, `{"type":"object","properties":{"l":{"$ref":"#/$defs/l"}},"$defs":{"l":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/l"},{"properties":{"p":{"x-sensitive":true}}}]}}}}`)
	flat := `{"l":[` + strings.Repeat(`{"p":"REDACTED"},`, 20_000) + `{"p":1}]}`
	_, wrong, err := s.Restore("spec", json.RawMessage(flat), json.RawMessage(flat))
	require.NoError(t, err)
	require.Empty(t, wrong)
	deep := `{"l":` + strings.Repeat("[", 2000) + `{"p":"REDACTED"}` + strings.Repeat("]", 2000) + `}`
	_, wrong, err = s.Restore("spec", json.RawMessage(deep), json.RawMessage(deep))
	require.NoError(t, err)
	require.Len(t, wrong, 1)
	require.Contains(t, wrong[0].Location, fmt.Sprint("spec.l", strings.Repeat(".0", 2000), ".p"))
}
