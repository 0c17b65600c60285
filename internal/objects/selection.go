package objects

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

const (
	// DefaultLimit is how many objects a page of a list has.
	DefaultLimit = 100
	// MaxLimit is how many it may be asked to have.
	MaxLimit = 500
	// MaxScan is how many objects are looked at for a page. One for which fewer were found leads on.
	MaxScan = 5000
)

// ListQuery is what a request for a list says.
type ListQuery struct{ Limit, Cursor, Labels, State, Fields, Unsettled, Sort string }

// Selection says which objects of a kind a list has, and in which order.
type Selection struct {
	Labels map[string]string
	State  apiclient.State // any, if it is empty
	Fields []Field
	// OwedAt, unless it is nil, is since when they have been owed a reconcile, or longer.
	OwedAt *time.Time
	Sort   Sort
	// After is the position behind which the list goes on, nil if it begins.
	After *Position
	Limit int
}

// ParseSelection checks what a request for a list says.
func ParseSelection(q ListQuery) (s Selection, err error) {
	errs := make([]error, 7)
	s.Limit, errs[0] = parseLimit(q.Limit)
	s.Labels, errs[1] = ParseLabels(q.Labels)
	s.State, errs[2] = parseState(q.State)
	s.Fields, errs[3] = parseFields(q.Fields)
	s.OwedAt, errs[4] = parseUnsettled(q.Unsettled)
	s.Sort, errs[5] = parseSort(q.Sort)
	if errs[5] == nil && q.Cursor != "" {
		s.After, errs[6] = s.Sort.parseCursor(q.Cursor)
	}
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i >= 0 {
		return s, errs[i]
	}
	return s, nil
}

// Everything is all objects with these labels behind a name, in the order of names.
func Everything(labels map[string]string, after string) Selection {
	s := Selection{Labels: labels, Sort: Sort{By: byName}, Limit: MaxLimit}
	if after != "" {
		s.After = &Position{Name: after}
	}
	return s
}

// ParsePage checks what a request says of a list that has one order and nothing to select by. after is empty at its begin.
func ParsePage(limit, cursor string) (after string, atMost int, err error) {
	s, err := ParseSelection(ListQuery{Limit: limit, Cursor: cursor})
	if s.After != nil {
		after = s.After.Name
	}
	return after, s.Limit, err
}

// PageCursor is what leads to the page behind a name of such a list.
func PageCursor(name string) string { return Sort{By: byName}.Cursor(Position{Name: name}) }

// Selects reports whether an object is in the list, wherever.
func (s *Selection) Selects(o *apiclient.Raw) bool {
	if !Labeled(o, s.Labels) || s.State != "" && StateOf(o) != s.State {
		return false
	}
	if s.OwedAt != nil {
		if since, owed := o.OwedSince(Now()); !owed || since.After(*s.OwedAt) {
			return false
		}
	}
	return !slices.ContainsFunc(s.Fields, func(f Field) bool { return !f.matches(o) })
}

// Labeled reports whether an object has all of these labels.
func Labeled(o *apiclient.Raw, labels map[string]string) bool {
	for name, value := range labels {
		if have, ok := o.Labels[name]; !ok || have != value {
			return false
		}
	}
	return true
}

// StateOf is the state of an object, which is Pending if none is said.
func StateOf(o *apiclient.Raw) apiclient.State {
	return cmp.Or(o.Reconciliation.State, apiclient.StatePending)
}

