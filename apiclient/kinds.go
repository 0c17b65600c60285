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

// AsStored asks for each object in the version that it is stored in, in place of the name of one: no hook is needed for that.
const AsStored = "*"

// KindVersion is an older version of a kind.
type KindVersion struct {
	// Name names the version: a DNS-1123 label, such as "v1".
	Name string `json:"name"`
	// Schema is the JSON Schema (draft 2020-12) that specs of the version are checked against.
	Schema json.RawMessage `json:"schema"`
}

// Conversion is the hook that converts between the versions of a kind; the package documentation has what it is asked.
type Conversion struct {
	// URL is where it is asked. It is https, unless it is on the API's own machine.
	URL string `json:"url"`
	// CABundle are the certificates (PEM) that its server is checked against. Default: those of the API's machine.
	CABundle string `json:"caBundle,omitempty"`
}

// Upgrade is what came of bringing objects to the current version of their kind.
type Upgrade struct {
	// Upgraded is how many were.
	Upgraded int `json:"upgraded"`
	// Left are those that could not be, with the reason.
	Left []Left `json:"left,omitempty"`
	// Stored is how many objects are now stored in which version.
	Stored map[string]int64 `json:"stored,omitempty"`
	// Next leads to the objects behind these, and is empty at the end.
	Next string `json:"next,omitempty"`
}

// Left is an object that was left in its version.
type Left struct {
	// Name is that of the object.
	Name string `json:"name"`
	// Reason is why. It says nothing of its spec.
	Reason string `json:"reason"`
}

// Kind is a kind of objects with the schema of their specs.
type Kind struct {
	// Kind is its name: plural, lower case, a DNS-1123 label.
	Kind string `json:"kind"`
	// Schema is the JSON Schema (draft 2020-12) that specs are checked against.
	Schema json.RawMessage `json:"schema"`
	// Version is the name of the current version, which Schema is of: what specs are stored in, and shown in to who asks for no
	// other. Empty if the kind has no versions.
	Version string `json:"version,omitempty"`
	// Versions are the older versions that are still served, the oldest first.
	Versions []KindVersion `json:"versions,omitempty"`
	// Conversion is the hook that converts between them. Nil if there are none, or if the hooks come with the API's program.
	Conversion *Conversion `json:"conversion,omitempty"`
	// Stored is how many objects are stored in which version; lists leave it out.
	Stored map[string]int64 `json:"stored,omitempty"`
	// Revision grows with each change of the schema, the versions or the hook.
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

// Define gives a kind its schema, versions and hook: Kind, Schema, Version, Versions and Conversion of it. Objects that are
// there stay as they are, in the version that they are stored in, and are shown in whichever is asked for. It fails with
// [ErrConflict] if a version that objects are stored in would not be there any more: Upgrade them first.
func (k *Kinds) Define(ctx context.Context, kind Kind) (*Kind, error) {
	body := struct {
		Schema     json.RawMessage `json:"schema"`
		Version    string          `json:"version,omitempty"`
		Versions   []KindVersion   `json:"versions,omitempty"`
		Conversion *Conversion     `json:"conversion,omitempty"`
	}{kind.Schema, kind.Version, kind.Versions, kind.Conversion}
	return k.one(ctx, kind.Kind, "put", call{method: http.MethodPut, body: body, repeatable: true})
}

// Upgrade brings all objects of a kind that are stored in older versions to the current one. Neither their revisions nor their
// controllers notice. It may run while others write, be interrupted, and be run again. progress, which may be nil, is called
// with each part of it.
func (k *Kinds) Upgrade(ctx context.Context, kind string, progress func(Upgrade)) (Upgrade, error) {
	var all Upgrade
	if err := subject.CheckKind(kind); err != nil {
		return all, fmt.Errorf("upgrade kind %s: %w: %w", kind, ErrInvalid, err)
	}
	for q := (url.Values{}); ; {
		var part Upgrade
		asked := call{method: http.MethodPost, path: "/v1/kinds/" + kind + "/upgrade?" + q.Encode(), out: &part, doing: "upgrade kind " + kind, repeatable: true}
		if _, err := k.do(ctx, asked); err != nil {
			return all, err
		}
		all.Upgraded, all.Left, all.Stored = all.Upgraded+part.Upgraded, append(all.Left, part.Left...), part.Stored
		if progress != nil {
			progress(part)
		}
		if part.Next == "" {
			return all, nil
		}
		q.Set("cursor", part.Next)
	}
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
