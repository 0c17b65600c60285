// Package secrets encrypts what the Evenkeel API keeps secret: the fields of specs that a schema marks x-sensitive.
//
// It is envelope encryption: the values of one object are encrypted with a data key of their own (AES-256-GCM), and that with
// a key of the [Keyring], which is never stored beside them. Each value is bound to its kind, name and field, so that whoever
// can write to the database cannot move it elsewhere.
package secrets

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
)

const (
	keySize = 32
	// maxID is the limit of a key's id, in bytes, and maxFile that of a file of keys.
	maxID, maxFile = 64, 1 << 20
)

// ErrNoKey says that a value was encrypted with a key that is not there.
var ErrNoKey = errors.New("the key is not there")

// key encrypts data keys.
type key struct {
	id     string
	secret []byte
}

// Keyring holds the keys that data keys are encrypted with. The first one encrypts, all of them decrypt. It is safe for
// concurrent use. A nil Keyring has no keys.
type Keyring struct{ keys []key }

// Parse reads keys: ID:BASE64 on each line, the base64 of 32 random bytes. Empty lines and those that begin with # are left
// out. Errors say nothing of the keys.
func Parse(text string) (*Keyring, error) {
	k := new(Keyring)
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, encoded, _ := strings.Cut(line, ":")
		secret, err := base64.StdEncoding.DecodeString(encoded)
		switch {
		case err != nil || len(secret) != keySize:
			return nil, fmt.Errorf("line %d: want ID:BASE64, the base64 of %d bytes (openssl rand -base64 %d)", n, keySize, keySize)
		case id == "" || len(id) > maxID || strings.ContainsFunc(id, notInID):
			return nil, fmt.Errorf("line %d: want 1 to %d lower-case letters, digits and . _ - as the id of a key", n, maxID)
		case k.find(id) != nil:
			return nil, fmt.Errorf("line %d: another key has the id %s", n, id)
		}
		k.keys = append(k.keys, key{id: id, secret: secret})
	}
	if len(k.keys) == 0 {
		return nil, errors.New("there is no key")
	}
	return k, nil
}

func notInID(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
}

// Load reads keys from a file. It refuses one that others may read or write, or that its group may write.
func Load(path string) (*Keyring, error) {
	file, err := os.Open(path) //nolint:gosec // it is named by whoever starts the program
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o027 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("%s: its mode is %04o: others must not read it, nor its group write it (chmod 600)", path, mode)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return nil, err
	}
	k, err := Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// First is the id of the key that encrypts; empty if there are no keys.
func (k *Keyring) First() string {
	if k == nil || len(k.keys) == 0 {
		return ""
	}
	return k.keys[0].id
}

// Has reports whether there is a key of that id.
func (k *Keyring) Has(id string) bool { return k.find(id) != nil }

func (k *Keyring) find(id string) *key {
	if k == nil {
		return nil
	}
	i := slices.IndexFunc(k.keys, func(one key) bool { return one.id == id })
	if i < 0 {
		return nil
	}
	return &k.keys[i]
}

// MAC is a hash of data that only who has the key can make: nobody else can try out what the data were. It is that of the
// key with that id.
func (k *Keyring) MAC(id string, data []byte) (string, error) {
	one := k.find(id)
	if one == nil {
		return "", fmt.Errorf("key %q: %w", id, ErrNoKey)
	}
	derived, err := hkdf.Key(sha256.New, one.secret, nil, "evenkeel mac", keySize)
	if err != nil {
		return "", err
	}
	h := hmac.New(sha256.New, derived)
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil)), nil
}
