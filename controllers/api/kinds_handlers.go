package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

type (
	kindInput struct {
		Kind string `path:"kind" doc:"Plural, lower case; a DNS-1123 label."`
	}
	putKindInput struct {
		Kind string `path:"kind" doc:"Plural, lower case; a DNS-1123 label."`
		Body struct {
			Schema     json.RawMessage         `json:"schema" doc:"The JSON Schema (draft 2020-12) of the kind's specs."`
			Version    string                  `json:"version,omitempty" doc:"The name of the version that the schema is of, such as v2; none for a kind without versions."`
			Versions   []apiclient.KindVersion `json:"versions,omitempty" doc:"The older versions that are served, the oldest first."`
			Conversion *apiclient.Conversion   `json:"conversion,omitempty" doc:"The hook that converts between the versions."`
		}
	}
	upgradeInput struct {
		Kind   string `path:"kind" doc:"Plural, lower case; a DNS-1123 label."`
		Cursor string `query:"cursor" doc:"The next of the answer before."`
	}
	upgradeOutput struct{ Body apiclient.Upgrade }
	kindsInput    struct {
		Limit  string `query:"limit" doc:"How many kinds a page has at the most: 1 to 500, 100 unless told otherwise."`
		Cursor string `query:"cursor" doc:"The next of the page before."`
	}
	kindOutput struct {
		Status int
		Body   *apiclient.Kind
	}
	kindsOutput struct {
		Body struct {
			Items []apiclient.Kind `json:"items"`
			Next  string           `json:"next,omitempty" doc:"The cursor of the next page; absent on the last one."`
		}
	}
)

func (a *API) registerKinds(r *router) {
	const all, one = "/v1/kinds", "/v1/kinds/{kind}"
	huma.Register(r.api, r.operation(access.Read, "list-kinds", "GET", all, 200, "List the kinds that have a schema"), a.listKinds)
	huma.Register(r.api, r.operation(access.Read, "get-kind", "GET", one, 200, "Read the schema of a kind"), a.getKind)
	huma.Register(r.api, r.operation(access.ManageKinds, "put-kind", "PUT", one, 200, "Give a kind its schema and versions, or others"), a.putKind)
	huma.Register(r.api, r.operation(access.ManageKinds, "delete-kind", "DELETE", one, 204, "Drop the schema of a kind that has no objects"), a.deleteKind)
	huma.Register(r.api, r.operation(access.ManageKinds, "upgrade-kind", "POST", one+"/upgrade", 200, "Bring some of the objects that are stored in older versions to the current one"), a.upgradeKind)
}

func (a *API) putKind(ctx context.Context, in *putKindInput) (*kindOutput, error) {
	d := definition{Schema: in.Body.Schema, Version: in.Body.Version, Versions: in.Body.Versions, Conversion: in.Body.Conversion}
	err := objects.CheckKind(in.Kind)
	if err == nil {
		err = a.kinds.check(in.Kind, d)
	}
	var k storedKind
	var isNew bool
	if err == nil {
		k, isNew, err = a.store.putKind(ctx, in.Kind, d)
	}
	if err == nil {
		a.kinds.forget()
		k.Stored, err = a.store.storedBy(ctx, &k)
	}
	if err != nil {
		return nil, a.failed(ctx, "put kind "+in.Kind, err)
	}
	if isNew {
		return &kindOutput{Status: http.StatusCreated, Body: &k.Kind}, nil
	}
	return &kindOutput{Status: http.StatusOK, Body: &k.Kind}, nil
}

func (a *API) getKind(ctx context.Context, in *kindInput) (*kindOutput, error) {
	err := objects.CheckKind(in.Kind)
	var k storedKind
	if err == nil {
		k, err = a.store.kind(ctx, in.Kind)
	}
	if err == nil {
		k.Stored, err = a.store.storedBy(ctx, &k)
	}
	if err != nil {
		return nil, a.failed(ctx, "get kind "+in.Kind, err)
	}
	return &kindOutput{Status: http.StatusOK, Body: &k.Kind}, nil
}

// upgradeKind upgrades a page of objects. Whoever asks goes on from there, so nothing has to be remembered.
func (a *API) upgradeKind(ctx context.Context, in *upgradeInput) (*upgradeOutput, error) {
	after, _, err := objects.ParsePage("", in.Cursor)
	err = firstError(objects.CheckKind(in.Kind), err)
	out := new(upgradeOutput)
	var next string
	if err == nil {
		out.Body, next, err = a.store.upgrade(ctx, in.Kind, after)
	}
	if err == nil {
		var k storedKind
		if k, err = a.store.kind(ctx, in.Kind); err == nil {
			out.Body.Stored, err = a.store.storedBy(ctx, &k)
		}
	}
	if err != nil {
		return nil, a.failed(ctx, "upgrade kind "+in.Kind, err)
	}
	if next != "" {
		out.Body.Next = objects.PageCursor(next)
	}
	return out, nil
}

func (a *API) deleteKind(ctx context.Context, in *kindInput) (*struct{}, error) {
	err := objects.CheckKind(in.Kind)
	if err == nil {
		err = a.store.deleteKind(ctx, in.Kind)
	}
	if err != nil {
		return nil, a.failed(ctx, "delete kind "+in.Kind, err)
	}
	a.kinds.forget()
	return nil, nil //nolint:nilnil // huma's word for an answer without a body
}

func (a *API) listKinds(ctx context.Context, in *kindsInput) (*kindsOutput, error) {
	after, limit, err := objects.ParsePage(in.Limit, in.Cursor)
	var all []apiclient.Kind
	if err == nil {
		all, err = a.store.kindsAfter(ctx, after, limit+1)
	}
	if err != nil {
		return nil, a.failed(ctx, "list kinds", err)
	}
	out := new(kindsOutput)
	if len(all) > limit {
		all = all[:limit]
		out.Body.Next = objects.PageCursor(all[len(all)-1].Kind)
	}
	out.Body.Items = all
	return out, nil
}
