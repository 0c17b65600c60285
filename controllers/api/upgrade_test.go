package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// TestUpgradeBringsObjectsToTheCurrentVersion, without anybody noticing; then the old version can go.
func TestUpgradeBringsObjectsToTheCurrentVersion(t *testing.T) {
	store := newStore(t)
	specs := map[string]doc{}
	for i := range 2*upgradedAtOnce + 7 {
		specs[fmt.Sprintf("m-%03d", i)] = doc{"size": "large"}
	}
	made(t, store, specs)
	v := serve(t, store, machinesOf(3))
	ks := v.kindsClient()
	before := map[string]*apiclient.Object[doc, doc]{}
	for o, err := range v.at("").All(t.Context()) {
		require.NoError(t, err)
		before[o.Name] = o
	}
	changes := rowsIn(t, v.API, "changes")
	_, err := ks.Define(t.Context(), apiclient.Kind{Kind: "machines", Schema: SchemaOf[machine3](), Version: "v3", Versions: []apiclient.KindVersion{{Name: "v2", Schema: SchemaOf[machine2]()}}})
	require.ErrorIs(t, err, apiclient.ErrConflict)
	require.ErrorContains(t, err, "207 in v1")

	var parts []apiclient.Upgrade
	done, err := ks.Upgrade(t.Context(), "machines", func(u apiclient.Upgrade) { parts = append(parts, u) })
	require.NoError(t, err)
	require.Equal(t, apiclient.Upgrade{Upgraded: 207, Stored: map[string]int64{"v3": 207}}, done)
	require.Len(t, parts, 3)
	require.Equal(t, map[string]int64{"v1": 107, "v3": 100}, parts[0].Stored)
	for o, err := range v.at(apiclient.AsStored).All(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, before[o.Name], o, "it was shown like that before")
	}
	require.Equal(t, changes, rowsIn(t, v.API, "changes"), "watches are told nothing")
	require.NoError(t, v.Flush(t.Context()))
	require.Empty(t, v.ear.drain())
	done, err = ks.Upgrade(t.Context(), "machines", nil)
	require.NoError(t, err)
	require.Zero(t, done.Upgraded)
	k, err := ks.Put(t.Context(), "machines", SchemaOf[machine3]())
	require.ErrorIs(t, err, apiclient.ErrConflict, "v3 has to stay: %v", k)
	_, err = ks.Define(t.Context(), apiclient.Kind{Kind: "machines", Schema: SchemaOf[machine3](), Version: "v3"})
	require.NoError(t, err)
	_, err = v.at("v1").Get(t.Context(), "m-000")
	require.ErrorContains(t, err, "want one of v3")
	_, err = ks.Upgrade(t.Context(), "gadgets", nil)
	require.ErrorIs(t, err, apiclient.ErrNotFound)
}

func rowsIn(t *testing.T, a *API, table string) (n int) {
	t.Helper()
	require.NoError(t, a.store.read.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n))
	return n
}

// TestUpgradeLeavesWhatCannotBeConverted, with the reason, and upgrades everything else.
func TestUpgradeLeavesWhatCannotBeConverted(t *testing.T) {
	v, h := hooked(t, newStore(t))
	old := v.of("widgets").At("v1")
	for i := range 20 {
		size := i
		if i == 7 || i == 13 {
			size = 2000 // which is too many for the schema of v2
		}
		v.insertOld(fmt.Sprintf("w-%02d", i), fmt.Sprintf(`{"size":%d}`, size))
	}
	v.insertOld("w-66", `{"size":666}`) // which the hook refuses
	done, err := v.kindsClient().Upgrade(t.Context(), "widgets", nil)
	require.NoError(t, err)
	require.Equal(t, 21, done.Upgraded)
	require.Equal(t, map[string]int64{"v1": 3, "v2": 22}, done.Stored)
	left := map[string]string{}
	for _, l := range done.Left {
		left[l.Name] = l.Reason
	}
	require.Len(t, left, 3)
	require.Contains(t, left["w-07"], "does not suit the schema; spec.count: want at most 1000")
	require.Contains(t, left["w-66"], "the hook answers 422, want 200")
	require.NotContains(t, fmt.Sprint(left), "hunter2")
	o, err := old.Get(t.Context(), "w-66")
	require.NoError(t, err, "in its version it needs no hook")
	require.Equal(t, doc{"size": 666.0}, o.Spec)
	h.setAnswer(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusServiceUnavailable) })
	_, err = v.kindsClient().Upgrade(t.Context(), "widgets", nil)
	require.ErrorIs(t, err, apiclient.ErrConversion, "it would be so for each of them")
}

