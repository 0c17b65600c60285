package api

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/schema"
)

// withEverySecret is the spec of an object with secrets at each kind of place.
const withEverySecret = `{"host":"x","map":{"a/b":"hunter2-map","c~d":"hunter2-tilde"},"password":"hunter2","pin":9007199254740993,
	"users":[{"name":"ann"},{"name":"bob","password":"hunter2-bob"}]}`

// sealedHere are an object and how it is stored.
func sealedHere(t *testing.T, v *vault) (apiclient.Raw, stored) {
	t.Helper()
	o := apiclient.Raw{Kind: "widgets", Name: "blue", Spec: json.RawMessage(withEverySecret)}
	now, err := v.seal(&o)
	require.NoError(t, err)
	return o, now
}

// TestSecretsComeBackAsTheyWere: each at its place, with all the digits of a number.
func TestSecretsComeBackAsTheyWere(t *testing.T) {
	v := withSecrets(t, newStore(t), "one").store.vault
	require.NoError(t, v.ready(t.Context()))
	o, now := sealedHere(t, v)
	require.NotContains(t, now.spec, hunter2)
	require.NotContains(t, now.spec, "9007199254740993")
	require.NotContains(t, now.sealed, hunter2)
	require.Contains(t, now.spec, `"host":"x"`)
	require.Equal(t, "one", now.key)
	o.Spec = json.RawMessage(now.spec)
	v.unseal(&o, now.sealed)
	require.Empty(t, o.Sealed)
	require.JSONEq(t, withEverySecret, string(o.Spec))
	require.Contains(t, string(o.Spec), "9007199254740993")
	stale, err := v.isStale(&o, now)
	require.NoError(t, err)
	require.False(t, stale)
}

// TestWhatCannotBeDecryptedIsNotShown, neither as a secret nor as a ciphertext that would be taken for one, whatever somebody
// has done to the row.
func TestWhatCannotBeDecryptedIsNotShown(t *testing.T) {
	v := withSecrets(t, newStore(t), "one").store.vault
	require.NoError(t, v.ready(t.Context()))
	other := &vault{keys: keyring(t, "two")}
	replaced := func(old, new string) func(o *apiclient.Raw, now *stored) {
		return func(_ *apiclient.Raw, now *stored) {
			require.Contains(t, now.spec, old)
			now.spec = strings.Replace(now.spec, old, new, 1)
		}
	}
	field := func(name, value string) func(o *apiclient.Raw, now *stored) {
		return func(_ *apiclient.Raw, now *stored) {
			var spec map[string]json.RawMessage
			require.NoError(t, json.Unmarshal([]byte(now.spec), &spec))
			delete(spec, name)
			if value != "" {
				spec[name] = json.RawMessage(value)
			}
			b, err := json.Marshal(spec)
			require.NoError(t, err)
			now.spec = string(b)
		}
	}
	for name, tt := range map[string]struct {
		by     *vault
		change func(o *apiclient.Raw, now *stored)
		shown  bool // what is no secret
	}{
		"the key is not here":    {by: other, change: func(*apiclient.Raw, *stored) {}, shown: true},
		"of another object":      {change: func(o *apiclient.Raw, _ *stored) { o.Name = "red" }, shown: true},
		"another value in place": {change: field("password", `"hunter2-plain"`), shown: true},
		"null in its place":      {change: field("password", `null`), shown: true},
		"another place's":        {change: func(_ *apiclient.Raw, now *stored) { swapSecrets(t, now) }, shown: true},
		"the field is gone":      {change: field("password", "")},
		"the items are gone":     {change: field("users", `[]`)},
		"fewer items":            {change: field("users", `[{"name":"ann","password":"hunter2"}]`)},
		"no items":               {change: field("users", `"hunter2"`)},
		"items by name":          {change: field("users", `{"x":"hunter2"}`)},
		"no map":                 {change: field("map", `["hunter2"]`), shown: true},
		"the spec is broken":     {change: replaced(`{`, `{{`)},
		"the envelope is broken": {change: func(_ *apiclient.Raw, now *stored) { now.sealed = "hunter2" }},
		"the envelope is another": {change: func(_ *apiclient.Raw, now *stored) {
			now.sealed = strings.Replace(now.sealed, "/users/1", "/users/-1", 1)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o, now := sealedHere(t, v)
			tt.change(&o, &now)
			o.Spec = json.RawMessage(now.spec)
			by := tt.by
			if by == nil {
				by = v
			}
			by.unseal(&o, now.sealed)
			require.Contains(t, o.Sealed, "its secrets cannot be decrypted here: ")
			require.NotContains(t, o.Sealed, hunter2)
			require.NotContains(t, string(o.Spec), hunter2)
			require.NotContains(t, string(o.Spec), "ciphertext")
			if !tt.shown {
				require.Equal(t, "null", string(o.Spec), "nobody knows what is a ciphertext in it")
				return
			}
			require.Contains(t, string(o.Spec), `"host":"x"`)
			require.Equal(t, 4, bytes.Count(o.Spec, []byte(schema.Redacted)))
			_, err := v.seal(&o)
			require.ErrorIs(t, err, errSealed, "it would store the word in place of the secret")
		})
	}
}

