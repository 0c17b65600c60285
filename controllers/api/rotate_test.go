package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// rotate runs RotateSecrets to its end.
func rotate(t *testing.T, store string, ids ...string) Rotation {
	t.Helper()
	done, err := RotateSecrets(t.Context(), store, keyring(t, ids...), nil)
	require.NoError(t, err)
	return done
}

// whole is a row as it is, but for how its secrets are encrypted.
func (v *vaulted) whole(name string) string {
	v.t.Helper()
	r, err := find(v.t.Context(), v.store.read, v.store.vault, objects.Key{Kind: "widgets", Name: name}, "")
	require.NoError(v.t, err)
	r.stored = stored{}
	return fmt.Sprintf("%+v", r)
}

// TestRotationChangesNothingButKeys: afterwards the old key is not needed, and nobody was told of anything.
func TestRotationChangesNothingButKeys(t *testing.T) {
	store := newStore(t)
	v := withSecrets(t, store, "old")
	for i := range resealAtOnce + 5 {
		v.want(201, "PUT", fmt.Sprintf("%s/w-%03d", listPath, i), v.admin, fmt.Sprintf(`{"spec":{"password":"hunter2-%d","host":"x"}}`, i))
	}
	v.want(201, "PUT", listPath+"/without", v.admin, `{"spec":{"host":"x"}}`)
	running(t, v.API)
	require.Eventually(t, func() bool { return v.feed.open() == nil }, time.Minute, time.Millisecond)
	w := follow(t, v.client(v.controller), apiclient.WatchNamed("w-007"))
	w.want("reset", "put w-007", "synced")
	require.NoError(t, v.Flush(t.Context()))
	before, state := v.whole("w-007"), changes(t, v.API)

	var told []Rotation
	done, err := RotateSecrets(t.Context(), store, keyring(t, "new", "old"), func(r Rotation) { told = append(told, r) })
	require.NoError(t, err)
	require.Equal(t, Rotation{Looked: resealAtOnce + 6, Encrypted: resealAtOnce + 5, Used: map[string]int{"new": resealAtOnce + 5}, Requests: map[string]int{}}, done)
	require.Len(t, told, 2)
	require.Equal(t, resealAtOnce, told[0].Looked)
	again := rotate(t, store, "new", "old")
	require.Zero(t, again.Encrypted, "it is done")

	after := withSecrets(t, store, "new")
	require.Equal(t, before, after.whole("w-007"))
	require.Equal(t, state, changes(t, after.API))
	require.Equal(t, "map[host:x password:hunter2-204]", after.spec("w-204"))
	_, dirty := rows(t, after.API)
	require.Zero(t, dirty)
	after.want(200, "PUT", listPath+"/w-007", after.admin, `{"spec":{"password":"hunter2-next"}}`)
	require.Equal(t, "", w.passwordOrError(), "and the API that has only the old key says so")
	require.NotContains(t, after.stored(), hunter2)
}

// passwordOrError is password of a watch that may be told of a sealed object: empty then.
func (f *follower) passwordOrError() string {
	f.t.Helper()
	e, err, _ := f.next()
	if err != nil {
		require.ErrorIs(f.t, err, apiclient.ErrSealed)
		return ""
	}
	return fmt.Sprint(e.Object.Spec["password"])
}

