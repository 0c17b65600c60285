package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// The versions of a kind of machines: each says something that the ones before cannot.
type (
	machine1 struct {
		Size string `json:"size" jsonschema:"enum=small,enum=large,enum=huge"`
		Note string `json:"note,omitempty" jsonschema:"maxLength=20"`
	}
	machine2 struct {
		Cores int    `json:"cores" jsonschema:"minimum=1"`
		Zone  string `json:"zone" jsonschema:"default=a" jsonschema_extras:"x-immutable=true"`
		Note  string `json:"note,omitempty"`
	}
	machine3 struct {
		Cores int      `json:"cores" jsonschema:"minimum=1,maximum=16"`
		Zones []string `json:"zones"`
		Note  string   `json:"note,omitempty"`
		Spot  bool     `json:"spot,omitempty"`
	}
)

var errTooSmall = errors.New("secret-in-an-error")

func up1(old machine1, now *machine2) (machine2, error) {
	to := machine2{Cores: map[string]int{"small": 2, "large": 8, "huge": 64}[old.Size], Zone: "a", Note: old.Note}
	if now != nil {
		to.Zone = now.Zone
		if size, _ := down1(*now); size.Size == old.Size {
			to.Cores = now.Cores
		}
	}
	return to, nil
}

func down1(m machine2) (machine1, error) {
	switch {
	case m.Cores == 13:
		return machine1{}, errTooSmall
	case m.Cores == 14:
		panic("secret in a panic")
	case m.Cores < 8:
		return machine1{Size: "small", Note: m.Note}, nil
	}
	return machine1{Size: "large", Note: m.Note}, nil
}

func up2(old machine2, now *machine3) (machine3, error) {
	to := machine3{Cores: old.Cores, Zones: []string{old.Zone}, Note: old.Note}
	if now != nil {
		to.Spot, to.Zones = now.Spot, append([]string{old.Zone}, now.Zones[1:]...)
	}
	return to, nil
}

func down2(m machine3) (machine2, error) {
	return machine2{Cores: m.Cores, Zone: m.Zones[0], Note: m.Note}, nil
}

// machinesOf is the kind with so many versions.
func machinesOf(n int) Kind {
	v1, v2 := VersionOf("v1", up1, down1), VersionOf("v2", up2, down2)
	return []Kind{
		{Name: "machines", Schema: SchemaOf[machine1](), Version: "v1"},
		{Name: "machines", Schema: SchemaOf[machine2](), Version: "v2", Older: []Version{v1}},
		{Name: "machines", Schema: SchemaOf[machine3](), Version: "v3", Older: []Version{v1, v2}},
	}[n-1]
}

// versioned is an API with a kind of machines, over a real connection.
type versioned struct {
	*API
	t   *testing.T
	srv *httptest.Server
	ear *ear
}

func serve(t *testing.T, store string, kinds ...Kind) *versioned {
	t.Helper()
	e := new(ear)
	a, err := Open(t.Context(), Config{Store: store, Notify: e.notify, Access: Access{Insecure: true}, Kinds: kinds})
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	srv := httptest.NewServer(a.Handler())
	t.Cleanup(srv.Close)
	return &versioned{API: a, t: t, srv: srv, ear: e}
}

// at is a client of machines in a version.
func (v *versioned) at(version string) *apiclient.Client[doc, doc] {
	return v.of("machines").At(version)
}

func (v *versioned) of(kind string) *apiclient.Client[doc, doc] {
	c, err := apiclient.New[doc, doc](apiclient.Config{URL: v.srv.URL, HTTP: v.srv.Client(), Tries: 1}, kind)
	require.NoError(v.t, err)
	return c
}

func (v *versioned) kindsClient() *apiclient.Kinds { return kindsOf(v.t, v.API) }

// stored is the spec of a machine as it is in its row, with its version.
func (v *versioned) stored(name string) (version, spec string) {
	v.t.Helper()
	require.NoError(v.t, v.store.read.QueryRowContext(v.t.Context(), `SELECT version, spec FROM objects WHERE kind = 'machines' AND name = $1`, name).Scan(&version, &spec))
	return version, spec
}

// made makes machines while the kind has one version, so that they are stored in that.
func made(t *testing.T, store string, specs map[string]doc) {
	t.Helper()
	v := serve(t, store, machinesOf(1))
	for name, spec := range specs {
		_, err := v.at("v1").Create(t.Context(), name, spec)
		require.NoError(t, err)
	}
	require.NoError(t, v.Flush(t.Context()))
}

