package schema

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Restore puts the secrets of the document before, which may be empty, where wanted has Redacted in their place. It returns
// where there is none.
func (s *Schema) Restore(at string, before, wanted json.RawMessage) (json.RawMessage, []apiclient.FieldError, error) {
	if !s.sensitive {
		return wanted, nil, nil
	}
	v, err := decode(wanted)
	if err != nil {
		return wanted, nil, nil //nolint:nilerr // Check says so
	}
	var old any
	if len(before) > 0 {
		if old, err = decode(before); err != nil {
			return nil, nil, err
		}
	}
	r := restoring{}
	v = r.restore(view{s.root}, at, old, len(before) > 0, v)
	if len(r.missing) > 0 || !r.restored {
		return wanted, r.missing, nil
	}
	restored, err := json.Marshal(v)
	return restored, nil, err
}

// restoring is one call of Restore.
type restoring struct {
	restored bool
	arrays   int // in which the value is
	missing  []apiclient.FieldError
}

func (r *restoring) restore(at view, path string, old any, there bool, wanted any) any {
	at = at.possible()
	if at.isSecret() {
		switch {
		case wanted != any(Redacted):
			return wanted
		case !there:
			r.missing = append(r.missing, apiclient.FieldError{
				Location: path, Message: "is " + Redacted + ", which means unchanged, and there is no earlier value: want the value",
			})
			return wanted
		}
		r.restored = true
		return old
	}
	switch wanted := wanted.(type) {
	case map[string]any:
		before, _ := old.(map[string]any)
		for name, value := range wanted {
			was, has := before[name]
			wanted[name] = r.restore(at.possibleField(name), path+"."+name, was, has, value)
		}
	case []any:
		before, _ := old.([]any)
		find := r.earlier(at, before, wanted)
		r.arrays++
		for i, value := range wanted {
			var was any
			from, ok := find(i)
			if ok {
				was = before[from]
			}
			wanted[i] = r.restore(at.possibleItem(i), fmt.Sprintf("%s.%d", path, i), was, ok, value)
		}
		r.arrays--
	}
	return wanted
}

// maxArrays is how many arrays within each other are looked into: for each of them, all that is in it is compared.
const maxArrays = 8

// earlier returns what finds the item of an array that a wanted one was: one that looks the same without its secrets. Items
// have no names: of several that look the same, it is the one at the same place if the array is as long as before, and else
// unknown. So no item is given the secret of another one.
func (r *restoring) earlier(at view, before, wanted []any) func(i int) (from int, ok bool) {
	if r.arrays >= maxArrays {
		return func(int) (int, bool) { return 0, false }
	}
	looks := func(i int, item any) string {
		item, _ = eachSecret(at.possibleItem(i), "", clone(item), redact) // redact never fails
		text, _ := json.Marshal(item)                                     // what has been decoded encodes
		return string(text)
	}
	places := map[string][]int{}
	for i, item := range before {
		look := looks(i, item)
		places[look] = append(places[look], i)
	}
	sought := make([]string, len(wanted)) // before what is wanted is filled in
	for i, item := range wanted {
		sought[i] = looks(i, item)
	}
	return func(i int) (from int, ok bool) {
		found := places[sought[i]]
		switch _, here := slices.BinarySearch(found, i); {
		case here && len(before) == len(wanted):
			return i, true
		case len(found) == 1:
			return found[0], true
		}
		return 0, false
	}
}
