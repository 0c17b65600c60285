package api

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/schema"
)

// widgetVault is a vault with keys that knows widgets, in the versions v1 and v2, whose passwords are secret, and gadgets without
// secrets.
func widgetVault(t *testing.T, keys ...string) *vault {
	t.Helper()
	compiled, err := schema.Compile([]byte(secretSchema))
	require.NoError(t, err)
	plain, err := schema.Compile([]byte(`{"type":"object"}`))
	require.NoError(t, err)
	v := &vault{}
	if len(keys) > 0 {
		v.keys = keyring(t, keys...)
	}
	v.schemas.Store(&map[string]*knownKind{
		"widgets": {kind: "widgets", names: []string{"v1", "v2"}, schemas: map[string]*schema.Schema{"v1": compiled, "v2": compiled}, base: "v1"},
		"gadgets": {kind: "gadgets", names: []string{""}, schemas: map[string]*schema.Schema{"": plain}},
	})
	return v
}

func widget(version, spec string) *apiclient.Raw {
	return &apiclient.Raw{Kind: "widgets", Name: "blue", Version: version, Spec: json.RawMessage(spec)}
}

// TestWhatCannotBeSealedIsNotStored, in particular not in plain: it is an error, with nothing to store.
func TestWhatCannotBeSealedIsNotStored(t *testing.T) {
	sealed := widget("v1", `{"password":"REDACTED"}`)
	sealed.Sealed = "the key is not here"
	for name, tt := range map[string]struct {
		keys []string
		o    *apiclient.Raw
	}{
		"the version is not known": {[]string{"one"}, widget("v3", `{"password":"hunter2"}`)},
		"there are no keys":        {nil, widget("v1", `{"password":"hunter2"}`)},
		"the spec is broken":       {[]string{"one"}, widget("v1", `{"password":"hunter2"`)},
		"it could not be read":     {[]string{"one"}, sealed},
	} {
		t.Run(name, func(t *testing.T) {
			now, err := widgetVault(t, tt.keys...).seal(tt.o)
			require.ErrorIs(t, err, errSealed)
			require.NotContains(t, err.Error(), hunter2)
			require.Zero(t, now)
		})
	}
}

// TestSealedIsWhatIsSecret and nothing else: an object of a kind without secrets is stored as it is, in whichever version, and a
// word that is shown for secrets may be a value. Who gives all of its secrets anew opens a sealed object.
func TestSealedIsWhatIsSecret(t *testing.T) {
	v := widgetVault(t, "one")
	const spec = `{"b": 1.0,"a":"REDACTED"}`
	for _, kind := range []string{"gadgets", "unknown"} {
		o := &apiclient.Raw{Kind: kind, Name: "one", Version: "v9", Spec: json.RawMessage(spec)}
		now, err := v.seal(o)
		require.NoError(t, err)
		require.Equal(t, stored{spec: spec}, now)
	}
	o := widget("v2", `{"password":"REDACTED","pin":7}`)
	now, err := v.seal(o)
	require.NoError(t, err)
	require.NotContains(t, now.spec, "REDACTED")
	require.Equal(t, "one", now.key)
	again := widget("v2", now.spec)
	v.unseal(again, now.sealed)
	require.JSONEq(t, `{"password":"REDACTED","pin":7}`, string(again.Spec))

	again.Sealed, again.Spec = "the key is not here", json.RawMessage(`{"password":"hunter2"}`)
	now, err = v.seal(again)
	require.NoError(t, err)
	require.NotContains(t, now.spec, hunter2)
	require.Empty(t, again.Sealed)
}

// TestSchemaIsDoubtedIfItHasOtherSecrets than what was read: then it may be an old one, which hides less than it should.
func TestSchemaIsDoubtedIfItHasOtherSecrets(t *testing.T) {
	for name, tt := range map[string]struct {
		kind, version string
		fields        []string
		want          bool
	}{
		"all are secrets":   {"widgets", "v1", []string{"/password", "/pin", "/users/0/password"}, false},
		"the first is none": {"widgets", "v1", []string{"/host", "/password"}, true},
		"the last is none":  {"widgets", "v1", []string{"/password", "/host"}, true},
		"unknown version":   {"widgets", "v3", []string{"/password"}, true},
		"no secrets":        {"gadgets", "", []string{"/password"}, true},
		"unknown kind":      {"unknown", "", []string{"/password"}, true},
		"nothing is sealed": {"unknown", "", nil, false},
	} {
		v := widgetVault(t)
		v.doubtSchema(tt.kind, tt.version, tt.fields)
		require.Equal(t, tt.want, v.doubted.Load() != 0, name)
	}
	v := widgetVault(t, "one")
	now, err := v.seal(widget("v1", `{"password":"hunter2"}`))
	require.NoError(t, err)
	v.unseal(widget("v1", now.spec), now.sealed)
	require.Zero(t, v.doubted.Load())
	v.unseal(widget("v3", now.spec), now.sealed)
	require.NotZero(t, v.doubted.Load())
}