func sizes(t *testing.T, c *apiclient.Client[doc, doc], opts ...apiclient.ListOption) (all []string) {
	t.Helper()
	for o, err := range c.All(t.Context(), opts...) {
		require.NoError(t, err)
		all = append(all, fmt.Sprintf("%s %s %v", o.Name, o.Version, o.Spec))
	}
	return all
}

// TestObjectsAreReadInEachVersion: what was stored in the first version, and what is written in the last one; whoever asks for
// none gets the current one.
func TestObjectsAreReadInEachVersion(t *testing.T) {
	store := newStore(t)
	made(t, store, map[string]doc{"old": {"size": "large", "note": "x"}})
	v := serve(t, store, machinesOf(3))
	_, err := v.at("").Create(t.Context(), "new", doc{"cores": 3, "zones": []string{"b", "c"}, "spot": true})
	require.NoError(t, err)
	require.Equal(t, []string{"new v1 map[size:small]", "old v1 map[note:x size:large]"}, sizes(t, v.at("v1")))
	require.Equal(t, []string{"new v2 map[cores:3 zone:b]", "old v2 map[cores:8 note:x zone:a]"}, sizes(t, v.at("v2")))
	require.Equal(t, []string{"new v3 map[cores:3 spot:true zones:[b c]]", "old v3 map[cores:8 note:x zones:[a]]"}, sizes(t, v.at("v3")))
	require.Equal(t, sizes(t, v.at("v3")), sizes(t, v.at("")))
	require.Equal(t, []string{"new v3 map[cores:3 spot:true zones:[b c]]", "old v1 map[note:x size:large]"}, sizes(t, v.at(apiclient.AsStored)))
	o, err := v.at("v2").Get(t.Context(), "old")
	require.NoError(t, err)
	require.Equal(t, doc{"cores": 8.0, "zone": "a", "note": "x"}, o.Spec)
	require.Equal(t, "v2", o.Version)
	version, _ := v.stored("old")
	require.Equal(t, "v1", version, "reading writes nothing")
}

// TestWritesInOldVersionsLoseNothing of what those versions cannot say.
func TestWritesInOldVersionsLoseNothing(t *testing.T) {
	v := serve(t, newStore(t), machinesOf(3))
	_, err := v.at("v3").Create(t.Context(), "blue", doc{"cores": 3, "zones": []string{"b", "c"}, "spot": true})
	require.NoError(t, err)
	spec := func() doc {
		o, err := v.at("v3").Get(t.Context(), "blue")
		require.NoError(t, err)
		return o.Spec
	}
	o, err := v.at("v1").Put(t.Context(), "blue", doc{"size": "small", "note": "by v1"})
	require.NoError(t, err)
	require.Equal(t, doc{"size": "small", "note": "by v1"}, o.Spec)
	require.Equal(t, "v1", o.Version)
	require.Equal(t, doc{"cores": 3.0, "zones": []any{"b", "c"}, "spot": true, "note": "by v1"}, spec())
	o, err = v.at("v2").Patch(t.Context(), "blue", doc{"cores": 5, "note": nil})
	require.NoError(t, err)
	require.Equal(t, doc{"cores": 5.0, "zone": "b"}, o.Spec)
	require.Equal(t, doc{"cores": 5.0, "zones": []any{"b", "c"}, "spot": true}, spec())
	o, err = v.at("v1").Patch(t.Context(), "blue", doc{"size": "large"}, apiclient.IfRevision(o.Revision))
	require.NoError(t, err)
	require.Equal(t, doc{"cores": 8.0, "zones": []any{"b", "c"}, "spot": true}, spec())
	_, err = v.at("v1").Patch(t.Context(), "blue", doc{"size": "small"}, apiclient.IfRevision(o.Revision-1))
	require.ErrorIs(t, err, apiclient.ErrConflict)
	o, err = v.at("v1").Create(t.Context(), "red", doc{"size": "small"})
	require.NoError(t, err)
	require.Equal(t, doc{"size": "small"}, o.Spec)
	version, stored := v.stored("red")
	require.Equal(t, "v3", version)
	require.JSONEq(t, `{"cores":2,"zones":["a"]}`, stored)
	_, err = v.at("v1").Create(t.Context(), "red", doc{"size": "small"})
	require.ErrorIs(t, err, apiclient.ErrExists)
	_, err = v.at("v1").Patch(t.Context(), "green", doc{"size": "small"})
	require.ErrorIs(t, err, apiclient.ErrNotFound)
}

