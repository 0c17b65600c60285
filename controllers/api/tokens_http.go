package api

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

type (
	createTokenInput struct {
		Body struct {
			Name      string      `json:"name" doc:"Whose it is, for people and the audit log."`
			Role      access.Role `json:"role" doc:"viewer, editor, controller or admin."`
			Kinds     []string    `json:"kinds,omitempty" nullable:"false" doc:"The kinds that it holds for; none means all."`
			ExpiresAt *time.Time  `json:"expiresAt,omitempty" doc:"From when on it is refused; absent means never."`
		}
	}
	createTokenOutput struct {
		CacheControl string `header:"Cache-Control"`
		Body         struct {
			Token
			Text string `json:"token" doc:"What to send as the bearer token. It is not shown again."`
		}
	}
	listTokensInput struct {
		Limit  string `query:"limit" doc:"How many tokens a page has at the most: 1 to 500, 100 unless told otherwise."`
		Cursor string `query:"cursor" doc:"The next of the page before."`
	}
	listTokensOutput struct {
		Body struct {
			Items []Token `json:"items"`
			Next  string  `json:"next,omitempty" doc:"The cursor of the next page; absent on the last one."`
		}
	}
	revokeTokenInput struct {
		ID string `path:"id"`
	}
)

func (a *API) registerTokens(r *router) {
	const tokens = "/v1/tokens"
	huma.Register(r.api, r.operation(access.ManageTokens, "create-token", "POST", tokens, 201, "Make a bearer token"), a.createToken)
	huma.Register(r.api, r.operation(access.ManageTokens, "list-tokens", "GET", tokens, 200, "List the tokens, without their secrets"), a.listTokens)
	huma.Register(r.api, r.operation(access.ManageTokens, "revoke-token", "DELETE", tokens+"/{id}", 204, "Revoke a token"), a.revokeToken)
}

func (a *API) createToken(ctx context.Context, in *createTokenInput) (*createTokenOutput, error) {
	token, text, err := a.tokens.Create(ctx, in.Body.Name, access.Grant{Role: in.Body.Role, Kinds: in.Body.Kinds}, in.Body.ExpiresAt)
	if err != nil {
		return nil, a.failed(ctx, "create a token", err)
	}
	setName(ctx, token.ID)
	out := &createTokenOutput{CacheControl: "no-store"}
	out.Body.Token, out.Body.Text = token, text
	return out, nil
}

func (a *API) listTokens(ctx context.Context, in *listTokensInput) (*listTokensOutput, error) {
	after, limit, err := objects.ParsePage(in.Limit, in.Cursor)
	out := new(listTokensOutput)
	var more bool
	if err == nil {
		out.Body.Items, more, err = a.tokens.List(ctx, after, limit)
	}
	if err != nil {
		return nil, a.failed(ctx, "list tokens", err)
	}
	if more {
		out.Body.Next = objects.PageCursor(out.Body.Items[len(out.Body.Items)-1].ID)
	}
	return out, nil
}

func (a *API) revokeToken(ctx context.Context, in *revokeTokenInput) (*struct{}, error) {
	if err := a.tokens.Revoke(ctx, in.ID); err != nil {
		return nil, a.failed(ctx, "revoke a token", err)
	}
	return nil, nil //nolint:nilnil // huma's word for an answer without a body
}
