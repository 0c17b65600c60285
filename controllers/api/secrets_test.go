package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/controllers/secrets"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

const (
	// hunter2 is what must not be seen.
	hunter2 = "hunter2"
	// secretSchema has secrets in several places; operationCases use a and b.
	secretSchema = `{"type":"object","properties":{"a":{},"b":{},"host":{"type":"string"},"size":{"type":"integer"},"password":{"type":"string","x-sensitive":true},
		"pin":{"x-sensitive":true,"x-immutable":true},"map":{"type":"object","x-sensitive":true,"additionalProperties":{"type":"string"}},
		"users":{"type":"array","items":{"type":"object","properties":{"name":{},"password":{"x-sensitive":true}}}}}}`
)

// keyring has keys of these ids; the same id is the same key everywhere.
func keyring(t *testing.T, ids ...string) *secrets.Keyring {
	t.Helper()
	var lines strings.Builder
	for _, id := range ids {
		secret := sha256.Sum256([]byte(id))
		lines.WriteString(id + ":" + base64.StdEncoding.EncodeToString(secret[:]) + "\n")
	}
	k, err := secrets.Parse(lines.String())
	require.NoError(t, err)
	return k
}

// vaulted is an API with keys, the tokens of all roles, and widgets whose passwords are secret.
type vaulted struct {
	*secured
	admin, controller, editor, viewer string
}

func withSecrets(t *testing.T, store string, ids ...string) *vaulted {
	t.Helper()
	v := &vaulted{secured: secureWith(t, store, Access{}, keyring(t, ids...))}
	_, v.admin = v.token(access.Admin)
	_, v.controller = v.token(access.Controller)
	_, v.editor = v.token(access.Editor)
	_, v.viewer = v.token(access.Viewer)
	require.Less(t, v.ask("PUT", "/v1/kinds/widgets", v.admin, `{"schema":`+secretSchema+`}`).status, 300)
	return v
}

// want asks and checks the status.
func (v *vaulted) want(status int, method, path, token, body string, header ...string) answer {
	v.t.Helper()
	got := v.ask(method, path, token, body, header...)
	require.Equal(v.t, status, got.status, "%s %s %s: %s", method, path, body, got.body)
	return got
}

// spec is the spec of a widget as an admin reads it.
func (v *vaulted) spec(name string) string {
	v.t.Helper()
	var o struct{ Spec map[string]any }
	decode(v.t, v.want(200, "GET", listPath+"/"+name, v.admin, "").body, &o)
	return fmt.Sprint(o.Spec)
}

// TestSecretsAreHidden from who may not read them, in the answer to every operation that there is.
func TestSecretsAreHidden(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	v.want(201, "POST", listPath, v.admin, `{"name":"always","spec":{"password":"hunter2"}}`)
	withSecret := strings.NewReplacer(`"spec":{}`, `"spec":{"password":"hunter2"}`, `"spec":{"`, `"spec":{"password":"hunter2","`).Replace
	shown, hidden := 0, 0
	for _, c := range operationCases {
		for role, token := range map[access.Role]string{access.Viewer: v.viewer, access.Editor: v.editor, access.Controller: v.controller, access.Admin: v.admin} {
			if !strings.Contains(c.roles, string(role[:1])) {
				continue
			}
			name, uid := v.target(c, v.admin, fmt.Sprintf("%s-%s", c.id, role))
			if strings.HasPrefix(c.path, listPath) {
				v.want(200, "PUT", listPath+"/"+name, v.admin, `{"spec":{"password":"hunter2"}}`)
			}
			if c.id == "delete" { // it is shown as long as it is there
				v.want(200, "PATCH", listPath+"/"+name+"/status", v.admin, fmt.Sprintf(`{"uid":%q,"fence":1,"addFinalizers":["x"]}`, uid))
				c.status = 202
			}
			path, body := c.on(name, uid)
			body = withSecret(strings.Replace(body, `"name":"new"`, fmt.Sprintf(`"name":"new-%s"`, role), 1))
			got := v.want(c.status, c.method, path, token, body)
			reads := role == access.Admin || role == access.Controller
			require.Equal(t, reads && strings.Contains(got.body, `"spec"`), strings.Contains(got.body, hunter2), "%s as %s: %s", c.id, role, got.body)
			if strings.Contains(got.body, `"spec"`) {
				require.NotEqual(t, reads, strings.Contains(got.body, `"password":"REDACTED"`), "%s as %s: %s", c.id, role, got.body)
				if reads {
					shown++
				} else {
					hidden++
				}
			}
		}
	}
	require.GreaterOrEqual(t, shown, 13)
	require.GreaterOrEqual(t, hidden, 12)
	require.NotContains(t, v.audit.String(), hunter2)
	require.NotContains(t, v.logs.String(), hunter2)
}