// TestSameSpecInAnyVersionWritesNothing.
func TestSameSpecInAnyVersionWritesNothing(t *testing.T) {
	store := newStore(t)
	made(t, store, map[string]doc{"old": {"size": "large"}})
	v := serve(t, store, machinesOf(3))
	_, err := v.at("").Create(t.Context(), "new", doc{"cores": 3, "zones": []string{"b", "c"}, "spot": true})
	require.NoError(t, err)
	require.NoError(t, v.Flush(t.Context()))
	v.ear.drain()
	for name, same := range map[string][]doc{
		"new": {{"size": "small"}, {"cores": 3, "zone": "b"}, {"cores": 3, "zones": []string{"b", "c"}, "spot": true}},
		"old": {{"size": "large"}, {"cores": 8}, {"cores": 8, "zones": []string{"a"}}},
	} {
		before, err := v.at("").Get(t.Context(), name)
		require.NoError(t, err)
		for i, spec := range same {
			c := v.at(fmt.Sprintf("v%d", i+1))
			for _, write := range []func() (*apiclient.Object[doc, doc], error){
				func() (*apiclient.Object[doc, doc], error) { return c.Put(t.Context(), name, spec) },
				func() (*apiclient.Object[doc, doc], error) { return c.Patch(t.Context(), name, spec) },
			} {
				o, err := write()
				require.NoError(t, err)
				require.Equal(t, []int64{before.Revision, before.Generation}, []int64{o.Revision, o.Generation}, "%s in v%d", name, i+1)
			}
		}
	}
	require.NoError(t, v.Flush(t.Context()))
	require.Empty(t, v.ear.drain())
	version, _ := v.stored("old")
	require.Equal(t, "v3", version, "the write brought it up to date")
}

// TestSpecsAreCheckedInBothVersions: in that of the request, with its defaults, and in the current one.
func TestSpecsAreCheckedInBothVersions(t *testing.T) {
	v := serve(t, newStore(t), machinesOf(3))
	_, err := v.at("v1").Put(t.Context(), "blue", doc{"size": "medium", "cores": 1})
	require.Equal(t, []string{"body.spec.cores", "body.spec.size"}, fields(t, err))
	_, err = v.at("v1").Put(t.Context(), "blue", doc{"size": "huge"})
	require.Equal(t, []string{"body.spec.cores"}, fields(t, err))
	require.ErrorContains(t, err, "the spec is wrong, once it is converted from v1 to v3")
	o, err := v.at("v2").Put(t.Context(), "blue", doc{"cores": 1})
	require.NoError(t, err)
	require.Equal(t, doc{"cores": 1.0, "zone": "a"}, o.Spec)
	_, err = v.at("v2").Put(t.Context(), "blue", doc{"cores": 1, "zone": "b"})
	require.Equal(t, []string{"body.spec.zone"}, fields(t, err), "it may not change, in that version")
	_, err = v.at("v1").Patch(t.Context(), "blue", doc{"note": strings.Repeat("x", 21)})
	require.Equal(t, []string{"body.spec.note"}, fields(t, err))
}

