package workload

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// values are what variables are for one instance.
type values map[string]value

type value struct {
	text string
	// typed is what a string becomes that is the variable and nothing else.
	typed any
}

// errVariables is of variables that an instance does not give as its definition wants them.
var errVariables = errors.New("the variables are wrong")

// valuesFor puts together what a definition declares and an instance gives.
func valuesFor(declared []Variable, given map[string]string) (values, error) {
	vs := values{}
	for _, v := range declared {
		text, ok := given[v.Name]
		switch {
		case ok:
		case v.Default != nil:
			text = *v.Default
		default:
			return nil, fmt.Errorf("%w: spec.variables.%s: it has no default, so the instance has to give a value", errVariables, v.Name)
		}
		typed, err := v.typed(text)
		if err != nil {
			return nil, fmt.Errorf("%w: spec.variables.%s: %w", errVariables, v.Name, err)
		}
		vs[v.Name] = value{text, typed}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, ok := vs[name]; !ok {
			return nil, fmt.Errorf("%w: spec.variables.%s: the definition has no such variable", errVariables, name)
		}
	}
	return vs, nil
}

func (v Variable) typed(text string) (any, error) {
	switch v.Type {
	case "integer":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, errors.New("want a whole number")
		}
		return n, nil
	case "boolean":
		if text != "true" && text != "false" {
			return nil, errors.New("want true or false")
		}
		return text == "true", nil
	}
	return text, nil
}

// hidden stands for what is secret.
const hidden = "REDACTED"

// hiding are the same values without what an instance keeps secret; nil if that is nothing.
func (vs values) hiding(in *Instance) values {
	var shown values
	for name := range in.Spec.SecretVariables {
		if _, public := in.Spec.Variables[name]; public {
			continue
		}
		if shown == nil {
			shown = maps.Clone(vs)
		}
		shown[name] = value{hidden, hidden}
	}
	return shown
}

// sumOf stands for a document that something secret was filled into. It is empty if nothing was.
func (vs values) sumOf(d document, filled *unstructured.Unstructured, generation int64) string {
	u := d.DeepCopy()
	vs.fill(u.Object)
	if reflect.DeepEqual(u.Object, filled.Object) {
		return ""
	}
	return hashOf(map[string]any{"document": u.Object, "generation": generation})
}

var reference = regexp.MustCompile(`\$?\$\{[A-Za-z_][A-Za-z0-9_]*\}`)

// fill replaces variables in the strings of a value, in place where it can. Keys are left alone.
func (vs values) fill(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = vs.fill(v[k])
		}
	case []any:
		for i := range v {
			v[i] = vs.fill(v[i])
		}
	case string:
		return vs.fillText(v)
	}
	return v
}

func (vs values) fillText(text string) any {
	if !strings.Contains(text, "${") { // most
		return text
	}
	if name, ok := strings.CutPrefix(text, "${"); ok && strings.HasSuffix(name, "}") {
		if v, ok := vs[strings.TrimSuffix(name, "}")]; ok {
			return v.typed
		}
	}
	return reference.ReplaceAllStringFunc(text, func(r string) string {
		escaped := strings.HasPrefix(r, "$$")
		v, ok := vs[strings.Trim(r, "${}")]
		switch {
		case !ok: // somebody else's, such as a shell's
			return r
		case escaped:
			return r[1:]
		}
		return v.text
	})
}
