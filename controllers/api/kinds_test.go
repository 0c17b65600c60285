package api

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// pump is a Go type whose schema is derived.
type pump struct {
	Size   int    `json:"size" jsonschema:"minimum=1"`
	Region string `json:"region" jsonschema_extras:"x-immutable=true"`
	Mode   string `json:"mode,omitempty" jsonschema:"enum=slow,enum=fast,default=slow"`
}

// kindsOf returns a client of the kinds of an API, over a real connection.
func kindsOf(t *testing.T, a *API) *apiclient.Kinds {
	t.Helper()
	srv := httptest.NewServer(a.Handler())
	t.Cleanup(srv.Close)
	c, err := apiclient.NewKinds(apiclient.Config{URL: srv.URL, HTTP: srv.Client(), Tries: 1})
	require.NoError(t, err)
	return c
}

// fields are the places that a problem names, in order.
func fields(t *testing.T, err error) (locations []string) {
	t.Helper()
	require.ErrorIs(t, err, apiclient.ErrInvalid)
	var p *apiclient.Problem
	require.True(t, errors.As(err, &p))
	for _, e := range p.Errors {
		locations = append(locations, e.Location)
	}
	slices.Sort(locations)
	return locations
}

// TestSpecsAreCheckedAgainstTheirKind in each way to write one, and what is refused is not stored.
func TestSpecsAreCheckedAgainstTheirKind(t *testing.T) {
	a, err := Open(t.Context(), Config{Store: newStore(t), Notify: new(ear).notify, Access: Access{Insecure: true}, Kinds: []Kind{{Name: "widgets", Schema: SchemaOf[pump]()}}})
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	c := widgets(t, a)
	_, err = c.Create(t.Context(), "blue", doc{"size": 0, "colour": "red"})
	require.Equal(t, []string{"body.spec.colour", "body.spec.region", "body.spec.size"}, fields(t, err))
	_, err = c.Put(t.Context(), "blue", doc{"size": 1, "region": "eu", "mode": "reverse"})
	require.Equal(t, []string{"body.spec.mode"}, fields(t, err))
	_, err = c.Get(t.Context(), "blue")
	require.ErrorIs(t, err, apiclient.ErrNotFound)

	o, err := c.Create(t.Context(), "blue", doc{"size": 1, "region": "eu"})
	require.NoError(t, err)
	require.Equal(t, doc{"size": 1.0, "region": "eu", "mode": "slow"}, o.Spec, "the default is filled in")
	same, err := c.Put(t.Context(), "blue", doc{"size": 1, "region": "eu"})
	require.NoError(t, err)
	require.Equal(t, o.Revision, same.Revision, "what says the same but for the default changes nothing")
	same, err = c.Patch(t.Context(), "blue", doc{"mode": nil})
	require.NoError(t, err)
	require.Equal(t, o.Revision, same.Revision)

	_, err = c.Patch(t.Context(), "blue", doc{"size": "big"})
	require.Equal(t, []string{"body.spec.size"}, fields(t, err))
	_, err = c.Patch(t.Context(), "blue", doc{"region": "us", "size": 0})
	require.Equal(t, []string{"body.spec.region", "body.spec.size"}, fields(t, err))
	_, err = c.Put(t.Context(), "blue", doc{"region": "us", "size": 2})
	require.Equal(t, []string{"body.spec.region"}, fields(t, err))
	now, err := c.Get(t.Context(), "blue")
	require.NoError(t, err)
	require.Equal(t, o.Revision, now.Revision)
}

func TestKindsAreGivenSchemasAtRunTime(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	ks, c := kindsOf(t, a), widgets(t, a)
	_, err := c.Create(t.Context(), "free", doc{"anything": true})
	require.NoError(t, err, "a kind without a schema takes any object")

	_, err = ks.Put(t.Context(), "widgets", json.RawMessage(`{"type":"object","properties":{"size":{"type":"round"}}}`))
	require.Equal(t, []string{"body.schema"}, fields(t, err))
	require.ErrorContains(t, err, "schema.properties.size.type")
	k, err := ks.Put(t.Context(), "widgets", json.RawMessage(`{"type":"object","properties":{"size":{"type":"integer"}}}`))
	require.NoError(t, err)
	require.EqualValues(t, 1, k.Revision)
	_, err = c.Create(t.Context(), "blue", doc{"size": "3"})
	require.Equal(t, []string{"body.spec.size"}, fields(t, err), "it holds at once")

	again, err := ks.Put(t.Context(), "widgets", k.Schema)
	require.NoError(t, err)
	require.Equal(t, k, again, "the same schema changes nothing")
	k, err = ks.Put(t.Context(), "widgets", json.RawMessage(`{"type":"object","properties":{"size":{"type":"string"}}}`))
	require.NoError(t, err)
	require.EqualValues(t, 2, k.Revision)
	_, err = c.Create(t.Context(), "blue", doc{"size": "3"})
	require.NoError(t, err)
	got, err := ks.Get(t.Context(), "widgets")
	require.NoError(t, err)
	require.Equal(t, k, got)

	_, err = c.Put(t.Context(), "free", doc{"anything": true}, apiclient.WithLabels(map[string]string{"a": "b"}))
	require.NoError(t, err, "an older object that does not suit the schema can be labeled")
	_, err = c.Put(t.Context(), "free", doc{"anything": false})
	require.Equal(t, []string{"body.spec.anything"}, fields(t, err), "but not changed to another that does not")
}