// insertOld makes a widget as it was stored when v1 was the current version.
func (v *versioned) insertOld(name, spec string) {
	v.t.Helper()
	k := objects.Key{Kind: "widgets", Name: name}
	_, err := v.store.create(v.t.Context(), k, objects.Wanted{Spec: json.RawMessage(spec), Admit: func(_ *apiclient.Raw, wanted json.RawMessage) (json.RawMessage, string, error) {
		return wanted, "v1", nil
	}}, requestKey{})
	require.NoError(v.t, err)
}

// TestUpgradeWhileOthersWrite: whoever writes an object while it is converted loses nothing, and in the end all are upgraded.
func TestUpgradeWhileOthersWrite(t *testing.T) {
	v, h := hooked(t, newStore(t))
	for i := range 30 {
		v.insertOld(fmt.Sprintf("w-%02d", i), fmt.Sprintf(`{"size":%d}`, i))
	}
	now := v.of("widgets")
	first := true
	h.setAnswer(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		was := first
		first = false
		h.mu.Unlock()
		if was { // in the middle of the first conversion
			for _, do := range []func() error{
				func() error { _, err := now.Put(t.Context(), "w-00", doc{"count": 100}); return err },
				func() error { _, err := now.At(apiclient.AsStored).Pause(t.Context(), "w-01"); return err },
				func() error { _, err := now.At(apiclient.AsStored).Delete(t.Context(), "w-02"); return err },
				func() error { _, err := now.At("v1").Put(t.Context(), "w-03", doc{"size": 103}); return err },
			} {
				if err := do(); err != nil {
					t.Error(err)
				}
			}
		}
		h.convert(w, r)
	})
	done, err := v.kindsClient().Upgrade(t.Context(), "widgets", nil)
	require.NoError(t, err)
	require.Empty(t, done.Left)
	require.Equal(t, map[string]int64{"v2": 33}, done.Stored)
	for name, want := range map[string]doc{"w-00": {"count": 100.0}, "w-01": {"count": 1.0}, "w-03": {"count": 103.0}, "w-04": {"count": 4.0}} {
		o, err := now.Get(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, want, o.Spec, name)
		require.Equal(t, name == "w-01", o.Paused)
	}
	_, err = now.Get(t.Context(), "w-02")
	require.ErrorIs(t, err, apiclient.ErrNotFound)
}

// TestUpgradesUnderLoad: upgrades and writers of all kinds at once, for the race detector and the databases.
func TestUpgradesUnderLoad(t *testing.T) {
	store := newStore(t)
	specs := map[string]doc{}
	for i := range 12 {
		specs[fmt.Sprintf("m-%02d", i)] = doc{"size": "small"}
	}
	made(t, store, specs)
	v, other := serve(t, store, machinesOf(3)), serve(t, store, machinesOf(3))
	var all sync.WaitGroup
	for name := range specs {
		all.Go(func() {
			for n := range 4 {
				for _, write := range []func() error{
					func() error { _, err := v.at("v1").Patch(t.Context(), name, doc{"note": fmt.Sprint(n)}); return err },
					func() error { _, err := other.at("v3").Patch(t.Context(), name, doc{"spot": n == 3}); return err },
					func() error { _, err := other.at("").Retry(t.Context(), name); return err },
				} {
					for err := write(); err != nil; err = write() {
						if !errors.Is(err, apiclient.ErrUnavailable) {
							t.Error(err)
							return
						}
					}
				}
			}
		})
	}
	for range 2 {
		all.Go(func() {
			if _, err := other.kindsClient().Upgrade(t.Context(), "machines", nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	done, err := v.kindsClient().Upgrade(t.Context(), "machines", nil)
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"v3": 12}, done.Stored)
	for o, err := range v.at("").All(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, doc{"cores": 2.0, "zones": []any{"a"}, "note": "3", "spot": true}, o.Spec)
	}
}

// TestLateWritersDoNotBringVersionsBack: an API that has not heard yet that a version is not served any more stores nothing in it.
func TestLateWritersDoNotBringVersionsBack(t *testing.T) {
	store := newStore(t)
	late := serve(t, store, machinesOf(1))
	o, err := late.at("").Create(t.Context(), "blue", doc{"size": "small"})
	require.NoError(t, err)
	require.Equal(t, "v1", o.Version)
	v := serve(t, store, machinesOf(2))
	_, err = v.kindsClient().Upgrade(t.Context(), "machines", nil)
	require.NoError(t, err)
	_, err = v.kindsClient().Define(t.Context(), apiclient.Kind{Kind: "machines", Schema: SchemaOf[machine2](), Version: "v2"})
	require.NoError(t, err)

	late.kinds.mu.Lock()
	late.kinds.readAt = time.Now().Add(time.Hour) // it has just looked
	late.kinds.mu.Unlock()
	_, err = late.at("").Create(t.Context(), "red", doc{"size": "small"})
	require.Equal(t, []string{"body.spec.cores", "body.spec.size"}, fields(t, err), "it looks again, and knows the new version")
	_, err = late.at("").Create(t.Context(), "red", doc{"cores": 1})
	require.NoError(t, err)
	k, err := v.kindsClient().Get(t.Context(), "machines")
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"v2": 2}, k.Stored)
}