// TestSecretsOfSomeKindsAreForTheirReaders: a grant for other kinds reads none, also in a batch.
func TestSecretsOfSomeKindsAreForTheirReaders(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	_, inside := v.token(access.Controller, "widgets")
	_, both := v.token(access.Admin, "widgets", "gadgets")
	v.want(200, "POST", "/v1/batch", both, `{"items":[{"kind":"widgets","name":"blue","spec":{"password":"hunter2"}},{"kind":"gadgets","name":"one","spec":{}}]}`)
	require.Contains(t, v.want(200, "GET", listPath+"/blue", inside, "").body, hunter2)
	require.NotContains(t, v.want(200, "GET", listPath+"/blue", v.viewer, "").body, hunter2)
	o, err := v.store.get(t.Context(), objects.Key{Kind: "widgets", Name: "blue"})
	require.NoError(t, err)
	require.NoError(t, v.showAll(context.Background(), &o))
	require.NotContains(t, string(o.Spec), hunter2, "nobody asked at the door")
}

// TestInsecureLoopbackReadsSecrets: everybody is an admin there.
func TestInsecureLoopbackReadsSecrets(t *testing.T) {
	s := secureWith(t, newStore(t), Access{Insecure: true}, keyring(t, "one"))
	require.Equal(t, 201, s.ask("PUT", "/v1/kinds/widgets", "", `{"schema":`+secretSchema+`}`).status)
	require.Contains(t, s.ask("PUT", listPath+"/blue", "", `{"spec":{"password":"hunter2"}}`).body, hunter2)
}

// stored is all that a store holds: the bytes of its files, or each row as text.
func (s *secured) stored() string {
	s.t.Helper()
	var all bytes.Buffer
	if file, ok := strings.CutPrefix(s.where, "sqlite:"); ok {
		files, err := filepath.Glob(file + "*")
		require.NoError(s.t, err)
		require.NotEmpty(s.t, files)
		for _, file := range files {
			data, err := os.ReadFile(file)
			require.NoError(s.t, err)
			all.Write(data)
		}
		return all.String()
	}
	var tables []string
	rows, err := s.store.read.QueryContext(s.t.Context(), `SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'`)
	require.NoError(s.t, err)
	defer rows.Close()
	for rows.Next() {
		var table string
		require.NoError(s.t, rows.Scan(&table))
		tables = append(tables, table)
	}
	require.NoError(s.t, rows.Err())
	require.Contains(s.t, tables, "objects")
	for _, table := range tables {
		lines, err := s.store.read.QueryContext(s.t.Context(), `SELECT CAST(t AS TEXT) FROM `+table+` AS t`)
		require.NoError(s.t, err)
		for lines.Next() {
			var line string
			require.NoError(s.t, lines.Scan(&line))
			all.WriteString(line + "\n")
		}
		require.NoError(s.t, lines.Err())
		lines.Close()
	}
	return all.String()
}

