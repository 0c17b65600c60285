package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

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
	// doubted is when, in Unix nanoseconds, something was read that a newer schema may call a secret.
	doubted atomic.Int64
}

// ciphertext stands in a stored spec in place of a secret.
type ciphertext struct {
	Ciphertext []byte `json:"ciphertext"`
}

// errSealed is of an object whose secrets cannot be encrypted or decrypted here. What it says is no secret.
var errSealed = errors.New("keys are missing")

// errNoSchemas would be a mistake of ours.
var errNoSchemas = errors.New("the schemas have not been read")

// ready is called before each transaction that writes objects, and before objects are shown: what is encrypted and hidden
// comes from the schemas.
func (v *vault) ready(ctx context.Context) error {
	if v.refresh == nil {
		return errNoSchemas
	}
	return v.refresh(ctx)
}

// secretsOf is the schema of a version of a kind if it has secrets, and else nil.
func (v *vault) secretsOf(kind, version string) (*schema.Schema, error) {
	known := v.schemas.Load()
	if known == nil {
		return nil, errNoSchemas
	}
	k := (*known)[kind]
	if k == nil || !k.schema().HasSecrets() { // which is so of all versions or of none
		return nil, nil //nolint:nilnil // there are none
	}
	version, err := k.storedIn(version)
	if err != nil {
		return nil, err
	}
	return k.schemas[version], nil
}

// stored is a spec as it is in its row: with ciphertexts, the envelope that they are in, and the id of its key.
type stored struct{ spec, sealed, key string }

// seal returns the spec of an object as it is stored. It can then be read here.
func (v *vault) seal(o *apiclient.Raw) (stored, error) {
	if o.Sealed != "" && bytes.Contains(o.Spec, []byte(schema.Redacted)) {
		return stored{}, fmt.Errorf("%w: %s: %s; to give it another spec, give all of its secrets", errSealed, objects.KeyOf(o), o.Sealed)
	}
	now, err := v.encrypt(o)
	if err != nil {
		return stored{}, fmt.Errorf("%w: %s: %w", errSealed, objects.KeyOf(o), err)
	}
	o.Sealed = ""
	return now, nil
}

func (v *vault) encrypt(o *apiclient.Raw) (now stored, err error) {
	s, err := v.secretsOf(o.Kind, o.Version)
	if s == nil {
		return stored{spec: string(o.Spec)}, err
	}
	var e *secrets.Envelope
	encrypted, err := s.EachSecret(o.Spec, func(path string, value any) (any, error) {
		if e == nil {
			if e, err = v.keys.Seal(o.Kind, o.Name); err != nil {
				return nil, err
			}
		}
		plain, _ := json.Marshal(value) // what was decoded encodes
		return ciphertext{e.EncryptValue(path, plain)}, nil
	})
	now.spec = string(encrypted)
	if e != nil {
		now.sealed, now.key = e.String(), e.Key
	}
	return now, err
}

// isStale reports whether an object should be stored in another way than it is: its key is not the first one, or the schema
// has other secrets by now.
func (v *vault) isStale(o *apiclient.Raw, now stored) (bool, error) {
	s, err := v.secretsOf(o.Kind, o.Version)
	var want []string
	if s != nil {
		_, err = s.EachSecret(o.Spec, func(path string, value any) (any, error) {
			want = append(want, path)
			return value, nil
		})
	}
	var have struct{ Fields []string }
	if err == nil && now.sealed != "" {
		err = json.Unmarshal([]byte(now.sealed), &have)
	}
	slices.Sort(want)
	slices.Sort(have.Fields)
	return !slices.Equal(want, have.Fields) || now.key != "" && now.key != v.keys.First(), err
}

// unseal decrypts the secrets of an object that was read. If it cannot, the object says so, and has Redacted in their place: a
// ciphertext must not be taken for a value.
func (v *vault) unseal(o *apiclient.Raw, sealed string) {
	if sealed == "" {
		return
	}
	plain, err := v.decrypted(o, sealed)
	if err == nil {
		o.Spec = plain
		return
	}
	o.Sealed = "its secrets cannot be decrypted here: " + err.Error()
	var told struct{ Fields []string }
	err = json.Unmarshal([]byte(sealed), &told)
	if err == nil {
		o.Spec, err = replaceAll(o.Spec, told.Fields, func(string, any) (any, error) { return schema.Redacted, nil })
	}
	if err != nil {
		o.Spec = noSpec // nobody knows what is a ciphertext in it
	}
}

func (v *vault) decrypted(o *apiclient.Raw, sealed string) (json.RawMessage, error) {
	e, err := v.keys.Open(o.Kind, o.Name, sealed)
	if err != nil {
		return nil, err
	}
	v.doubtSchema(o.Kind, o.Version, e.Fields)
	return replaceAll(o.Spec, e.Fields, func(path string, stored any) (any, error) { return decrypt(e, path, stored) })
}

// noSpec is shown of an object of which nobody may be shown anything.
var noSpec = json.RawMessage("null")

// doubtSchema is called with fields that were encrypted. If the schema has other secrets, it may be an older one than that of the
// API that wrote them, and what it does not hide may be a secret: it is read again before anything is shown.
func (v *vault) doubtSchema(kind, version string, fields []string) {
	s, _ := v.secretsOf(kind, version)
	for _, path := range fields {
		if s == nil || !s.IsSecret(steps(path)) {
			v.doubted.Store(time.Now().UnixNano())
			return
		}
	}
}

// steps takes a JSON pointer apart.
func steps(pointer string) []string {
	all := strings.Split(pointer, "/")[1:]
	for i := range all {
		all[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(all[i])
	}
	return all
}

// replaceAll replaces what stands at the fields of a document.
func replaceAll(doc json.RawMessage, fields []string, replace func(path string, v any) (any, error)) (json.RawMessage, error) {
	v, err := decodeNumbers(doc)
	for i := 0; err == nil && i < len(fields); i++ {
		path := fields[i]
		v, err = replaceAt(v, steps(path), func(stored any) (any, error) { return replace(path, stored) })
	}
	if err != nil {
		return nil, err
	}
	text, _ := json.Marshal(v) // what was decoded encodes
	return text, nil
}

func decrypt(e *secrets.Envelope, path string, stored any) (any, error) {
	text, _ := json.Marshal(stored) // what was decoded encodes
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
		name := steps[0]
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

// redact hides the secrets of a spec.
func (v *vault) redact(kind, version string, spec json.RawMessage) (json.RawMessage, error) {
	s, err := v.secretsOf(kind, version)
	if s == nil {
		return spec, err
	}
	return s.Redact(spec)
}

// digest tells one request from another. With a key, of which it returns the id, nobody else can try out what the request was.
func (v *vault) digest(id string, request []byte) (string, error) {
	if id == "" {
		sum := sha256.Sum256(request)
		return hex.EncodeToString(sum[:]), nil
	}
	return v.keys.MAC(id, request)
}
