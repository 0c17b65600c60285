package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
)

// converter converts specs of a kind between two of its versions.
type converter interface {
	// convert returns the specs of items in the version to. A failure is of the item that it names, or of all of them.
	convert(ctx context.Context, from, to string, items []conversion) ([]json.RawMessage, error)
}

// conversion is a spec to convert.
type conversion struct {
	name string          // of the object, for errors
	Spec json.RawMessage `json:"spec"`
	// Current is the spec of the object as it stands now, in the version that Spec is to be in. It is nil if there is none.
	Current json.RawMessage `json:"current,omitempty"`
}

// hookError is the failure of a hook. Neither text has anything of a spec.
type hookError struct {
	name string // of the object, empty if it is not about one
	// unavailable is whether it may be another time.
	unavailable bool
	why         string
	// cause is for the log of the server.
	cause error
}

// Error says why.
func (e *hookError) Error() string { return e.why }

// Unwrap returns the cause.
func (e *hookError) Unwrap() error { return e.cause }

// noHook stands where nothing converts.
type noHook struct{}

func (noHook) convert(context.Context, string, string, []conversion) ([]json.RawMessage, error) {
	return nil, &hookError{why: "this API has no hooks for these versions: they come with another program"}
}

// Version is an older version of a kind, with the hooks that convert between it and the next one. [VersionOf] makes it.
type Version struct {
	// Name names the version: a DNS-1123 label, such as "v1".
	Name string
	// Schema is that of its specs.
	Schema json.RawMessage

	older, newer reflect.Type
	up           func(old, current json.RawMessage) (json.RawMessage, error)
	down         func(json.RawMessage) (json.RawMessage, error)
}

// VersionOf makes an older version of Go types and functions; its schema is that of Old ([SchemaOf]), and may be replaced by
// another one. New is the type of the next version.
//
// up makes a newer spec of an older one. current is the spec of the object as it stands now, nil if there is none: what Old
// cannot say is to be taken from there, or else it is lost when somebody writes through the old version. down makes an older
// spec of a newer one. Both are called concurrently and must depend on nothing but what they are given.
//
// A spec with a field that its type does not have is an error, so that nothing gets lost unnoticed; in values of type any,
// numbers are a json.Number. The text of an error that up or down returns, or panics with, is written to the log of the API,
// and is not for clients: it should not quote specs, which may hold secrets.
func VersionOf[Old, New any](name string, up func(old Old, current *New) (New, error), down func(New) (Old, error)) Version {
	v := Version{Name: name, Schema: SchemaOf[Old](), older: reflect.TypeFor[Old](), newer: reflect.TypeFor[New]()}
	if up == nil || down == nil {
		return v
	}
	v.up = func(old, current json.RawMessage) (json.RawMessage, error) {
		var from Old
		var now *New
		if err := exactly(old, &from); err != nil {
			return nil, err
		}
		if current != nil {
			now = new(New)
			if err := exactly(current, now); err != nil {
				return nil, err
			}
		}
		to, err := up(from, now)
		return encoded(to, err)
	}
	v.down = func(spec json.RawMessage) (json.RawMessage, error) {
		var from New
		if err := exactly(spec, &from); err != nil {
			return nil, err
		}
		to, err := down(from)
		return encoded(to, err)
	}
	return v
}

// exactly decodes a spec, all of it.
func exactly(spec json.RawMessage, into any) error {
	d := json.NewDecoder(bytes.NewReader(spec))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("the spec does not fit %T: %w", into, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the spec is not one JSON value")
	}
	return nil
}

func encoded(to any, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	return json.Marshal(to)
}

// chain is the hooks of a kind that came with the program.
type chain struct {
	names []string // the oldest first; steps[i] is between names[i] and names[i+1]
	steps []Version
}

// newChain returns nil if there are no older versions.
func newChain(k Kind) (*chain, error) {
	if len(k.Older) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	c := &chain{steps: k.Older}
	for i, v := range k.Older {
		if v.up == nil || v.down == nil {
			return nil, fmt.Errorf("%s has no hooks: make it with VersionOf", v.Name)
		}
		if i > 0 && k.Older[i-1].newer != v.older {
			return nil, fmt.Errorf("%s leads to %s, and %s behind it is of %s: want the oldest first, each leading to the next", k.Older[i-1].Name, k.Older[i-1].newer, v.Name, v.older)
		}
		c.names = append(c.names, v.Name)
	}
	c.names = append(c.names, k.Version)
	return c, nil
}

func (c *chain) convert(_ context.Context, from, to string, items []conversion) (specs []json.RawMessage, err error) {
	for _, item := range items {
		spec, err := c.one(slices.Index(c.names, from), slices.Index(c.names, to), item)
		if err != nil {
			return nil, &hookError{name: item.name, why: "the hook of the program failed, the log of the API says how", cause: err}
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

// one converts one spec, step by step.
func (c *chain) one(from, to int, item conversion) (spec json.RawMessage, err error) {
	defer func() {
		if v := recover(); v != nil {
			spec, err = nil, fmt.Errorf("panic: %v", v)
		}
	}()
	spec = item.Spec
	for i := from; err == nil && i > to; i-- {
		spec, err = c.steps[i-1].down(spec)
	}
	if err != nil || from >= to {
		return spec, err
	}
	now := make([]json.RawMessage, to+1) // what stands now, in each version on the way
	if now[to] = item.Current; item.Current != nil {
		for i := to; err == nil && i > from+1; i-- {
			now[i-1], err = c.steps[i-1].down(now[i])
		}
	}
	for i := from; err == nil && i < to; i++ {
		spec, err = c.steps[i].up(spec, now[i+1])
	}
	return spec, err
}