// TestVersionsInEveryRequest: list with selectors, batch, status, pause, delete, events of a watch.
func TestVersionsInEveryRequest(t *testing.T) {
	store := newStore(t)
	made(t, store, map[string]doc{"a": {"size": "large"}, "b": {"size": "small"}, "c": {"size": "large", "note": "last"}})
	v := serve(t, store, machinesOf(2))
	old, now := v.at("v1"), v.at("v2")
	_, err := now.Create(t.Context(), "d", doc{"cores": 9, "zone": "b"})
	require.NoError(t, err)
	require.Equal(t, []string{"a v1 map[size:large]", "c v1 map[note:last size:large]", "d v1 map[size:large]"}, sizes(t, old, apiclient.WithFields("spec.size=large")))
	require.Equal(t, []string{"a v2 map[cores:8 zone:a]", "c v2 map[cores:8 note:last zone:a]"}, sizes(t, now, apiclient.WithFields("spec.cores=8")))
	require.Empty(t, sizes(t, now, apiclient.WithFields("spec.size=large")))
	require.Len(t, sizes(t, old, apiclient.WithFields("spec.cores!=8"), apiclient.SortedBy("-created")), 4)

	o, err := old.Pause(t.Context(), "d")
	require.NoError(t, err)
	require.Equal(t, doc{"size": "large"}, o.Spec)
	o, err = now.PatchStatus(t.Context(), "a", apiclient.StatusPatch{UID: uidIn(t, now, "a"), Fence: 1, Status: json.RawMessage(`{"up":true}`), AddFinalizers: []string{"x"}})
	require.NoError(t, err)
	require.Equal(t, doc{"cores": 8.0, "zone": "a"}, o.Spec)
	require.Equal(t, doc{"up": true}, o.Status, "the status is that of all versions")
	version, _ := v.stored("a")
	require.Equal(t, "v1", version, "what is written beside the spec leaves it in its version")
	o, err = now.Delete(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "v2", o.Version)

	batch, err := apiclient.NewBatch(apiclient.Config{URL: v.srv.URL, HTTP: v.srv.Client(), Tries: 1})
	require.NoError(t, err)
	results, err := batch.Apply(t.Context(), old.Item("b", doc{"size": "large"}), now.Item("c", doc{"cores": 7, "zone": "a"}), old.Item("e", doc{"size": "small"}), now.Without("d"))
	require.NoError(t, err)
	require.JSONEq(t, `{"size":"large"}`, string(results[0].Spec))
	require.JSONEq(t, `{"cores":7,"zone":"a"}`, string(results[1].Spec))
	require.Equal(t, "v1", results[2].Version)
	require.Nil(t, results[3])
	_, err = batch.Apply(t.Context(), now.Item("f", doc{"cores": 1}), v.at("v9").Item("b", doc{"size": "large"}))
	require.Equal(t, []string{"body.items.1.version"}, fields(t, err))
	_, err = batch.Apply(t.Context(), now.Item("f", doc{"cores": 1}), old.Item("b", doc{"size": "medium"}))
	require.Equal(t, []string{"body.items.1.spec.size"}, fields(t, err))
	_, err = now.Get(t.Context(), "f")
	require.ErrorIs(t, err, apiclient.ErrNotFound)
}

func uidIn(t *testing.T, c *apiclient.Client[doc, doc], name string) string {
	t.Helper()
	o, err := c.Get(t.Context(), name)
	require.NoError(t, err)
	return o.UID
}

// TestUnknownVersionsAreRefused by every operation that takes one, and name those there are.
func TestUnknownVersionsAreRefused(t *testing.T) {
	v := serve(t, newStore(t), machinesOf(2))
	running(t, v.API)
	_, err := v.at("").Create(t.Context(), "blue", doc{"cores": 1})
	require.NoError(t, err)
	batch, err := apiclient.NewBatch(apiclient.Config{URL: v.srv.URL, HTTP: v.srv.Client(), Tries: 1})
	require.NoError(t, err)
	for _, version := range []string{"v3", "V1", "v1 ", "%"} {
		c := v.at(version)
		_, getErr := c.Get(t.Context(), "blue")
		_, putErr := c.Put(t.Context(), "blue", doc{"cores": 2})
		_, createErr := c.Create(t.Context(), "red", doc{"cores": 2})
		_, patchErr := c.Patch(t.Context(), "blue", nil, apiclient.WithLabels(map[string]string{"a": "b"}))
		_, pauseErr := c.Pause(t.Context(), "blue")
		_, statusErr := c.PatchStatus(t.Context(), "blue", apiclient.StatusPatch{UID: "x", Fence: 1})
		_, deleteErr := c.Delete(t.Context(), "blue")
		_, batchErr := batch.Apply(t.Context(), c.Item("blue", doc{"cores": 2}))
		require.Equal(t, []string{"body.items.0.version"}, fields(t, batchErr))
		errs := []error{getErr, putErr, createErr, patchErr, pauseErr, statusErr, deleteErr}
		for _, err := range c.All(t.Context()) {
			errs = append(errs, err)
		}
		for _, err := range c.Watch(t.Context()) {
			errs = append(errs, err)
		}
		require.Len(t, errs, 9)
		for i, err := range errs {
			require.Equal(t, []string{"query.version"}, fields(t, err), i)
			require.ErrorContains(t, err, "want one of v1, v2", i)
		}
	}
	_, err = v.at(apiclient.AsStored).Put(t.Context(), "blue", doc{"cores": 2})
	require.Equal(t, []string{"query.version"}, fields(t, err), "a spec is in some version")
	_, err = v.of("gadgets").At("v1").Create(t.Context(), "one", doc{})
	require.ErrorContains(t, err, "gadgets has no versions: want none")
	o, err := v.at("").Get(t.Context(), "blue")
	require.NoError(t, err)
	require.EqualValues(t, 1, o.Generation)
	require.Empty(t, o.Labels)
}

