package apiclient

import (
	"context"
	"net/http"
)

// Self is what the API knows of who asks, and of itself.
type Self struct {
	// Name is that of the token or the client certificate; "anonymous" where nobody is asked for one.
	Name string `json:"name"`
	// Role is viewer, editor, controller or admin.
	Role string `json:"role"`
	// Kinds are the kinds that the role holds for; none means all.
	Kinds []string `json:"kinds,omitempty" nullable:"false"`
	// Prefix is the one under which the API notifies controllers, which theirs has to be. Empty if the API does not say.
	Prefix string `json:"prefix,omitempty"`
}

// Self asks the API who the client is to it. Everybody who is let in may ask. An API that is older than the question does not know
// the path and answers with [ErrUnexpectedResponse].
func (c *Client[S, T]) Self(ctx context.Context) (*Self, error) {
	self := new(Self)
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/self", out: self, doing: "get self", repeatable: true}); err != nil {
		return nil, err
	}
	return self, nil
}
