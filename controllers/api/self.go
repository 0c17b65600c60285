package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
)

type selfOutput struct{ Body apiclient.Self }

// registerSelf serves who asks: a controller finds out at its start whether it may do what it has to.
func (a *API) registerSelf(r *router) {
	huma.Register(r.api, r.operation(access.ReadSelf, "get-self", "GET", "/v1/self", 200, "Read who asks, and under which prefix controllers are notified"), a.self)
}

func (a *API) self(ctx context.Context, _ *struct{}) (*selfOutput, error) {
	v := visitOf(ctx)
	if v == nil {
		return nil, a.failed(ctx, "read who asks", forbidden("unauthenticated: send a bearer token or a client certificate"))
	}
	return &selfOutput{apiclient.Self{Name: v.who.name, Role: string(v.who.grant.Role), Kinds: v.who.grant.Kinds, Prefix: a.prefix}}, nil
}
