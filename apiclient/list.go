package apiclient

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// All ranges over the kind's objects, page by page, in the order of their names unless [SortedBy] gives another. An object that does not fit S and T, or is
// sealed ([ErrSealed]), comes as an error that names it, and the next one follows; after any other error it ends.
func (c *Client[S, T]) All(ctx context.Context, opts ...ListOption) iter.Seq2[*Object[S, T], error] {
	q := url.Values{}
	for _, o := range opts {
		o(q)
	}
	return c.pages(ctx, q)
}

// Unsettled ranges over the objects that have been owed a reconcile for at least that long ([Object.OwedSince]).
func (c *Client[S, T]) Unsettled(ctx context.Context, atLeast time.Duration) iter.Seq2[*Object[S, T], error] {
	return c.pages(ctx, url.Values{"unsettled": {atLeast.String()}})
}

func (c *Client[S, T]) pages(ctx context.Context, q url.Values) iter.Seq2[*Object[S, T], error] {
	return func(yield func(*Object[S, T], error) bool) {
		q.Set("limit", strconv.Itoa(PageSize))
		for {
			var page struct {
				Items []json.RawMessage `json:"items"`
				Next  string            `json:"next"`
			}
			if _, err := c.do(ctx, call{method: http.MethodGet, path: c.path() + "?" + q.Encode(), out: &page, doing: "list " + c.kind, repeatable: true}); err != nil {
				yield(nil, err)
				return
			}
			for _, item := range page.Items {
				if !yield(c.item("list", item)) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			q.Set("cursor", page.Next)
		}
	}
}

// item decodes one object of a list or a watch.
func (c *Client[S, T]) item(doing string, data json.RawMessage) (*Object[S, T], error) {
	o := new(Object[S, T])
	err := json.Unmarshal(data, o)
	switch {
	case err == nil && o.Sealed != "":
		return nil, fmt.Errorf("%s %s: %w: %s: %s", doing, c.kind, ErrSealed, o.Name, o.Sealed)
	case err == nil:
		return o, nil
	}
	var named struct{ Name string }
	_ = json.Unmarshal(data, &named) // an error leaves it without a name
	return nil, fmt.Errorf("%s %s: decode %s: %w", doing, c.kind, named.Name, err)
}
