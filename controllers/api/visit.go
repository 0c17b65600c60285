package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// visit is a request that the door has seen, and what is to be said of it in the audit log. It belongs to the goroutine of
// the request.
type visit struct {
	who   principal
	entry entry
	items []item
	again func() error
}

// item is one of several things that a request asks for.
type item struct {
	verb access.Verb
	key  objects.Key
}

// visitKey leads to the visit that a context is of.
type visitKey struct{}

// visitOf returns nil for a context that is not of a request.
func visitOf(ctx context.Context) *visit {
	v, _ := ctx.Value(visitKey{}).(*visit)
	return v
}

// entries are the lines of a visit: one, or one for each item.
func (v *visit) entries() []entry {
	if len(v.items) == 0 {
		return []entry{v.entry}
	}
	all := make([]entry, len(v.items))
	for i, it := range v.items {
		all[i] = v.entry
		all[i].Operation += "-" + string(it.verb)
		all[i].Kind, all[i].Name = it.key.Kind, it.key.Name
	}
	return all
}

// permit is for what stands in the body of a request, where the door does not look: it returns nil if whoever asks may do
// that, and else why not. The key has been checked. What is permitted is noted for the audit log; if something is not, that
// alone is.
func permit(ctx context.Context, verb access.Verb, k objects.Key) error {
	v := visitOf(ctx)
	if v == nil {
		return forbidden("nobody asked at the door")
	}
	it := item{verb, k}
	if err := v.who.may(verb, k.Kind); err != nil {
		v.items = []item{it}
		return err
	}
	v.items = append(v.items, it)
	return nil
}

// stillWelcome reports whether a request that goes on for long would still be let in: its token may have been revoked. As
// long as that cannot be found out, it is.
func stillWelcome(ctx context.Context) bool {
	v := visitOf(ctx)
	if v == nil {
		return false
	}
	var p *apiclient.Problem
	return !errors.As(v.again(), &p) || p.Status != http.StatusUnauthorized && p.Status != http.StatusForbidden
}
