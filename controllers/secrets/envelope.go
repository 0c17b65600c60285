package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
)

// Envelope is the data key of one object, encrypted, and what it was used for. It is stored, as JSON, beside the values.
type Envelope struct {
	// Key is the id of the key that the data key is encrypted with.
	Key string `json:"key"`
	// DataKey is the data key: a salt, and what was encrypted with a key that is made of it and the one named.
	DataKey []byte `json:"dataKey"`
	// Fields are the fields that hold encrypted values.
	Fields []string `json:"fields"`

	kind, name string
	values     cipher.AEAD
}

// Seal begins the encryption of an object's values, under a new data key.
func (k *Keyring) Seal(kind, name string) (*Envelope, error) {
	id := k.First()
	if id == "" {
		return nil, fmt.Errorf("encrypt: %w", ErrNoKey)
	}
	salt, data := make([]byte, keySize), make([]byte, keySize)
	_, _ = rand.Read(salt) // it never fails
	_, _ = rand.Read(data)
	wrap, err := k.find(id).wrap(salt)
	if err != nil {
		return nil, err
	}
	sealed := wrap.Seal(salt, nil, data, bound("data key", kind, name, id)) //nolint:gosec // it makes the nonce itself
	e := &Envelope{Key: id, DataKey: sealed, kind: kind, name: name}
	e.values, err = gcm(data)
	return e, err
}

// Open begins the decryption of an object's values: text is its envelope. It fails with [ErrNoKey] if the key is not there,
// and with another error if the envelope is not of this object, or was changed.
func (k *Keyring) Open(kind, name, text string) (*Envelope, error) {
	e := &Envelope{kind: kind, name: name}
	if err := json.Unmarshal([]byte(text), e); err != nil {
		return nil, fmt.Errorf("decrypt: the envelope is broken: %w", err)
	}
	one := k.find(e.Key)
	if one == nil {
		return nil, fmt.Errorf("decrypt with key %q: %w", e.Key, ErrNoKey)
	}
	if len(e.DataKey) < keySize {
		return nil, errBroken
	}
	wrap, err := one.wrap(e.DataKey[:keySize])
	if err != nil {
		return nil, err
	}
	data, err := wrap.Open(nil, nil, e.DataKey[keySize:], bound("data key", kind, name, e.Key))
	if err != nil {
		return nil, errBroken
	}
	e.values, err = gcm(data)
	return e, err
}

// errBroken is all that is known: what was encrypted elsewhere, or with another key of that id, looks the same.
var errBroken = errors.New("decrypt: it was encrypted elsewhere or with another key, or was changed")

// EncryptValue encrypts the value of a field, and notes the field.
func (e *Envelope) EncryptValue(field string, plain []byte) []byte {
	e.Fields = append(e.Fields, field)
	return e.values.Seal(nil, nil, plain, bound("value", e.kind, e.name, field)) //nolint:gosec // it makes the nonce itself
}

// DecryptValue decrypts the value of a field.
func (e *Envelope) DecryptValue(field string, encrypted []byte) ([]byte, error) {
	plain, err := e.values.Open(nil, nil, encrypted, bound("value", e.kind, e.name, field))
	if err != nil {
		return nil, errBroken
	}
	return plain, nil
}

// String is the envelope as it is stored.
func (e *Envelope) String() string {
	text, _ := json.Marshal(e) // strings and bytes always encode
	return string(text)
}

// wrap is what encrypts one data key. A salt for each keeps the number of data keys without a bound: random nonces alone are
// good for 2^32 of them (NIST SP 800-38D, section 8.3).
func (k *key) wrap(salt []byte) (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, k.secret, salt, "evenkeel data key", keySize)
	if err != nil {
		return nil, err
	}
	return gcm(derived)
}

// gcm puts a random nonce before what it encrypts.
func gcm(secret []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// bound is the associated data: an array of JSON, so that no two lists of texts make the same.
func bound(what ...string) []byte {
	data, _ := json.Marshal(what) // strings always encode
	return data
}