// TestUnversionedObjectsAreOfTheOldestVersion that the kind is given, whichever is the current one later.
func TestUnversionedObjectsAreOfTheOldestVersion(t *testing.T) {
	store := newStore(t)
	v := serve(t, store, Kind{Name: "machines", Schema: SchemaOf[machine1]()})
	o, err := v.at("").Create(t.Context(), "blue", doc{"size": "large"})
	require.NoError(t, err)
	require.Empty(t, o.Version)
	for n, want := range []string{"map[size:large]", "map[cores:8 zone:a]", "map[cores:8 zones:[a]]"} {
		v = serve(t, store, machinesOf(n+1))
		require.Equal(t, []string{fmt.Sprintf("blue v%d %s", n+1, want)}, sizes(t, v.at("")))
		require.Equal(t, []string{"blue v1 map[size:large]"}, sizes(t, v.at("v1")))
	}
	k, err := v.kindsClient().Get(t.Context(), "machines")
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"v1": 1}, k.Stored)
	_, err = v.kindsClient().Put(t.Context(), "machines", SchemaOf[machine1]())
	require.ErrorIs(t, err, apiclient.ErrConflict, "a kind cannot lose its versions while objects are stored in them")

	store = store + "-other"
	if strings.HasPrefix(store, "postgres") {
		store = newStore(t)
	}
	_, err = serve(t, store).at("").Create(t.Context(), "blue", doc{"size": "large"})
	require.NoError(t, err)
	v = serve(t, store, machinesOf(3)) // at once
	require.Equal(t, []string{"blue v3 map[cores:8 zones:[a]]"}, sizes(t, v.at("")))
	require.Equal(t, []string{"blue v1 map[size:large]"}, sizes(t, v.at(apiclient.AsStored)))
}

// TestWritersInAllVersionsAtOnce: none of their writes is lost, and what one version cannot say survives those of the other.
func TestWritersInAllVersionsAtOnce(t *testing.T) {
	store := newStore(t)
	made(t, store, map[string]doc{"blue": {"size": "small"}})
	v := serve(t, store, machinesOf(3))
	var writing sync.WaitGroup
	const writers, writes = 3, 6
	for i := range writers {
		for version, patch := range map[string]func(n int) doc{
			"v1": func(n int) doc { return doc{"note": fmt.Sprint("n", i, n)} },
			"v2": func(n int) doc { return doc{"cores": 1 + (i+n)%6} },
			"v3": func(n int) doc { return doc{"spot": (i+n)%2 == 0, "zones": []string{"a", fmt.Sprint("z", i, n)}} },
		} {
			writing.Go(func() {
				c := v.at(version)
				for n := range writes {
					for {
						_, err := c.Patch(t.Context(), "blue", patch(n))
						if err == nil {
							break
						}
						if !errors.Is(err, apiclient.ErrUnavailable) {
							t.Error(err)
							return
						}
					}
				}
			})
		}
	}
	writing.Wait()
	o, err := v.at("").Get(t.Context(), "blue")
	require.NoError(t, err)
	require.Contains(t, o.Spec["note"], fmt.Sprint(writes-1), "the last one of some writer")
	require.Len(t, o.Spec["zones"], 2)
	require.Contains(t, o.Spec["zones"].([]any)[1], fmt.Sprint(writes-1))
	require.Contains(t, o.Spec, "cores")
}

// TestOldPagesAreWhole: pages of what has to be converted are as those of what has not, however small they are.
func TestOldPagesAreWhole(t *testing.T) {
	store := newStore(t)
	specs := map[string]doc{}
	for i := range 23 {
		specs[fmt.Sprintf("m-%02d", i)] = doc{"size": []string{"small", "large"}[i%2]}
	}
	made(t, store, specs)
	v := serve(t, store, machinesOf(2))
	for _, q := range []objects.ListQuery{{Limit: "4"}, {Limit: "5", Fields: "spec.cores=8"}, {Limit: "3", Sort: "-created"}} {
		var names []string
		for {
			sel := selection{kind: "machines"}
			var err error
			sel.Selection, err = objects.ParseSelection(q)
			require.NoError(t, err)
			page, next, err := v.store.list(t.Context(), sel)
			require.NoError(t, err)
			for _, o := range page {
				require.Equal(t, "v2", o.Version)
				names = append(names, o.Name)
			}
			if next == nil {
				break
			}
			q.Cursor = sel.Sort.Cursor(*next)
		}
		want := 23
		if q.Fields != "" {
			want = 11
		}
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), want)
		require.Len(t, names, want)
	}
}