// TestReadersHearOfNewVersions: an API that reads a row in a version that it has not heard of, or is asked for one, looks again.
func TestReadersHearOfNewVersions(t *testing.T) {
	store := newStore(t)
	v := serve(t, store, machinesOf(2))
	_, err := v.at("").Create(t.Context(), "blue", doc{"cores": 3})
	require.NoError(t, err)
	late := serve(t, store)
	late.kinds.hooks["machines"] = v.kinds.hooks["machines"]
	for name, read := range map[string]func() error{
		"get":    func() error { _, err := late.at("").Get(t.Context(), "blue"); return err },
		"get v2": func() error { _, err := late.at("v2").Get(t.Context(), "blue"); return err },
		"put v2": func() error {
			_, err := late.at("v2").Put(t.Context(), "blue", doc{"cores": 3, "note": "x"})
			return err
		},
		"put":   func() error { _, err := late.at("").Put(t.Context(), "blue", doc{"cores": 3, "note": "x"}); return err },
		"patch": func() error { _, err := late.at("v1").Patch(t.Context(), "blue", doc{"note": "x"}); return err },
		"pause": func() error { _, err := late.at("").Pause(t.Context(), "blue"); return err },
		"list": func() error {
			for _, err := range late.at("").All(t.Context()) {
				return err
			}
			return errors.New("nothing is there")
		},
	} {
		old, err := late.kinds.compile("machines", definition{Schema: SchemaOf[machine1](), Version: "v1"})
		require.NoError(t, err)
		late.kinds.mu.Lock()
		late.kinds.readAt = time.Now().Add(time.Hour)
		late.kinds.known = map[string]*knownKind{"machines": old}
		late.store.vault.schemas.Store(&late.kinds.known)
		late.kinds.mu.Unlock()
		require.NoError(t, read(), name)
	}
	o, err := v.at("").Get(t.Context(), "blue")
	require.NoError(t, err)
	require.Equal(t, doc{"cores": 3.0, "zone": "a", "note": "x"}, o.Spec)
}

