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
