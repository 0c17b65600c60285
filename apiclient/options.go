package apiclient

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Option changes one write.
type Option func(*write)

type write struct {
	labels   map[string]string
	revision int64 // 0 if any will do
}

// WithLabels sets the object's labels.
func WithLabels(labels map[string]string) Option { return func(w *write) { w.labels = labels } }

// IfRevision makes a [Client.Put], a [Client.Patch] or a batch fail with [ErrConflict] unless the object is at that revision.
func IfRevision(revision int64) Option {
	return func(w *write) { w.revision = revision }
}

// ifMatch is the revision as the header of that name has it.
func (w write) ifMatch() string {
	if w.revision == 0 {
		return ""
	}
	return strconv.Quote(strconv.FormatInt(w.revision, 10))
}

func options(opts []Option) (w write) {
	for _, o := range opts {
		o(&w)
	}
	return w
}

// ListOption selects what a list has.
type ListOption func(url.Values)

// Labeled selects objects that have all of these labels, with these values.
func Labeled(labels map[string]string) ListOption {
	return func(q url.Values) {
		var pairs []string
		for _, name := range slices.Sorted(maps.Keys(labels)) {
			pairs = append(pairs, name+"="+labels[name])
		}
		q.Set("labels", strings.Join(pairs, ","))
	}
}

// InState selects objects in one state.
func InState(state State) ListOption { return func(q url.Values) { q.Set("state", string(state)) } }

// WithFields selects objects by what is in their spec and status, all of the tests together: "spec.region=eu",
// "status.phase!=Running", "spec.parts.0.size=3". Strings are compared as they are, other values as JSON; a field that is not
// there differs from every value. No index helps with it, so a list of many objects takes time.
func WithFields(tests ...string) ListOption {
	return func(q url.Values) { q.Set("fields", strings.Join(tests, ",")) }
}

// SortedBy gives the order of a list: "name", "created" or "changed" (when what is wanted last changed), with a "-" before
// it for the opposite one.
func SortedBy(order string) ListOption { return func(q url.Values) { q.Set("sort", order) } }
