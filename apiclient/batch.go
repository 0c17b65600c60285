package apiclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Item is one object of a batch. [Client.Item] and [Client.Without] make them.
type Item struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Labels and Spec are what the object is to be, as in [Client.Put].
	Labels map[string]string `json:"labels,omitempty"`
	Spec   json.RawMessage   `json:"spec,omitempty"`
	// Version is the version of the kind that Spec is in, and that the answer is to be in; the current one if it is empty.
	Version string `json:"version,omitempty"`
	// Delete asks for its deletion instead. Nothing to delete is no error.
	Delete bool `json:"delete,omitempty"`
	// Revision, unless it is 0, is the one that the object must be at.
	Revision int64 `json:"revision,omitempty"`

	err error // of its making
}

// Item is an object as it is to be, for a batch.
func (c *Client[S, T]) Item(name string, spec S, opts ...Option) Item {
	w := options(opts)
	data, err := json.Marshal(spec)
	if err != nil {
		err = fmt.Errorf("encode %s/%s: %w", c.kind, name, err)
	}
	return Item{Kind: c.kind, Name: name, Labels: w.labels, Spec: data, Version: c.version, Revision: w.revision, err: err}
}

// Without is an object that is to go, for a batch.
func (c *Client[S, T]) Without(name string, opts ...Option) Item {
	return Item{Kind: c.kind, Name: name, Version: c.version, Delete: true, Revision: options(opts).revision}
}

// Batch applies several objects at once. It is safe for concurrent use.
type Batch struct{ caller }

// NewBatch returns a client for batches. It fails if the URL cannot be right; it does not connect.
func NewBatch(cfg Config) (*Batch, error) {
	caller, err := newCaller(cfg)
	if err != nil {
		return nil, err
	}
	return &Batch{caller}, nil
}

// Apply makes all of the objects, of whatever kinds, what they are to be, in one transaction: all of them or, with an
// error, none. An object may be in it once, and there may be up to 500. It returns the objects as they are afterwards, in
// the order of the items, nil for one that has gone.
//
//	objects, err := batch.Apply(ctx, widgets.Item("blue", spec), gadgets.Item("one", other), widgets.Without("red"))
func (b *Batch) Apply(ctx context.Context, items ...Item) ([]*Raw, error) {
	body := struct {
		Items []Item `json:"items"`
	}{items}
	repeatable := true
	for _, item := range items {
		if item.err != nil {
			return nil, fmt.Errorf("apply: %w", item.err)
		}
		// To delete again could hit what somebody has made meanwhile; and a revision is another one afterwards.
		repeatable = repeatable && !item.Delete && item.Revision == 0
	}
	var out struct {
		Items []*Raw `json:"items"`
	}
	asked := call{method: http.MethodPost, path: "/v1/batch", body: body, out: &out, doing: fmt.Sprintf("apply %d objects", len(items)), repeatable: repeatable}
	_, err := b.do(ctx, asked)
	return out.Items, err
}
