package schema

import (
	"fmt"
	"math/big"
	"strings"

	compiler "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// maxErrors bounds how many things an answer says of one document.
const maxErrors = 50

// leaves are the errors that have no further causes, added to found. Of alternatives that all failed, only that is said: each
// of them has reasons of its own.
func leaves(found []*compiler.ValidationError, e *compiler.ValidationError) []*compiler.ValidationError {
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf, *kind.Not, *kind.Contains:
	default:
		if len(e.Causes) > 0 {
			for _, cause := range e.Causes {
				if len(found) < maxErrors {
					found = leaves(found, cause)
				}
			}
			return found
		}
	}
	return append(found, e)
}

// report says what is wrong with a document, below the place at. Of what is in a secret it says nothing, not even the names of
// fields: only that something is. secret returns how much of a path leads to a secret, and whether it does.
func report(at string, e *compiler.ValidationError, secret func(path []string) (steps int, is bool)) (found []apiclient.FieldError) {
	for _, leaf := range leaves(nil, e) {
		steps, is := secret(leaf.InstanceLocation)
		place := strings.Join(append([]string{at}, leaf.InstanceLocation[:steps]...), ".")
		switch k := leaf.ErrorKind.(type) {
		case *kind.Required:
			if is {
				found = append(found, apiclient.FieldError{Location: place, Message: inSecret})
				continue
			}
			for _, name := range k.Missing {
				found = append(found, apiclient.FieldError{Location: place + "." + name, Message: "is required"})
			}
		case *kind.AdditionalProperties:
			if is {
				found = append(found, apiclient.FieldError{Location: place, Message: inSecret})
				continue
			}
			for _, name := range k.Properties {
				found = append(found, apiclient.FieldError{Location: place + "." + name, Message: unknownField})
			}
		default:
			why := message(leaf.ErrorKind)
			if steps < len(leaf.InstanceLocation) {
				why = inSecret
			}
			found = append(found, apiclient.FieldError{Location: place, Message: why})
		}
	}
	return found
}

// noSecrets is for documents that have none.
func noSecrets(path []string) (steps int, is bool) { return len(path), false }

const inSecret = "something in it is not as the schema wants it; as it is a secret, no more is said"

const unknownField = "is no field of this kind"

// message says what is wanted, and nothing of what there is.
func message(e compiler.ErrorKind) string {
	switch k := e.(type) {
	case *kind.Type:
		return "want " + strings.Join(k.Want, " or ") + ", not " + k.Got
	case *kind.FalseSchema:
		return unknownField
	case *kind.Enum:
		return "want one of " + list(k.Want)
	case *kind.Const:
		return "want " + list([]any{k.Want})
	case *kind.Format:
		return "want a valid " + k.Want
	case *kind.Pattern:
		return "want what matches " + k.Want
	case *kind.Minimum:
		return "want at least " + number(k.Want)
	case *kind.Maximum:
		return "want at most " + number(k.Want)
	case *kind.ExclusiveMinimum:
		return "want more than " + number(k.Want)
	case *kind.ExclusiveMaximum:
		return "want less than " + number(k.Want)
	case *kind.MultipleOf:
		return "want a multiple of " + number(k.Want)
	}
	return countMessage(e)
}

func countMessage(e compiler.ErrorKind) string {
	switch k := e.(type) {
	case *kind.MinLength:
		return fmt.Sprintf("want %d characters or more", k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("want %d characters or fewer", k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("want %d items or more", k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("want %d items or fewer", k.Want)
	case *kind.MinProperties:
		return fmt.Sprintf("want %d fields or more", k.Want)
	case *kind.MaxProperties:
		return fmt.Sprintf("want %d fields or fewer", k.Want)
	case *kind.UniqueItems:
		return "want each item once"
	case *kind.AnyOf, *kind.OneOf:
		return "matches none of the alternatives, or more of them than one"
	case *kind.Not:
		return "is what it must not be"
	}
	return "is against " + strings.Join(e.KeywordPath(), "/")
}

func list(values []any) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = fmt.Sprint(v)
	}
	return strings.Join(texts, ", ")
}

// number writes a bound as people do.
func number(r *big.Rat) string {
	if r.IsInt() {
		return r.RatString()
	}
	f, _ := r.Float64()
	return fmt.Sprint(f)
}