// TestSteps: names with slashes and tildes are escaped in the envelope (RFC 6901).
func TestSteps(t *testing.T) {
	require.Equal(t, []string{"a"}, steps("/a"))
	require.Equal(t, []string{"a", "0", "b/c", "~1", "d~e"}, steps("/a/0/b~1c/~01/d~0e"))
	require.Equal(t, []string{""}, steps("/"))
}

// swapSecrets puts one field's ciphertext in the place of another's.
func swapSecrets(t *testing.T, now *stored) {
	t.Helper()
	var spec map[string]any
	require.NoError(t, json.Unmarshal([]byte(now.spec), &spec))
	spec["password"], spec["pin"] = spec["pin"], spec["password"]
	b, err := json.Marshal(spec)
	require.NoError(t, err)
	now.spec = string(b)
}

// TestVaultWithoutSchemasDoesNothing: it would store in plain what it does not know to be a secret.
func TestVaultWithoutSchemasDoesNothing(t *testing.T) {
	v := &vault{keys: keyring(t, "one")}
	require.ErrorIs(t, v.ready(t.Context()), errNoSchemas)
	o := apiclient.Raw{Kind: "widgets", Name: "blue", Spec: json.RawMessage(`{"password":"hunter2"}`)}
	now, err := v.seal(&o)
	require.ErrorIs(t, err, errNoSchemas)
	require.ErrorIs(t, err, errSealed)
	require.Zero(t, now)
	_, err = v.redact("widgets", "", o.Spec)
	require.ErrorIs(t, err, errNoSchemas)
	_, err = v.isStale(&o, stored{})
	require.ErrorIs(t, err, errNoSchemas)
}

// TestStaleIsWhatIsStoredInAnotherWay than it would be now: rotation looks for that.
func TestStaleIsWhatIsStoredInAnotherWay(t *testing.T) {
	store := newStore(t)
	v := withSecrets(t, store, "one").store.vault
	require.NoError(t, v.ready(t.Context()))
	o, now := sealedHere(t, v)
	for name, tt := range map[string]struct {
		keys []string
		spec string
		now  stored
		want bool
	}{
		"as it is":                    {[]string{"one"}, withEverySecret, now, false},
		"its key is there as well":    {[]string{"one", "two"}, withEverySecret, now, false},
		"another key is the first":    {[]string{"two", "one"}, withEverySecret, now, true},
		"stored in plain":             {[]string{"one"}, withEverySecret, stored{}, true},
		"fewer secrets":               {[]string{"one"}, `{"host":"x"}`, now, true},
		"none, and stored so":         {[]string{"two"}, `{"host":"x"}`, stored{}, false},
		"as many secrets, but others": {[]string{"one"}, `{"map":{"a":"","b":"","c":""},"password":"","pin":1}`, now, true},
	} {
		t.Run(name, func(t *testing.T) {
			with := &vault{keys: keyring(t, tt.keys...)}
			with.schemas.Store(v.schemas.Load())
			o := o
			o.Spec = json.RawMessage(tt.spec)
			stale, err := with.isStale(&o, tt.now)
			require.NoError(t, err)
			require.Equal(t, tt.want, stale)
		})
	}
}
