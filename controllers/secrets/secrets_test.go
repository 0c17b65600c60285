package secrets

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func line(id string, fill byte) string {
	return id + ":" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(fill), keySize))) + "\n"
}

func ring(t *testing.T, lines ...string) *Keyring {
	t.Helper()
	k, err := Parse(strings.Join(lines, ""))
	require.NoError(t, err)
	return k
}

// TestValuesAreBound to key, kind, name and field: anywhere else they are broken.
func TestValuesAreBound(t *testing.T) {
	k := ring(t, line("one", 1))
	e, err := k.Seal("widgets", "blue")
	require.NoError(t, err)
	a, b := e.EncryptValue("/a", []byte("hunter2")), e.EncryptValue("/b", []byte("hunter2"))
	require.NotEqual(t, a, b)
	require.NotContains(t, e.String()+string(a), "hunter2")

	again, err := ring(t, line("new", 2), line("one", 1)).Open("widgets", "blue", e.String())
	require.NoError(t, err, "all keys decrypt")
	require.Equal(t, []string{"/a", "/b"}, again.Fields)
	plain, err := again.DecryptValue("/a", a)
	require.NoError(t, err)
	require.Equal(t, "hunter2", string(plain))

	for _, c := range []struct {
		name, field string
		value       []byte
	}{{"another field", "/b", a}, {"no field", "", a}, {"changed", "/a", append([]byte{a[0] ^ 1}, a[1:]...)}, {"cut off", "/a", a[:20]}, {"nothing", "/a", nil}} {
		_, err := again.DecryptValue(c.field, c.value)
		require.ErrorIs(t, err, errBroken, c.name)
	}
	for _, where := range [][2]string{{"widgets", "green"}, {"gadgets", "blue"}, {"blue", "widgets"}, {"", ""}} {
		_, err := k.Open(where[0], where[1], e.String())
		require.ErrorIs(t, err, errBroken, "%v", where)
	}
	_, err = ring(t, line("one", 2)).Open("widgets", "blue", e.String())
	require.ErrorIs(t, err, errBroken)
	_, err = ring(t, line("two", 1)).Open("widgets", "blue", e.String())
	require.ErrorIs(t, err, ErrNoKey)
	_, err = (*Keyring)(nil).Open("widgets", "blue", e.String())
	require.ErrorIs(t, err, ErrNoKey)
	_, err = (*Keyring)(nil).Seal("widgets", "blue")
	require.ErrorIs(t, err, ErrNoKey)
	for _, text := range []string{"", "{}", `{"key":"one"}`, `{"key":"one","dataKey":"AAAA"}`} {
		_, err = k.Open("widgets", "blue", text)
		require.Error(t, err, text)
	}
}

func TestMACsNeedTheKey(t *testing.T) {
	k := ring(t, line("one", 1), line("two", 2))
	one, err := k.MAC("one", []byte("x"))
	require.NoError(t, err)
	two, err := k.MAC("two", []byte("x"))
	require.NoError(t, err)
	require.NotEqual(t, one, two)
	_, err = k.MAC("three", nil)
	require.ErrorIs(t, err, ErrNoKey)
}

func TestWrongKeysAreNamedWithoutThem(t *testing.T) {
	require.Equal(t, "b", ring(t, "# keys\n\n  "+line("b", 1), line("a", 2)).First())
	require.Empty(t, (*Keyring)(nil).First())
	for text, want := range map[string]string{
		"":                               "there is no key",
		"# only a comment":               "there is no key",
		"hunter2":                        "line 1: want ID:BASE64",
		"\na:hunter2":                    "line 2: want ID:BASE64",
		"a:aHVudGVyMg==":                 "line 1: want ID:BASE64",
		line("", 1):                      "line 1: want 1 to 64",
		line("A", 1):                     "line 1: want 1 to 64",
		line("a", 1) + line("a", 2):      "line 2: another key has the id a",
		line(strings.Repeat("a", 65), 1): "line 1: want 1 to 64",
	} {
		_, err := Parse(text)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "hunter2")
		require.NotContains(t, err.Error(), "aHVudGVyMg")
	}
}

// TestOthersMustNotReadTheFile; its group may, as it does where a cluster mounts a secret.
func TestOthersMustNotReadTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(path, []byte(line("a", 1)), 0o600))
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o440: true, 0o644: false, 0o604: false, 0o620: false, 0o602: false, 0o777: false} {
		require.NoError(t, os.Chmod(path, mode))
		k, err := Load(path)
		if ok {
			require.NoError(t, err)
			require.Equal(t, "a", k.First())
			continue
		}
		require.ErrorContains(t, err, "others must not read it", "%o", mode)
	}
	require.NoError(t, os.Chmod(path, 0o600))
	require.NoError(t, os.WriteFile(path, []byte("a:b"), 0o600))
	_, err := Load(path)
	require.ErrorContains(t, err, path+": line 1")
	_, err = Load(path + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
}