// TestHooksOfProgramsAreChecked: what is wrong with the versions of a kind keeps the API from starting.
func TestHooksOfProgramsAreChecked(t *testing.T) {
	v1, v2 := VersionOf("v1", up1, down1), VersionOf("v2", up2, down2)
	for want, k := range map[string]Kind{
		"Config.Kinds[0].Version of machines: want the name of a version":                          {Name: "machines", Schema: SchemaOf[machine2](), Older: []Version{v1}},
		"Config.Kinds[0].Older of machines: v1 has no hooks":                                       {Name: "machines", Schema: SchemaOf[machine2](), Version: "v2", Older: []Version{{Name: "v1", Schema: SchemaOf[machine1]()}}},
		"Config.Kinds[0].Older of machines: v2 leads to api.machine3, and v1 behind it is of api.": {Name: "machines", Schema: SchemaOf[machine3](), Version: "v3", Older: []Version{v2, v1}},
		"Config.Kinds[0].Older of machines: \"v1\" is there twice":                                 {Name: "machines", Schema: SchemaOf[machine2](), Version: "v1", Older: []Version{v1}},
	} {
		_, err := Open(t.Context(), Config{Store: "sqlite::memory:", Notify: new(ear).notify, Kinds: []Kind{k}})
		require.ErrorContains(t, err, want)
	}
}

// TestFailingHooksOfPrograms, and those that panic, are told with the object, and why in the log alone. A program without the hooks
// says so.
func TestFailingHooksOfPrograms(t *testing.T) {
	store := newStore(t)
	v := serve(t, store, machinesOf(2))
	var logged text
	v.log = funcr.New(func(_, args string) { logged.Write([]byte(args)) }, funcr.Options{})
	for name, cores := range map[string]int{"fails": 13, "panics": 14, "works": 15} {
		_, err := v.at("v2").Create(t.Context(), name, doc{"cores": cores})
		require.NoError(t, err)
		_, err = v.at("v1").Get(t.Context(), name)
		if name == "works" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, apiclient.ErrConversion)
		require.ErrorContains(t, err, "machines/"+name+": the conversion from v2 to v1 failed: the hook of the program failed, the log of the API says how")
		require.NotContains(t, err.Error(), "secret")
	}
	require.Contains(t, logged.String(), errTooSmall.Error())
	require.Contains(t, logged.String(), "panic: secret in a panic")
	for o, err := range v.at("v1").All(t.Context()) {
		require.ErrorContains(t, err, "machines/fails: ", "of three objects the one that failed is named")
		require.Nil(t, o)
	}
	_, err := serve(t, store).at("v1").Get(t.Context(), "works")
	require.ErrorContains(t, err, "this API has no hooks for these versions")
	_, err = serve(t, store, machinesOf(2)).kindsClient().Define(t.Context(), apiclient.Kind{
		Kind: "machines", Schema: SchemaOf[machine2](), Version: "v9", Versions: []apiclient.KindVersion{{Name: "v2", Schema: SchemaOf[machine2]()}},
	})
	require.Equal(t, []string{"body.conversion"}, fields(t, err), "its hooks are for other versions")
}

// TestHooksOfProgramsGetWholeSpecs: a field that the type does not have is an error, not a loss, and numbers keep their digits.
func TestHooksOfProgramsGetWholeSpecs(t *testing.T) {
	loose := func(m map[string]any) (map[string]any, error) { return m, nil }
	v1 := VersionOf("v1", func(old map[string]any, _ *map[string]any) (map[string]any, error) { return old, nil }, loose)
	for _, c := range []struct{ spec, want string }{
		{`{"n":9007199254740993,"f":1.10}`, `{"n":9007199254740993,"f":1.10}`}, {`{"n":1}{"n":2}`, ""}, {`[]`, ""}, {``, ""},
	} {
		got, err := v1.up(json.RawMessage(c.spec), nil)
		if c.want == "" {
			require.Error(t, err, c.spec)
			continue
		}
		require.NoError(t, err)
		require.True(t, apiclient.SameJSON(json.RawMessage(c.want), got), "%s", got)
		require.Contains(t, string(got), "9007199254740993")
	}
	_, err := VersionOf("v1", up1, down1).down(json.RawMessage(`{"cores":1,"zone":"a","more":"x"}`))
	require.ErrorContains(t, err, `unknown field "more"`)
}
