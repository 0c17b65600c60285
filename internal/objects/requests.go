package objects

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

const (
	// MaxBody is the limit of a request's body, in bytes: manifests of public projects have up to four megabytes.
	MaxBody = 8 << 20
	// MaxPage ends a page of a list early, in bytes of spec and status: well below what the client reads of one answer.
	MaxPage = 8 << 20
)

// CheckKey checks kind and name. nameAt says where in the request the name is.
func CheckKey(k Key, nameAt string) error {
	if err := CheckKind(k.Kind); err != nil {
		return err
	}
	if err := subject.CheckObject(k.Kind, k.Name); err != nil {
		return Invalid(nameAt, err.Error())
	}
	return nil
}

// CheckKind checks the kind in a path.
func CheckKind(kind string) error {
	if err := subject.CheckKind(kind); err != nil {
		return Invalid("path.kind", err.Error())
	}
	return nil
}

// CheckDocument checks a spec or a status.
func CheckDocument(at string, doc json.RawMessage) error {
	if !bytes.HasPrefix(bytes.TrimLeft(doc, " \t\r\n"), []byte("{")) {
		return Invalid(at, "want a JSON object")
	}
	if !utf8.Valid(doc) {
		return Invalid(at, "not UTF-8") // which PostgreSQL refuses to store
	}
	return nil
}

// CheckPatch checks a status patch.
func CheckPatch(p *apiclient.StatusPatch) error {
	switch {
	case p.UID == "":
		return Invalid("body.uid", "want the uid of the object that was read")
	case p.Fence > math.MaxInt64:
		return Invalid("body.fence", "want the fencing token of the lock")
	case slices.Contains(p.AddFinalizers, ""):
		return Invalid("body.addFinalizers", "a name is empty")
	case p.Note != nil && !slices.Contains(noteReasons, p.Note.Reason):
		return Invalid("body.note.reason", "want "+strings.Join(noteReasons, " or "))
	case p.Note != nil && !utf8.ValidString(p.Note.Message):
		return Invalid("body.note.message", "not UTF-8")
	case len(p.Status) > 0:
		return CheckDocument("body.status", p.Status)
	}
	return nil
}

// ParseIfMatch returns the revision that a request insists on, or 0 if it does not.
func ParseIfMatch(header string) (int64, error) {
	if header == "" {
		return 0, nil
	}
	digits, quoted := strings.CutPrefix(header, `"`)
	digits, closed := strings.CutSuffix(digits, `"`)
	revision, err := strconv.ParseInt(digits, 10, 64)
	if !quoted || !closed || err != nil || revision < 1 {
		return 0, Invalid("header.If-Match", fmt.Sprintf("want a revision in quotes, not %q", header))
	}
	return revision, nil
}

// MaxLabel is the limit of a label and of its value, in bytes.
const MaxLabel = 253

// CheckLabels checks the labels of a request: a name of letters, digits and . _ / -, and a value that a list can select by.
func CheckLabels(at string, labels map[string]string) error {
	for name, value := range labels {
		switch {
		case name == "" || len(name) > MaxLabel || strings.ContainsFunc(name, notInLabel):
			return Invalid(at, fmt.Sprintf("%q: want 1 to %d letters, digits and . _ / - as the name of a label", name, MaxLabel))
		case len(value) > MaxLabel || strings.ContainsAny(value, ",\x00") || !utf8.ValidString(value):
			return Invalid(at+"."+name, fmt.Sprintf("want up to %d bytes without a comma as the value of a label", MaxLabel))
		}
	}
	return nil
}

func notInLabel(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._/-", r)
}

// ParseLabels returns the labels that objects must have: a=b,c=d.
func ParseLabels(query string) (map[string]string, error) {
	labels := map[string]string{}
	if query == "" {
		return labels, nil
	}
	for pair := range strings.SplitSeq(query, ",") {
		name, value, ok := strings.Cut(pair, "=")
		if _, twice := labels[name]; !ok || twice {
			return nil, Invalid("query.labels", fmt.Sprintf("want label=value, each label once, separated by commas, not %q", query))
		}
		labels[name] = value
	}
	return labels, CheckLabels("query.labels", labels)
}