func TestKindsAreListedAndDropped(t *testing.T) {
	a := open(t, newStore(t), new(ear).notify)
	ks, c := kindsOf(t, a), widgets(t, a)
	anything := json.RawMessage(`{"type":"object"}`)
	for _, kind := range []string{"b", "c", "widgets", "a"} {
		_, err := ks.Put(t.Context(), kind, anything)
		require.NoError(t, err)
	}
	var names []string
	for k, err := range ks.All(t.Context()) {
		require.NoError(t, err)
		names = append(names, k.Kind)
	}
	require.Equal(t, []string{"a", "b", "c", "widgets"}, names)
	page, err := a.listKinds(t.Context(), &kindsInput{Limit: "3"})
	require.NoError(t, err)
	page, err = a.listKinds(t.Context(), &kindsInput{Limit: "3", Cursor: page.Body.Next})
	require.NoError(t, err)
	require.Len(t, page.Body.Items, 1)
	require.Empty(t, page.Body.Next)

	_, err = c.Create(t.Context(), "blue", doc{})
	require.NoError(t, err)
	require.ErrorIs(t, ks.Delete(t.Context(), "widgets"), apiclient.ErrConflict)
	require.NoError(t, ks.Delete(t.Context(), "b"))
	require.ErrorIs(t, ks.Delete(t.Context(), "b"), apiclient.ErrNotFound)
	_, err = ks.Get(t.Context(), "b")
	require.ErrorIs(t, err, apiclient.ErrNotFound)
	_, err = ks.Get(t.Context(), "B")
	require.ErrorIs(t, err, apiclient.ErrInvalid)
}

// TestOnlyKindsRefusesSlips: a kind that nobody registered is a slip of the pen.
func TestOnlyKindsRefusesSlips(t *testing.T) {
	a, err := Open(t.Context(), Config{Store: newStore(t), Notify: new(ear).notify, Access: Access{Insecure: true}, OnlyKinds: true})
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	_, err = widgets(t, a).Create(t.Context(), "blue", doc{})
	require.Equal(t, []string{"path.kind"}, fields(t, err))
	require.ErrorContains(t, err, "PUT its schema to /v1/kinds/widgets first")
	_, err = kindsOf(t, a).Put(t.Context(), "widgets", json.RawMessage(`{"type":"object"}`))
	require.NoError(t, err)
	_, err = widgets(t, a).Create(t.Context(), "blue", doc{})
	require.NoError(t, err)
}

// TestOtherAPIsHearOfKinds within kindsFor.
func TestOtherAPIsHearOfKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := open(t, "sqlite::memory:", new(ear).notify)
		other := &kinds{store: a.store}
		there := func() bool {
			require.NoError(t, other.refresh(t.Context()))
			return other.known["widgets"] != nil
		}
		require.False(t, there())
		_, _, err := a.store.putKind(t.Context(), "widgets", definition{Schema: json.RawMessage(`{"type":"object"}`)})
		require.NoError(t, err)
		time.Sleep(kindsFor + 1)
		require.True(t, there())
		require.NoError(t, a.store.deleteKind(t.Context(), "widgets"))
		time.Sleep(kindsFor + 1)
		require.False(t, there())
		a.Close()
	})
}

func TestBadKindsOfTheProgramAreNamed(t *testing.T) {
	for want, k := range map[string]Kind{
		"Config.Kinds[0].Name":               {Name: "Widgets", Schema: json.RawMessage(`{"type":"object"}`)},
		"Config.Kinds[0].Schema of widgets:": {Name: "widgets", Schema: json.RawMessage(`{"type":"text"}`)},
	} {
		_, err := Open(t.Context(), Config{Store: "sqlite::memory:", Notify: new(ear).notify, Kinds: []Kind{k}})
		require.ErrorContains(t, err, want)
	}
}