// TestNothingOfASecretIsAtRest, whatever was done with it: neither the value, nor a hash by which it could be guessed.
func TestNothingOfASecretIsAtRest(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	const body = `{"name":"blue","labels":{"visible":"marker"},"spec":{"host":"marker","password":"hunter2-a","users":[{"name":"x","password":{"deep":"hunter2-b"}}],"map":{"hunter2-c":"hunter2-d"}}}`
	v.want(201, "POST", listPath, v.admin, body, "Idempotency-Key", "k1")
	v.want(200, "PUT", listPath+"/blue", v.editor, `{"spec":{"host":"marker","password":"hunter2-e","password":"hunter2-f"}}`)
	v.want(200, "PATCH", listPath+"/blue", v.editor, `{"spec":{"password":"hunter2-g"}}`)
	v.want(200, "POST", "/v1/batch", v.editor, `{"items":[{"kind":"widgets","name":"red","spec":{"password":"hunter2-h"}}]}`)
	v.want(202, "POST", listPath+"/blue/retry", v.editor, "")
	v.want(422, "PUT", listPath+"/green", v.editor, `{"spec":{"password":7,"map":{"x":"hunter2-i"}}}`)
	v.want(204, "DELETE", listPath+"/red", v.editor, "")
	require.Contains(t, v.spec("blue"), "hunter2-g")
	all := v.stored()
	require.Contains(t, all, "marker", "it is looked for where it would be")
	require.NotContains(t, all, hunter2)
	require.NotContains(t, all, hex.EncodeToString([]byte(hunter2)))
	require.NotContains(t, all, base64.StdEncoding.EncodeToString([]byte(`"hunter2`)[:6]))

	var hash, with string
	require.NoError(t, v.store.read.QueryRowContext(t.Context(), `SELECT body_hash, hash_key FROM requests`).Scan(&hash, &with))
	plain, err := v.store.vault.digest("", []byte(body))
	require.NoError(t, err)
	require.Len(t, hash, len(plain))
	require.Equal(t, "one", with)
}

// TestRequestsAreToldApartByTheirKeys of the API, which others cannot use to try out what a request was.
func TestRequestsAreToldApartByTheirKeys(t *testing.T) {
	store := newStore(t)
	v := withSecrets(t, store, "one")
	const body = `{"name":"blue","spec":{"password":"hunter2"}}`
	v.want(201, "POST", listPath, v.editor, body, "Idempotency-Key", "k1")
	require.NotContains(t, v.want(201, "POST", listPath, v.editor, body, "Idempotency-Key", "k1").body, hunter2, "a replay hides it, too")
	require.Contains(t, v.want(201, "POST", listPath, v.admin, body, "Idempotency-Key", "k1").body, hunter2)
	v.want(422, "POST", listPath, v.editor, strings.Replace(body, "hunter2", "hunter3", 1), "Idempotency-Key", "k1")

	var hash string
	require.NoError(t, v.store.read.QueryRowContext(t.Context(), `SELECT body_hash FROM requests`).Scan(&hash))
	var in createInput
	decode(t, body, &in.Body)
	guess := sha256.Sum256(bodyOf(objects.Key{Kind: "widgets", Name: "blue"}, objects.Wanted{Spec: in.Body.Spec}))
	require.NotEqual(t, hex.EncodeToString(guess[:]), hash, "whoever has the database could try out passwords")

	rotated := withSecrets(t, store, "two", "one")
	rotated.want(201, "POST", listPath, rotated.editor, body, "Idempotency-Key", "k1")
	rotated.want(201, "POST", listPath, rotated.editor, `{"name":"red","spec":{}}`, "Idempotency-Key", "k2")
	got := v.want(500, "POST", listPath, v.editor, `{"name":"red","spec":{}}`, "Idempotency-Key", "k2")
	require.Equal(t, "/problems/sealed", got.problem.Type)
	require.Contains(t, got.problem.Detail, `"two"`)
	require.NotContains(t, got.body+v.logs.String(), hunter2)
}