// changes counts what watchers are told.
func changes(t *testing.T, a *API) (n int) {
	t.Helper()
	require.NoError(t, a.store.read.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM changes`).Scan(&n))
	return n
}

// TestRotationGoesOnBesideWrites: neither loses what the other has done.
func TestRotationGoesOnBesideWrites(t *testing.T) {
	store := newStore(t)
	old, both := withSecrets(t, store, "old"), withSecrets(t, store, "new", "old")
	const n = 8
	for i := range n {
		old.want(201, "PUT", fmt.Sprintf("%s/w-%d", listPath, i), old.admin, `{"spec":{"size":0,"password":"hunter2"}}`)
	}
	var writing errgroup.Group
	for i := range n {
		writing.Go(func() error {
			path := fmt.Sprintf("%s/w-%d", listPath, i)
			for size := range 20 {
				body := fmt.Sprintf(`{"spec":{"size":%d,"password":"hunter2-%d"}}`, size+1, size+1)
				if got := both.ask("PUT", path, both.admin, body); got.status != 200 {
					return fmt.Errorf("%d %s", got.status, got.body)
				}
				if got := both.ask("POST", path+"/retry", both.admin, ""); got.status != 202 {
					return fmt.Errorf("%d %s", got.status, got.body)
				}
			}
			return nil
		})
	}
	for range 5 {
		rotate(t, store, "new", "old")
		rotate(t, store, "old", "new") // so that there is always something to do
	}
	require.NoError(t, writing.Wait())
	done := rotate(t, store, "new", "old")
	require.Equal(t, map[string]int{"new": n}, done.Used)
	after := withSecrets(t, store, "new")
	for i := range n {
		require.Equal(t, "map[password:hunter2-20 size:20]", after.spec(fmt.Sprintf("w-%d", i)))
	}
}

// TestRotationComesSecond: what somebody wrote meanwhile is neither undone nor left with the old key, and a write that had
// read the object before begins anew.
func TestRotationComesSecond(t *testing.T) {
	store := newStore(t)
	v, both := withSecrets(t, store, "old"), withSecrets(t, store, "new", "old")
	v.want(201, "PUT", listPath+"/blue", v.admin, `{"spec":{"password":"hunter2-a"}}`)
	k := objects.Key{Kind: "widgets", Name: "blue"}
	require.NoError(t, both.store.vault.ready(t.Context()))
	read, err := find(t.Context(), both.store.read, both.store.vault, k, "")
	require.NoError(t, err)
	v.want(200, "PUT", listPath+"/blue", v.admin, `{"spec":{"password":"hunter2-b"}}`)
	written, err := both.store.reseal(t.Context(), &read)
	require.NoError(t, err)
	require.False(t, written)
	read, err = find(t.Context(), both.store.read, both.store.vault, k, "")
	require.NoError(t, err)

	var done Rotation
	stale := read
	stale.object.Revision-- // as if it had been read before
	r := &rotating{store: both.store, done: &done}
	require.NoError(t, r.one(t.Context(), &stale))
	require.Equal(t, Rotation{Looked: 1, Encrypted: 1}, done)
	require.Equal(t, "map[password:hunter2-b]", both.spec("blue"))
	err = both.store.transact(t.Context(), func(tx *transaction) error { return read.update(t.Context(), tx, &read.object, objects.Effect{}) })
	require.ErrorIs(t, err, errLostRace, "it would take back the envelope")
}

// TestRotationEncryptsWhatWasPlain, because its kind came to have secrets when it was there, and what is secret no more is
// plain.
func TestRotationEncryptsWhatWasPlain(t *testing.T) {
	store := newStore(t)
	v := withSecrets(t, store, "one")
	v.want(200, "PUT", "/v1/kinds/widgets", v.admin, `{"schema":{"type":"object"}}`)
	v.want(201, "POST", listPath, v.admin, `{"name":"blue","spec":{"password":"hunter2"}}`, "Idempotency-Key", "k")
	_, err := v.store.write.ExecContext(t.Context(), `UPDATE requests SET hash_key = '', body_hash = 'of-the-body'`)
	require.NoError(t, err, "as an API without keys leaves it")
	v.want(200, "PUT", "/v1/kinds/widgets", v.admin, `{"schema":`+secretSchema+`}`)
	require.NotContains(t, v.want(200, "GET", listPath+"/blue", v.viewer, "").body, hunter2, "it is hidden at once")
	done := rotate(t, store, "one")
	require.Equal(t, 1, done.Encrypted)
	var spec, hash string
	require.NoError(t, v.store.read.QueryRowContext(t.Context(), `SELECT spec FROM objects WHERE name = 'blue'`).Scan(&spec))
	require.NotContains(t, spec, hunter2)
	require.NoError(t, v.store.read.QueryRowContext(t.Context(), `SELECT body_hash FROM requests`).Scan(&hash))
	require.Empty(t, hash)
	v.want(422, "POST", listPath, v.admin, `{"name":"blue","spec":{"password":"hunter2"}}`, "Idempotency-Key", "k")
	require.Contains(t, v.spec("blue"), hunter2)

	v.want(200, "PUT", "/v1/kinds/widgets", v.admin, `{"schema":{"type":"object"}}`)
	done = rotate(t, store, "one")
	require.Equal(t, 1, done.Encrypted)
	require.Empty(t, done.Used)
	require.Contains(t, v.want(200, "GET", listPath+"/blue", v.viewer, "").body, hunter2)
}

// TestMissingKeyHidesNoOtherObject: it is named to who reads secrets, and all else goes on: lists, watches, notifications,
// deletions.
func TestMissingKeyHidesNoOtherObject(t *testing.T) {
	store := newStore(t)
	old := withSecrets(t, store, "old")
	for _, name := range []string{"blue", "doomed", "lost", "next"} {
		old.want(201, "PUT", listPath+"/"+name, old.admin, `{"spec":{"host":"x","password":"hunter2-`+name+`","users":[{"name":"ann","password":"hunter2"}]}}`)
	}
	v := withSecrets(t, store, "new")
	require.Contains(t, v.logs.String(), `"key"="old" "objects"=4`)
	v.want(201, "PUT", listPath+"/here", v.admin, `{"spec":{"password":"hunter2-here"}}`)

	for _, token := range []string{v.admin, v.controller} {
		got := v.want(500, "GET", listPath+"/lost", token, "")
		require.Equal(t, "/problems/sealed", got.problem.Type)
		require.Contains(t, got.problem.Detail, `widgets/lost: its secrets cannot be decrypted here: decrypt with key "old": the key is not there`)
		listed := v.want(200, "GET", listPath, token, "")
		require.Contains(t, listed.body, "hunter2-here")
		require.Equal(t, 4, strings.Count(listed.body, `"spec":null`), "a controller would take anything else for a spec")
		require.Equal(t, 4, strings.Count(listed.body, `"sealed":"its secrets cannot`))
	}
	for _, token := range []string{v.viewer, v.editor} {
		require.Contains(t, v.want(200, "GET", listPath+"/lost", token, "").body, `"password":"REDACTED"`, "who sees no secrets misses none")
		listed := v.want(200, "GET", listPath+"?fields=spec.host=x", token, "")
		require.Equal(t, 4, strings.Count(listed.body, `"host":"x"`))
		require.NotContains(t, listed.body, "sealed")
	}
	c := v.client(v.controller)
	var names, sealed []string
	for o, err := range c.All(t.Context()) {
		if err != nil {
			require.ErrorIs(t, err, apiclient.ErrSealed)
			sealed = append(sealed, err.Error())
			continue
		}
		names = append(names, o.Name)
	}
	require.Equal(t, []string{"here"}, names)
	require.Len(t, sealed, 4)
	require.Contains(t, sealed[0], "blue")
	_, err := c.Get(t.Context(), "lost")
	require.ErrorIs(t, err, apiclient.ErrSealed)
	require.NotErrorIs(t, err, apiclient.ErrUnavailable, "the API is not out of reach")

	running(t, v.API)
	require.NoError(t, v.Flush(t.Context()))
	w := follow(t, c)
	w.want("reset")
	for range 2 {
		require.Empty(t, w.passwordOrError())
	}
	require.Equal(t, "hunter2-here", w.passwordOrError())

	v.want(200, "POST", listPath+"/lost/pause", v.editor, "")
	paused := v.want(200, "POST", listPath+"/blue/pause", v.admin, "")
	require.Contains(t, paused.body, `"spec":null`)
	v.want(200, "PATCH", listPath+"/lost", v.editor, `{"labels":{"a":"b"}}`)
	v.want(204, "DELETE", listPath+"/doomed", v.editor, "")
	uid := v.uid("lost")
	require.Equal(t, "/problems/sealed", v.want(500, "PATCH", listPath+"/lost/status", v.controller, `{"uid":"`+uid+`","fence":1}`).problem.Type,
		"nobody can have reconciled it here")
	for _, body := range []string{
		`{"spec":{"host":"y","password":"REDACTED"}}`, `{"spec":{"host":"y","password":"hunter2","users":[{"name":"ann","password":"REDACTED"}]}}`,
	} {
		got := v.want(500, "PUT", listPath+"/lost", v.editor, body)
		require.Equal(t, "/problems/sealed", got.problem.Type)
		require.Contains(t, got.problem.Detail, "give all of its secrets")
		require.NotContains(t, got.body, hunter2)
	}
	v.want(500, "PATCH", listPath+"/lost", v.admin, `{"spec":{"host":"y"}}`)
	require.Contains(t, old.spec("lost"), "hunter2-lost", "nothing of it was lost")
	require.Contains(t, old.spec("blue"), "hunter2-blue")

	done := rotate(t, store, "new")
	require.Equal(t, map[string]int{"new": 1, "old": 3}, done.Used)
	require.Len(t, done.Left, 3)
	require.Contains(t, done.Left[0], `widgets/blue: its secrets cannot be decrypted here: decrypt with key "old"`)
	v.want(200, "PUT", listPath+"/lost", v.editor, `{"spec":{"host":"y","password":"hunter2-anew"}}`)
	require.Equal(t, "map[host:y password:hunter2-anew]", v.spec("lost"))
	require.NotContains(t, v.stored()+v.logs.String(), hunter2)
}

