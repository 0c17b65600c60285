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
			Schema json.RawMessage `json:"schema" doc:"The JSON Schema (draft 2020-12) of the kind's specs."`
		}
	}
	kindsInput struct {
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
	huma.Register(r.api, r.operation(access.ManageKinds, "put-kind", "PUT", one, 200, "Give a kind its schema, or another one"), a.putKind)
	huma.Register(r.api, r.operation(access.ManageKinds, "delete-kind", "DELETE", one, 204, "Drop the schema of a kind that has no objects"), a.deleteKind)
}

func (a *API) putKind(ctx context.Context, in *putKindInput) (*kindOutput, error) {
	err := objects.CheckKind(in.Kind)
	if err == nil {
		if wrong := a.kinds.check(in.Body.Schema); wrong != nil {
			err = objects.Invalid("body.schema", wrong.Error())
		}
	}
	var k apiclient.Kind
	var isNew bool
	if err == nil {
		k, isNew, err = a.store.putKind(ctx, in.Kind, in.Body.Schema)
	}
	if err != nil {
		return nil, a.failed(ctx, "put kind "+in.Kind, err)
	}
	a.kinds.forget()
	if isNew {
		return &kindOutput{Status: http.StatusCreated, Body: &k}, nil
	}
	return &kindOutput{Status: http.StatusOK, Body: &k}, nil
}

func (a *API) getKind(ctx context.Context, in *kindInput) (*kindOutput, error) {
	err := objects.CheckKind(in.Kind)
	var k apiclient.Kind
	if err == nil {
		k, err = a.store.kind(ctx, in.Kind)
	}
	if err != nil {
		return nil, a.failed(ctx, "get kind "+in.Kind, err)
	}
	return &kindOutput{Status: http.StatusOK, Body: &k}, nil
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