func parseLimit(text string) (int, error) {
	if text == "" {
		return DefaultLimit, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > MaxLimit {
		return 0, Invalid("query.limit", fmt.Sprintf("want 1 to %d", MaxLimit))
	}
	return limit, nil
}

func parseState(text string) (apiclient.State, error) {
	s := apiclient.State(text)
	if text != "" && !slices.Contains(apiclient.States, s) {
		return "", Invalid("query.state", fmt.Sprintf("want one of %v", apiclient.States))
	}
	return s, nil
}

// Orders of a list.
const (
	byName    = "name"
	byCreated = "created"
	byChanged = "changed"
)

// Sort is the order of a list; objects of one time are in that of their names.
type Sort struct {
	By         string
	Descending bool
}

func parseSort(text string) (Sort, error) {
	by, descending := strings.CutPrefix(cmp.Or(text, byName), "-")
	if by != byName && by != byCreated && by != byChanged {
		return Sort{}, Invalid("query.sort", "want name, created or changed, with - before it for the opposite order")
	}
	return Sort{By: by, Descending: descending}, nil
}

// ByTime reports whether objects are in the order of a time.
func (s Sort) ByTime() bool { return s.By != byName }

// Position is where an object stands in an order.
type Position struct {
	At   int64 // microseconds since 1970; 0 in the order of names
	Name string
}

// Of is the position of an object.
func (s Sort) Of(o *apiclient.Raw) Position {
	switch s.By {
	case byCreated:
		return Position{o.CreatedAt.UnixMicro(), o.Name}
	case byChanged:
		return Position{o.ChangedAt.UnixMicro(), o.Name}
	}
	return Position{0, o.Name}
}

// Compare is the order itself.
func (s Sort) Compare(a, b Position) int {
	c := cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Name, b.Name))
	if s.Descending {
		return -c
	}
	return c
}

// Cursor is what leads to the page behind a position.
func (s Sort) Cursor(p Position) string {
	text := p.Name
	if s.ByTime() {
		text = fmt.Sprintf("%s %d %s", s.By, p.At, p.Name)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func (s Sort) parseCursor(cursor string) (*Position, error) {
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	p := &Position{Name: string(text)}
	if parts := strings.Split(string(text), " "); err == nil && s.ByTime() {
		if len(parts) != 3 || parts[0] != s.By {
			return nil, wrongCursor()
		}
		p.Name = parts[2]
		p.At, err = strconv.ParseInt(parts[1], 10, 64)
	}
	if err != nil || subject.CheckObject("any", p.Name) != nil {
		return nil, wrongCursor()
	}
	return p, nil
}

func wrongCursor() error {
	return Invalid("query.cursor", "want the next of an earlier page in the same order")
}

// parseUnsettled returns the time since when objects must have been owed a reconcile, or nil if the request does not say.
func parseUnsettled(text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	atLeast, err := time.ParseDuration(text)
	if err != nil || atLeast < 0 {
		return nil, Invalid("query.unsettled", fmt.Sprintf("want a duration such as 1m30s, not %q", text))
	}
	at := Now().Add(-atLeast)
	return &at, nil
}

// Field is a test of one field of spec or status.
type Field struct {
	path  []string
	value string
	not   bool
}

// parseFields reads spec.region=eu,status.phase!=Running.
func parseFields(text string) (fields []Field, err error) {
	if text == "" {
		return nil, nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		path, value, ok := strings.Cut(pair, "=")
		path, not := strings.CutSuffix(path, "!")
		steps := strings.Split(path, ".")
		if !ok || len(steps) < 2 || steps[0] != "spec" && steps[0] != "status" || slices.Contains(steps, "") {
			return nil, Invalid("query.fields", fmt.Sprintf("want spec.a.b=value or status.a!=value, separated by commas, not %q", path))
		}
		fields = append(fields, Field{path: steps, value: value, not: not})
	}
	return fields, nil
}

// SpecPath is the way to the field in the spec; ok is false if it is one of the status.
func (f *Field) SpecPath() (path []string, ok bool) { return f.path[1:], f.path[0] == "spec" }

// matches compares strings as they are, and other values as JSON.
func (f *Field) matches(o *apiclient.Raw) bool {
	doc := o.Spec
	if f.path[0] == "status" {
		doc = o.Status
	}
	value := doc
	for _, step := range f.path[1:] {
		var found bool
		if value, found = below(value, step); !found {
			return f.not
		}
	}
	var text string
	if json.Unmarshal(value, &text) == nil && !bytes.Equal(value, []byte("null")) {
		return (text == f.value) != f.not
	}
	return (json.Valid([]byte(f.value)) && apiclient.SameJSON(value, json.RawMessage(f.value))) != f.not
}

// below is a field of an object, or an item of an array.
func below(doc json.RawMessage, step string) (json.RawMessage, bool) {
	if fields, ok := object(doc); ok {
		value, found := fields[step]
		return value, found
	}
	var items []json.RawMessage
	i, err := strconv.Atoi(step)
	if err != nil || json.Unmarshal(doc, &items) != nil || i < 0 || i >= len(items) {
		return nil, false
	}
	return items[i], true
}