// TestDecryptionSaysWhy, and takes nothing for a value that is none.
func TestDecryptionSaysWhy(t *testing.T) {
	e, err := keyring(t, "one").Seal("widgets", "blue")
	require.NoError(t, err)
	value, err := decrypt(e, "/a", ciphertext{e.EncryptValue("/a", []byte(`{"b":12345678901234567890}`))})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"b": json.Number("12345678901234567890")}, value)
	for stored, want := range map[any]string{
		"plain":                    "no ciphertext",
		ciphertextOf(e, "/b", `1`): "encrypted elsewhere or with another key, or was changed",
		ciphertextOf(e, "/a", `{`): "unexpected EOF",
		ciphertextOf(e, "/a", ``):  "EOF",
	} {
		_, err := decrypt(e, "/a", stored)
		require.ErrorContains(t, err, want)
	}
}

// ciphertextOf is what stands in a row for a value of a field.
func ciphertextOf(e interface {
	EncryptValue(field string, plain []byte) []byte
}, field, plain string,
) any {
	text, _ := json.Marshal(ciphertext{e.EncryptValue(field, []byte(plain))})
	return rawText(text)
}

// rawText is JSON that can be the key of a map.
type rawText string

// MarshalJSON returns it.
func (r rawText) MarshalJSON() ([]byte, error) { return []byte(r), nil }

// TestValuesAreReplacedWhereTheyAre: what is not there is not made, and no other is taken for it.
func TestValuesAreReplacedWhereTheyAre(t *testing.T) {
	const doc = `{"a":{"b":1},"l":[1,{"c":2},[3,4]]}`
	for path, want := range map[string]string{
		"/a":     `{"a":"x","l":[1,{"c":2},[3,4]]}`,
		"/a/b":   `{"a":{"b":"x"},"l":[1,{"c":2},[3,4]]}`,
		"/l/0":   `{"a":{"b":1},"l":["x",{"c":2},[3,4]]}`,
		"/l/1/c": `{"a":{"b":1},"l":[1,{"c":"x"},[3,4]]}`,
		"/l/2/1": `{"a":{"b":1},"l":[1,{"c":2},[3,"x"]]}`,
		"/b":     "", "/a/c": "", "/a/b/c": "", "/l/3": "", "/l/-1": "", "/l/x": "", "/l/": "", "/l/1/d": "", "/l/2/2": "", "/l/0/0": "", "/l/2/99999999999999999999": "",
	} {
		got, err := replaceAll(json.RawMessage(doc), []string{path}, func(at string, _ any) (any, error) {
			require.Equal(t, path, at)
			return "x", nil
		})
		if want == "" {
			require.ErrorIs(t, err, errNoPlace, path)
			require.Nil(t, got)
			continue
		}
		require.NoError(t, err, path)
		require.JSONEq(t, want, string(got))
	}
	for _, path := range []string{"/a/b", "/l/0", "/l/2/1"} {
		_, err := replaceAll(json.RawMessage(doc), []string{path, "/a"}, func(string, any) (any, error) { return nil, errStore })
		require.ErrorIs(t, err, errStore, path)
	}
}

// TestVaultSaysWhatItCannotDo: what is not known to be no secret is not shown, and what cannot be compared is not called fresh.
func TestVaultSaysWhatItCannotDo(t *testing.T) {
	v := widgetVault(t, "one")
	v.refresh = func(context.Context) error { return errStore }
	require.ErrorIs(t, v.ready(t.Context()), errStore)
	_, err := v.redact("widgets", "v3", json.RawMessage(`{"password":"hunter2"}`))
	require.ErrorIs(t, err, errUnknownVersion)
	shown, err := v.redact("widgets", "v1", json.RawMessage(`{"password":"hunter2"`))
	require.Error(t, err)
	require.NotContains(t, string(shown), hunter2)
	for name, tt := range map[string]struct {
		o   *apiclient.Raw
		now stored
	}{
		"the version is not known":              {widget("v3", `{}`), stored{}},
		"the spec is broken":                    {widget("v1", `{`), stored{}},
		"the envelope is broken":                {widget("v1", `{}`), stored{sealed: `{`}},
		"the spec is, and there is an envelope": {widget("v1", `{`), stored{sealed: `{"fields":[]}`}},
	} {
		_, err := v.isStale(tt.o, tt.now)
		require.Error(t, err, name)
	}
}

// TestStaleDoesNotDependOnTheOrder of the members of a spec.
func TestStaleDoesNotDependOnTheOrder(t *testing.T) {
	v := widgetVault(t, "one")
	const spec = `{"users":[{"password":1},{"password":2}],"pin":1,"password":"a","map":{"d":"1","c":"2","b":"3","a":"4"}}`
	for range 20 {
		o := widget("v1", spec)
		now, err := v.seal(o)
		require.NoError(t, err)
		for range 20 {
			stale, err := v.isStale(o, now)
			require.NoError(t, err)
			require.False(t, stale)
		}
	}
}
