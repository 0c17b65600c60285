package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/evenkeel-io/evenkeel/internal/subject"
)

func checkKey(k key, nameLocation string) error {
	if err := subject.CheckKind(k.kind); err != nil {
		return invalid("path.kind", err.Error())
	}
	if err := subject.CheckObject(k.kind, k.name); err != nil {
		return invalid(nameLocation, err.Error())
	}
	return nil
}

func checkDocument(location string, doc json.RawMessage) error {
	if !bytes.HasPrefix(bytes.TrimLeft(doc, " \t\r\n"), []byte("{")) {
		return invalid(location, "want a JSON object")
	}
	if !utf8.Valid(doc) {
		return invalid(location, "not UTF-8") // which PostgreSQL refuses to store
	}
	return nil
}

// parseIfMatch returns the revision that a request insists on, or 0 if it does not.
func parseIfMatch(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	digits, quoted := strings.CutPrefix(s, `"`)
	digits, closed := strings.CutSuffix(digits, `"`)
	revision, err := strconv.ParseInt(digits, 10, 64)
	if !quoted || !closed || err != nil || revision < 1 {
		return 0, invalid("header.If-Match", fmt.Sprintf("want a revision in quotes, not %q", s))
	}
	return revision, nil
}

// parseCursor returns the name behind which a page begins.
func parseCursor(s string) (string, error) {
	name, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || s != "" && subject.CheckObject("any", string(name)) != nil {
		return "", invalid("query.cursor", "want the next of an earlier page")
	}
	return string(name), nil
}

// parseUnsettled returns the time since when objects must have been owed a reconcile, or nil if the request does not say.
func parseUnsettled(s string) (*time.Time, error) {
	if s == "" {
		return nil, nil
	}
	atLeast, err := time.ParseDuration(s)
	if err != nil || atLeast < 0 {
		return nil, invalid("query.unsettled", fmt.Sprintf("want a duration such as 1m30s, not %q", s))
	}
	at := now().Add(-atLeast)
	return &at, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
