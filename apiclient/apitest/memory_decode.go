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
)

// maxBody is the limit of a request's body, in bytes.
const maxBody = 1 << 20

// decode reads a JSON body strictly.
func decode(r *http.Request, into any) error {
	if ct := r.Header.Get("Content-Type"); ct != "" {
		if media, _, err := mime.ParseMediaType(ct); err != nil || media != "application/json" {
			return invalidStatus(http.StatusUnsupportedMediaType, "body", "want Content-Type application/json")
		}
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return invalidStatus(http.StatusBadRequest, "body", "read: "+err.Error())
	case len(data) > maxBody:
		return invalidStatus(http.StatusRequestEntityTooLarge, "body", fmt.Sprintf("larger than %d bytes", maxBody))
	case !utf8.Valid(data):
		return invalidStatus(http.StatusBadRequest, "body", "not UTF-8")
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
		return invalid("body."+wrongType.Field, "is a JSON "+wrongType.Value)
	}
	if _, field, ok := strings.Cut(err.Error(), "unknown field "); ok {
		return invalid("body."+strings.Trim(field, `"`), "unknown field")
	}
	return invalidStatus(http.StatusBadRequest, "body", err.Error())
}
