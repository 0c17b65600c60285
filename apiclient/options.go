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
	labels  map[string]string
	ifMatch string
}

// WithLabels sets the object's labels.
func WithLabels(labels map[string]string) Option { return func(w *write) { w.labels = labels } }

// IfRevision makes a [Client.Put] or a [Client.Patch] fail with [ErrConflict] unless the object is at that revision.
func IfRevision(revision int64) Option {
	return func(w *write) { w.ifMatch = strconv.Quote(strconv.FormatInt(revision, 10)) }
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