// uid is that of a widget, as a viewer reads it.
func (v *vaulted) uid(name string) string {
	v.t.Helper()
	var o struct{ UID string }
	decode(v.t, v.want(200, "GET", listPath+"/"+name, v.viewer, "").body, &o)
	return o.UID
}

// TestMovedSecretsAreNotShown: who can write to the database cannot have the API read one object's secret in another's place.
func TestMovedSecretsAreNotShown(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	v.want(201, "PUT", listPath+"/blue", v.admin, `{"spec":{"password":"hunter2"}}`)
	v.want(201, "PUT", listPath+"/red", v.admin, `{"spec":{"password":"mine"}}`)
	_, err := v.store.write.ExecContext(t.Context(), `UPDATE objects SET spec = (SELECT spec FROM objects WHERE name = 'blue'),
		sealed = (SELECT sealed FROM objects WHERE name = 'blue') WHERE name = 'red'`)
	require.NoError(t, err)
	got := v.want(500, "GET", listPath+"/red", v.admin, "")
	require.Contains(t, got.problem.Detail, "it was encrypted elsewhere or with another key, or was changed")
	require.NotContains(t, got.body+v.want(200, "GET", listPath+"/red", v.viewer, "").body, hunter2)
	_, err = v.store.write.ExecContext(t.Context(), `UPDATE objects SET sealed = 'no envelope' WHERE name = 'red'`)
	require.NoError(t, err)
	for _, token := range []string{v.viewer, v.admin} {
		v.want(500, "GET", listPath+"/red", token, "")
		listed := v.want(200, "GET", listPath, token, "").body
		require.Contains(t, listed, `"spec":null`)
		require.Contains(t, listed, "the envelope is broken")
		require.Contains(t, listed, `"name":"blue"`)
	}
	v.want(200, "PUT", listPath+"/red", v.editor, `{"spec":{"password":"hunter2"}}`)
	require.Contains(t, v.spec("red"), hunter2)
}
