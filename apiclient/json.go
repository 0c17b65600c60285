package apiclient

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
)

// SameJSON reports whether two JSON values mean the same, which is how servers tell a change of spec: the order of an object's members, white space, escapes and the way a
// number is written do not count. Where it is not sure it says no: that costs a reconcile, the opposite a lost change.
func SameJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return unmarshalNumbers(a, &x) == nil && unmarshalNumbers(b, &y) == nil && sameValue(x, y)
}

func unmarshalNumbers(data []byte, into *any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // a float64 would make large integers equal that are not
	return d.Decode(into)
}

func sameValue(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, sameValue)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameValue)
	case json.Number:
		b, ok := b.(json.Number)
		return ok && sameNumber(string(a), string(b))
	}
	return a == b
}

// sameNumber compares two literals. A float64 tells any two numbers of up to 15 digits apart (IEEE 754, DBL_DIG), unless
// they are near the smallest ones.
func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	return errX == nil && errY == nil && len(a) <= 15 && len(b) <= 15 && x == y && math.Abs(x) > 1e-300
}