// TestStoreWithSecretsNeedsKeys: it is not served without, and a schema that has secrets is not taken.
func TestStoreWithSecretsNeedsKeys(t *testing.T) {
	store := newStore(t)
	s := secure(t, store, Access{})
	_, admin := s.token(access.Admin)
	got := s.ask("PUT", "/v1/kinds/widgets", admin, `{"schema":`+secretSchema+`}`)
	require.Equal(t, 422, got.status)
	require.Contains(t, got.body, "no keys to encrypt them with")
	openWithout := func() error {
		a, err := Open(t.Context(), Config{Store: store, Notify: new(ear).notify})
		if err == nil {
			require.NoError(t, a.Close())
		}
		return err
	}
	require.NoError(t, openWithout())
	v := withSecrets(t, store, "one")
	require.ErrorContains(t, openWithout(), "the schema of widgets has secrets: give the API its keys")
	s.kinds.forget() // it had no keys when another API took the schema
	got = s.ask("PUT", listPath+"/blue", admin, `{"spec":{"password":"hunter2"}}`)
	require.Equal(t, 500, got.status, got.body)
	require.Equal(t, "/problems/sealed", got.problem.Type)
	require.Contains(t, got.problem.Detail, "widgets/blue: encrypt: the key is not there")
	require.NotContains(t, got.body+s.logs.String(), hunter2)

	v.want(201, "PUT", listPath+"/red", v.admin, `{"spec":{"password":"hunter2"}}`)
	err := openWithout()
	require.ErrorContains(t, err, "the store has secrets, encrypted with the keys one: give the API its keys")
	require.ErrorContains(t, err, "--secrets-key-file")
	_, err = Open(t.Context(), Config{Store: store, Notify: new(ear).notify, Kinds: []Kind{{Name: "gadgets", Schema: []byte(secretSchema)}}})
	require.ErrorContains(t, err, "Config.Kinds[0].Schema of gadgets")
}

// client is one with a token, over a real connection.
func (v *vaulted) client(token string) *client {
	v.t.Helper()
	srv := httptest.NewServer(v.Handler())
	v.t.Cleanup(srv.Close)
	c, err := apiclient.New[doc, doc](apiclient.Config{URL: srv.URL, HTTP: srv.Client(), Token: apiclient.StaticToken(token), Tries: 1}, "widgets")
	require.NoError(v.t, err)
	return c
}

// password follows a watch to the next object, and returns its password.
func (f *follower) password() any {
	f.t.Helper()
	for {
		e, err, _ := f.next()
		require.NoError(f.t, err)
		f.cursor = e.Cursor
		if e.Object != nil {
			return e.Object.Spec["password"]
		}
	}
}

// TestWatchesHideSecrets: in what there is, in what changes, and in what is caught up with.
func TestWatchesHideSecrets(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	running(t, v.API)
	require.Eventually(t, func() bool { return v.feed.open() == nil }, time.Minute, time.Millisecond)
	v.want(201, "PUT", listPath+"/blue", v.admin, `{"spec":{"password":"hunter2"}}`)
	roles := []struct {
		token string
		reads bool
		watch *follower
	}{{v.viewer, false, nil}, {v.editor, false, nil}, {v.controller, true, nil}, {v.admin, true, nil}}
	password := func(reads bool, value string) string {
		if reads {
			return value
		}
		return "REDACTED"
	}
	for i := range roles {
		r := &roles[i]
		r.watch = follow(t, v.client(r.token))
		require.Equal(t, password(r.reads, hunter2), r.watch.password())
		r.watch.want("synced")
	}
	require.Eventually(t, func() bool { return v.feed.count() == len(roles) }, time.Minute, time.Millisecond)
	v.want(200, "PUT", listPath+"/blue", v.admin, `{"spec":{"password":"hunter2-live"}}`)
	for _, r := range roles {
		require.Equal(t, password(r.reads, "hunter2-live"), r.watch.password())
		r.watch.stop()
	}
	v.want(200, "PUT", listPath+"/blue", v.admin, `{"spec":{"password":"hunter2-late"}}`)
	for _, r := range roles {
		require.Equal(t, password(r.reads, "hunter2-late"), follow(t, v.client(r.token), apiclient.From(r.watch.cursor)).password())
		require.Equal(t, password(r.reads, "hunter2-late"), follow(t, v.client(r.token), apiclient.WatchNamed("blue")).password())
	}
}
