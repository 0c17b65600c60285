package schema

import (
	"encoding/json"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// Changed returns the immutable fields in which a document differs from the one before. One that had no value may be
// given its first, and one that has a value cannot lose it.
func (s *Schema) Changed(at string, before, after json.RawMessage) ([]apiclient.FieldError, error) {
	if !s.immutable {
		return nil, nil
	}
	old, err := decode(before)
	if err != nil {
		return nil, err
	}
	wanted, err := decode(after)
	if err != nil {
		return nil, err
	}
	return changed(nil, view{s.root}, at, old, wanted), nil
}

func changed(found []apiclient.FieldError, at view, path string, old, wanted any) []apiclient.FieldError {
	at = at.whole()
	if at.has(func(k keywords) bool { return k.immutable }) && !same(old, wanted) {
		return append(found, apiclient.FieldError{Location: path, Message: "cannot be changed"})
	}
	before, _ := old.(map[string]any)
	after, _ := wanted.(map[string]any)
	secret := at.possible().isSecret()
	for name, value := range before {
		below := path + "." + name
		if secret {
			below = path // the names in it are secret, too
		}
		found = changed(found, at.field(name), below, value, after[name])
	}
	return found
}

func same(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && apiclient.SameJSON(x, y)
}
