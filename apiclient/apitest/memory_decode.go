package apitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// mergeMedia is the type of a merge patch (RFC 7396).
const mergeMedia = "application/merge-patch+json"

// decode reads a JSON body strictly.
func decode(r *http.Request, into any) error {
	const limit = objects.MaxBody
	if ct := r.Header.Get("Content-Type"); ct != "" {
		if media, _, err := mime.ParseMediaType(ct); err != nil || media != "application/json" && media != mergeMedia {
			return objects.InvalidStatus(http.StatusUnsupportedMediaType, "body", "want Content-Type application/json")
		}
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil:
		return objects.InvalidStatus(http.StatusBadRequest, "body", "read: "+err.Error())
	case len(data) > limit:
		return objects.InvalidStatus(http.StatusRequestEntityTooLarge, "body", fmt.Sprintf("larger than %d bytes", limit))
	case !utf8.Valid(data):
		return objects.InvalidStatus(http.StatusBadRequest, "body", "not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err = d.Decode(into)
	if err == nil && d.More() {
		err = errors.New("more than one JSON value")
	}
	return decodeProblem(err)
}

// decodeProblem finds the field in an error of encoding/json.
func decodeProblem(err error) error {
	if err == nil {
		return nil
	}
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && wrongType.Field != "" {
		return objects.Invalid("body."+wrongType.Field, "is a JSON "+wrongType.Value)
	}
	if _, field, ok := strings.Cut(err.Error(), "unknown field "); ok {
		return objects.Invalid("body."+strings.Trim(field, `"`), "unknown field")
	}
	return objects.InvalidStatus(http.StatusBadRequest, "body", err.Error())
}
