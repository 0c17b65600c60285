package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/schema"
	"github.com/evenkeel-io/evenkeel/controllers/secrets"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// vault stands between rows and objects, which have their secrets in plain (rows.go: scan and values). It encrypts what the
// schema of the kind calls a secret, and decrypts what the row says was encrypted: rows stay readable when schemas change.
type vault struct {
	keys *secrets.Keyring
	// refresh brings schemas up to date. It may read the store, so it is not for transactions.
	refresh func(context.Context) error
	// schemas are by kind, nil before the first refresh. They are replaced, never changed.
	schemas atomic.Pointer[map[string]*knownKind]
}

// ciphertext stands in a stored spec in place of a secret.
type ciphertext struct {
	Ciphertext []byte `json:"ciphertext"`
}

// errSealed is of an object whose secrets cannot be encrypted or decrypted here.
var errSealed = errors.New("the secrets of an object cannot be encrypted or decrypted")

// errNoSchemas would be a mistake of ours.
var errNoSchemas = errors.New("the schemas have not been read")

// ready is called before each transaction that writes objects, and before objects are shown: what it encrypts and hides
// comes from the schemas.
func (v *vault) ready(ctx context.Context) error {
	if v.refresh == nil {
		return errNoSchemas
	}
	return v.refresh(ctx)
}

// secretsOf is the schema of a kind if it has secrets, and else nil.
func (v *vault) secretsOf(kind string) (*schema.Schema, error) {
	known := v.schemas.Load()
	if known == nil {
		return nil, errNoSchemas
	}
	if k := (*known)[kind]; k != nil && k.schema.HasSecrets() {
		return k.schema, nil
	}
	return nil, nil //nolint:nilnil // there are none
}

// seal returns the spec of an object as it is stored, and how its secrets were encrypted.
func (v *vault) seal(o *apiclient.Raw) (spec, sealed string, err error) {
	s, err := v.secretsOf(o.Kind)
	if err != nil || s == nil {
		return string(o.Spec), "", err
	}
	var e *secrets.Envelope
	encrypted, err := s.EachSecret(o.Spec, func(path string, value any) (any, error) {
		plain, err := json.Marshal(value)
		if e == nil && err == nil {
			e, err = v.keys.Seal(o.Kind, o.Name)
		}
		if err != nil {
			return nil, err
		}
		return ciphertext{e.EncryptValue(path, plain)}, nil
	})
	if err != nil {
		return "", "", fmt.Errorf("%w: %s: %w", errSealed, objects.KeyOf(o), err)
	}
	if e != nil {
		sealed = e.String()
	}
	return string(encrypted), sealed, nil
}

// unseal decrypts the secrets of an object that was read.
func (v *vault) unseal(o *apiclient.Raw, sealed string) error {
	if sealed == "" {
		return nil
	}
	e, err := v.keys.Open(o.Kind, o.Name, sealed)
	var spec any
	if err == nil {
		spec, err = decodeNumbers(o.Spec)
	}
	for i := 0; err == nil && i < len(e.Fields); i++ {
		path := e.Fields[i]
		spec, err = replaceAt(spec, strings.Split(path, "/")[1:], func(stored any) (any, error) { return decrypt(e, path, stored) })
	}
	if err != nil {
		o.Spec = nil // a ciphertext must not be taken for a value
		return fmt.Errorf("%w: %s: %w", errSealed, objects.KeyOf(o), err)
	}
	o.Spec, err = json.Marshal(spec)
	return err
}

func decrypt(e *secrets.Envelope, path string, stored any) (any, error) {
	text, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	var c ciphertext
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, errors.New("the stored value is no ciphertext") // and may be a value that somebody put there
	}
	plain, err := e.DecryptValue(path, c.Ciphertext)
	if err != nil {
		return nil, err
	}
	return decodeNumbers(plain)
}

// decodeNumbers decodes JSON, and keeps the digits of numbers.
func decodeNumbers(text []byte) (v any, err error) {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

var errNoPlace = errors.New("a field that was encrypted is not there")

// replaceAt replaces the value at the steps of a JSON pointer.
func replaceAt(v any, steps []string, replace func(any) (any, error)) (_ any, err error) {
	if len(steps) == 0 {
		return replace(v)
	}
	switch v := v.(type) {
	case map[string]any:
		name := strings.NewReplacer("~1", "/", "~0", "~").Replace(steps[0])
		below, ok := v[name]
		if !ok {
			return nil, errNoPlace
		}
		v[name], err = replaceAt(below, steps[1:], replace)
		return v, err
	case []any:
		i, err := strconv.Atoi(steps[0])
		if err != nil || i < 0 || i >= len(v) {
			return nil, errNoPlace
		}
		v[i], err = replaceAt(v[i], steps[1:], replace)
		return v, err
	}
	return nil, errNoPlace
}

// hide redacts the secrets of an object, in place of its spec: what other goroutines hold of it stays.
func (v *vault) hide(o *apiclient.Raw) error {
	s, err := v.secretsOf(o.Kind)
	if err != nil || s == nil {
		return err
	}
	o.Spec, err = s.Redact(o.Spec)
	return err
}
