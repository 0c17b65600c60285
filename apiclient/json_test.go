package apiclient_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

func TestSameJSON(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":[true,null,"x"]}`, ` { "b" : [ true , null , "x" ] , "a" : 1 } `, true},
		{`{"a":"é"}`, `{"a":"\u00e9"}`, true},
		{`{"a":1,"a":2}`, `{"a":2}`, true}, // the last one counts, as for encoding/json
		{`1`, `1.0`, true},
		{`100`, `1e2`, true},
		{`0.1`, `0.10`, true},
		{`-0.5`, `-5E-1`, true},
		{`1`, `-1`, false},
		{`9007199254740992`, `9007199254740993`, false},
		{`9007199254740992`, `9007199254740993.0`, false},
		{`0.1`, `0.1000000000000000055`, false},
		{`1e-400`, `1e-401`, false},
		{`1e400`, `1e401`, false},
		{`1e400`, `1e400`, true},
		{`{"a":null}`, `{}`, false},
		{`{"a":null}`, `{"b":null}`, false},
		{`[1,2]`, `[2,1]`, false},
		{`[]`, `{}`, false},
		{`{}`, `null`, false},
		{`""`, `null`, false},
		{`"1"`, `1`, false},
		{`false`, `0`, false},
		{`{"a":{"b":{"c":1}}}`, `{"a":{"b":{"c":2}}}`, false},
		{`{`, `{}`, false},
		{`{`, `{ `, false},
	} {
		require.Equal(t, c.want, apiclient.SameJSON([]byte(c.a), []byte(c.b)), "%s and %s", c.a, c.b)
		require.Equal(t, c.want, apiclient.SameJSON([]byte(c.b), []byte(c.a)), "%s and %s", c.b, c.a)
	}
}
