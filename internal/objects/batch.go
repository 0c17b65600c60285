package objects

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// MaxBatch is how many objects one batch may have.
const MaxBatch = 500

// Asked is one item of a batch: what an object is to be, or that it is not to be.
type Asked struct {
	Key    Key
	Delete bool
	Wanted Wanted
	// At is its place in the request.
	At int
}

// ParseBatch checks the items of a batch and brings them into the order in which they are to be applied: one for all, so
// that two batches never wait for each other.
func ParseBatch(items []apiclient.Item) ([]Asked, error) {
	if len(items) == 0 || len(items) > MaxBatch {
		return nil, Invalid("body.items", fmt.Sprintf("want 1 to %d", MaxBatch))
	}
	seen := map[Key]bool{}
	var batch []Asked
	for i, item := range items {
		a := Asked{
			Key: Key{item.Kind, item.Name}, Delete: item.Delete, At: i,
			Wanted: Wanted{IfMatch: item.Revision, Labels: item.Labels, Spec: item.Spec},
		}
		if err := checkAsked(a, item); err != nil {
			return nil, a.Failed(err)
		}
		if seen[a.Key] {
			return nil, Invalid(fmt.Sprintf("body.items.%d", i), a.Key.String()+" is there twice")
		}
		seen[a.Key] = true
		batch = append(batch, a)
	}
	slices.SortFunc(batch, func(a, b Asked) int {
		return cmp.Or(cmp.Compare(subject.Shard(a.Key.Kind, a.Key.Name), subject.Shard(b.Key.Kind, b.Key.Name)),
			cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return batch, nil
}

func checkAsked(a Asked, item apiclient.Item) error {
	if err := subject.CheckKind(a.Key.Kind); err != nil {
		return Invalid("body.kind", err.Error())
	}
	if err := CheckKey(a.Key, "body.name"); err != nil {
		return err
	}
	switch {
	case item.Revision < 0:
		return Invalid("body.revision", "want that of the object, or none")
	case !a.Delete:
		return a.Wanted.Check()
	case len(item.Spec) > 0 || len(item.Labels) > 0:
		return Invalid("body.delete", "want either that or a spec")
	}
	return nil
}

// Failed makes an error of one object that of a batch: it names the item.
func (a *Asked) Failed(err error) error {
	var p *apiclient.Problem
	if !errors.As(err, &p) {
		return err
	}
	named := *p
	named.Errors = slices.Clone(p.Errors)
	for i, e := range named.Errors {
		e.Location = strings.TrimPrefix(strings.TrimPrefix(e.Location, "body."), "path.")
		named.Errors[i].Location = fmt.Sprintf("body.items.%d.%s", a.At, e.Location)
	}
	if len(named.Errors) == 0 {
		named.Errors = []apiclient.FieldError{{Location: fmt.Sprintf("body.items.%d", a.At), Message: p.Detail}}
		named.Detail = "nothing was done"
	}
	return &named
}

// Rule is what an item does to the object that is there.
func (a *Asked) Rule() Rule {
	if !a.Delete {
		return Replace(a.Wanted)
	}
	return func(o *apiclient.Raw) (Effect, error) {
		if a.Wanted.IfMatch != 0 && a.Wanted.IfMatch != o.Revision {
			return unwritten, otherRevision(o, a.Wanted.IfMatch)
		}
		return RequestDeletion(o)
	}
}

// Absent is what an item comes to when there is no object: a new one is made, nothing is left to delete, or it fails.
func (a *Asked) Absent() (create bool, err error) {
	switch {
	case a.Wanted.IfMatch != 0:
		return false, NotThere(a.Key)
	case a.Delete:
		return false, nil
	}
	return true, nil
}

// MaxRequestKey is the limit of an Idempotency-Key, in bytes.
const MaxRequestKey = 255

// CheckRequestKey checks an Idempotency-Key; none is right, too.
func CheckRequestKey(key string) error {
	if len(key) > MaxRequestKey || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		return Invalid("header.Idempotency-Key", fmt.Sprintf("want up to %d printable characters of ASCII", MaxRequestKey))
	}
	return nil
}

// OtherRequest refuses a key that was used for something else.
func OtherRequest() error {
	return Invalid("header.Idempotency-Key", "another request was made under this key")
}

// MadeAndGone answers a create that is sent again when what it had made is not there any more.
func MadeAndGone(k Key) error {
	return NewProblem(http.StatusConflict, apiclient.TypeConflict, k.String()+": it was created under this key, and has gone since")
}
