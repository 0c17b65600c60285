package reconciler

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// checkTypes refuses types of a spec and a status that can never be JSON objects.
func checkTypes[S, T any]() error {
	return errors.Join(checkType[S]("spec"), checkType[T]("status"))
}

func checkType[V any](what string) error {
	t := reflect.TypeFor[V]()
	if !isObject(t) {
		return fmt.Errorf("%s type %s is no JSON object: want a struct, a map, a pointer to one of these, json.RawMessage, any, "+
			"or a type with MarshalJSON and UnmarshalJSON", what, t)
	}
	var unsupported *json.UnsupportedTypeError
	if _, err := marshal(new(V)); errors.As(err, &unsupported) {
		return fmt.Errorf("%s type %s has a field that JSON cannot hold: %w", what, t, err)
	}
	return nil
}

// isObject reports whether values of a type may be JSON objects.
func isObject(t reflect.Type) bool {
	own := reflect.PointerTo(t)
	switch {
	case own.Implements(reflect.TypeFor[json.Marshaler]()), own.Implements(reflect.TypeFor[json.Unmarshaler]()):
		return true // what it makes of itself is its own affair
	case own.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return false // a JSON string
	}
	switch t.Kind() {
	case reflect.Struct:
		return true
	case reflect.Pointer:
		return isObject(t.Elem())
	case reflect.Map:
		_, err := json.Marshal(reflect.MakeMap(t).Interface())
		return err == nil
	case reflect.Interface:
		return t.NumMethod() == 0
	}
	return false
}