// TestSecretsInAllVersions: hidden by the schema of the version that is shown, encrypted by that of the one that is stored.
func TestSecretsInAllVersions(t *testing.T) {
	v := withSecrets(t, newStore(t), "one")
	h := newHook(t, httptest.NewServer)
	define := func(current, old string, conversion string) string {
		return fmt.Sprintf(`{"schema":%s,"version":%s,"versions":[%s]%s}`, current, map[bool]string{true: `"v2"`, false: `"v1"`}[old != ""], old, conversion)
	}
	const schema1, schema2 = `{"type":"object","properties":{"size":{"type":"string","x-sensitive":true}}}`,
		`{"type":"object","properties":{"count":{"type":"string","x-sensitive":true,"x-immutable":true},"keep":{}}}`
	v.want(201, "PUT", "/v1/kinds/vaults", v.admin, define(schema1, "", ""))
	v.want(201, "POST", "/v1/objects/vaults", v.admin, `{"name":"old","spec":{"size":"hunter2"}}`)
	v.want(200, "PUT", "/v1/kinds/vaults", v.admin, define(schema2, `{"name":"v1","schema":`+schema1+`}`, `,"conversion":{"url":"`+h.srv.URL+`"}`))
	v.want(201, "POST", "/v1/objects/vaults?version=v1", v.admin, `{"name":"new","spec":{"size":"hunter2"}}`)
	rows := func() string {
		var all []string
		got, err := v.store.read.QueryContext(t.Context(), `SELECT spec FROM objects WHERE kind = 'vaults'`)
		require.NoError(t, err)
		defer got.Close()
		for got.Next() {
			var spec string
			require.NoError(t, got.Scan(&spec))
			all = append(all, spec)
		}
		require.NoError(t, got.Err())
		return strings.Join(all, " ")
	}
	_, editor := v.token(access.Editor)
	check := func() {
		for _, name := range []string{"old", "new"} {
			for _, version := range []string{"", "?version=v1", "?version=v2", "?version=*"} {
				require.NotContains(t, v.want(200, "GET", "/v1/objects/vaults/"+name+version, v.viewer, "").body, "hunter2")
				require.NotContains(t, v.want(200, "GET", "/v1/objects/vaults"+version, v.viewer, "").body, "hunter2")
				require.Contains(t, v.want(200, "GET", "/v1/objects/vaults/"+name+version, v.admin, "").body, "hunter2")
				v.want(202, "POST", "/v1/objects/vaults/"+name+"/retry"+version, editor, "")
			}
		}
		require.NotContains(t, rows(), "hunter2")
	}
	check()
	require.NotContains(t, v.want(200, "PUT", "/v1/objects/vaults/new?version=v1", editor, `{"spec":{"size":"REDACTED"}}`).body, "hunter2")
	v.want(422, "GET", "/v1/objects/vaults?version=v1&fields=spec.size=x", v.admin, "")
	v.want(422, "GET", "/v1/objects/vaults?version=*&fields=spec.size=x", v.admin, "")
	check()
	v.want(200, "POST", "/v1/kinds/vaults/upgrade", v.admin, "")
	check()
	require.Contains(t, v.want(200, "GET", "/v1/kinds/vaults", v.admin, "").body, `"stored":{"v2":2}`)
}

// TestSealedObjectsStayInTheirVersion: without its key an object cannot be converted, which is said of it and of no other.
func TestSealedObjectsStayInTheirVersion(t *testing.T) {
	store := newStore(t)
	h := newHook(t, httptest.NewServer)
	const secret1, secret2 = `{"type":"object","properties":{"size":{"type":"integer","x-sensitive":true}}}`, `{"type":"object","properties":{"count":{"type":"integer","x-sensitive":true}}}`
	v := withSecrets(t, store, "one")
	v.want(201, "PUT", "/v1/kinds/vaults", v.admin, `{"schema":`+secret1+`,"version":"v1"}`)
	v.want(201, "POST", "/v1/objects/vaults", v.admin, `{"name":"lost","spec":{"size":4711}}`)
	v.want(200, "PUT", "/v1/kinds/vaults", v.admin, `{"schema":`+secret2+`,"version":"v2","versions":[{"name":"v1","schema":`+secret1+`}],"conversion":{"url":"`+h.srv.URL+`"}}`)
	v = withSecrets(t, store, "two")
	v.want(201, "POST", "/v1/objects/vaults", v.admin, `{"name":"there","spec":{"count":1}}`)
	for _, version := range []string{"", "?version=v1", "?version=v2", "?version=*"} {
		require.Equal(t, "/problems/sealed", v.want(500, "GET", "/v1/objects/vaults/lost"+version, v.admin, "").problem.Type)
		list := v.want(200, "GET", "/v1/objects/vaults"+version, v.admin, "").body
		require.Contains(t, list, `"name":"there"`)
		require.Contains(t, list, `"sealed":"its secrets cannot be decrypted here`)
		require.NotContains(t, list, "4711")
	}
	require.Equal(t, "/problems/sealed", v.want(500, "PUT", "/v1/objects/vaults/lost", v.admin, `{"spec":{"count":1}}`).problem.Type)
	require.Equal(t, "/problems/sealed", v.want(500, "PUT", "/v1/objects/vaults/lost?version=v1", v.admin, `{"spec":{"size":1}}`).problem.Type)
	done := v.want(200, "POST", "/v1/kinds/vaults/upgrade", v.admin, "").body
	require.Contains(t, done, `"left":[{"name":"lost","reason":"its secrets cannot be decrypted here`)
	v.want(204, "DELETE", "/v1/objects/vaults/lost", v.admin, "")
	require.Equal(t, []string{"vaults v2>v1 1"}, h.called(), "for the other one")
}
