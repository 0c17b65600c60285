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

	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// Kind is a kind of objects with the schema of their specs.
type Kind struct {
	// Kind is its name: plural, lower case, a DNS-1123 label.
	Kind string `json:"kind"`
	// Schema is the JSON Schema (draft 2020-12) that specs are checked against.
	Schema json.RawMessage `json:"schema"`
	// Revision grows with each change of the schema.
	Revision int64 `json:"revision"`
	// CreatedAt is when the kind was given its first schema.
	CreatedAt time.Time `json:"createdAt"`
	// ChangedAt is when it was given the present one.
	ChangedAt time.Time `json:"changedAt"`
}

// Kinds reads and writes the schemas of kinds. It is safe for concurrent use.
type Kinds struct{ caller }

// NewKinds returns a client of the kinds. It fails if the URL cannot be right; it does not connect.
func NewKinds(cfg Config) (*Kinds, error) {
	caller, err := newCaller(cfg)
	if err != nil {
		return nil, err
	}
	return &Kinds{caller}, nil
}

// Put gives a kind a schema, or another one in its place. Objects that are there stay as they are; the next change of
// their spec has to suit it. The errors that it fails with name what is wrong in the schema.
func (k *Kinds) Put(ctx context.Context, kind string, schema json.RawMessage) (*Kind, error) {
	body := struct {
		Schema json.RawMessage `json:"schema"`
	}{schema}
	return k.one(ctx, kind, "put", call{method: http.MethodPut, body: body, repeatable: true})
}

// Get reads one kind, or fails with [ErrNotFound].
func (k *Kinds) Get(ctx context.Context, kind string) (*Kind, error) {
	return k.one(ctx, kind, "get", call{method: http.MethodGet, repeatable: true})
}

// Delete drops the schema of a kind. It fails with [ErrConflict] while there are objects of it.
func (k *Kinds) Delete(ctx context.Context, kind string) error {
	_, err := k.one(ctx, kind, "delete", call{method: http.MethodDelete})
	return err
}

func (k *Kinds) one(ctx context.Context, kind, verb string, asked call) (*Kind, error) {
	asked.doing = verb + " kind " + kind
	if err := subject.CheckKind(kind); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", asked.doing, ErrInvalid, err)
	}
	out := new(Kind)
	asked.path, asked.out = "/v1/kinds/"+kind, out
	_, err := k.do(ctx, asked)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// All ranges over the kinds that have a schema, in the order of their names. After an error it ends.
func (k *Kinds) All(ctx context.Context) iter.Seq2[*Kind, error] {
	return func(yield func(*Kind, error) bool) {
		for q := (url.Values{"limit": {strconv.Itoa(PageSize)}}); ; {
			var page struct {
				Items []*Kind `json:"items"`
				Next  string  `json:"next"`
			}
			if _, err := k.do(ctx, call{method: http.MethodGet, path: "/v1/kinds?" + q.Encode(), out: &page, doing: "list kinds", repeatable: true}); err != nil {
				yield(nil, err)
				return
			}
			for _, kind := range page.Items {
				if !yield(kind, nil) {
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
