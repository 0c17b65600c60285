package apitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

func problem(status int, name, detail string, fields ...apiclient.FieldError) *apiclient.Problem {
	return &apiclient.Problem{
		Type: "/problems/" + name, Title: http.StatusText(status), Status: status, Detail: detail, Errors: fields,
	}
}

func notFound(k key) error {
	return problem(http.StatusNotFound, apiclient.TypeNotFound, fmt.Sprintf("%s/%s: not found", k.kind, k.name))
}

func exists(k key) error {
	return problem(http.StatusConflict, apiclient.TypeExists, fmt.Sprintf("%s/%s: already exists", k.kind, k.name))
}

func otherRevision(k key, is, want int64) error {
	return conflict(k, fmt.Sprintf("it is at revision %d, not %d", is, want))
}

func conflict(k key, why string) error {
	return problem(http.StatusConflict, apiclient.TypeConflict, fmt.Sprintf("%s/%s: %s", k.kind, k.name, why))
}

func fenced(k key, got, highest uint64) error {
	return problem(http.StatusConflict, apiclient.TypeFenced,
		fmt.Sprintf("%s/%s: fence %d is lower than %d, which has already written", k.kind, k.name, got, highest))
}

func invalid(location, message string) error {
	return invalidStatus(http.StatusUnprocessableEntity, location, message)
}

func invalidStatus(status int, location, message string) error {
	return problem(status, apiclient.TypeInvalid, "the request is wrong", apiclient.FieldError{Location: location, Message: message})
}

// unknownPath has no type: "not-found" is said of objects only.
func unknownPath(r *http.Request) error {
	return &apiclient.Problem{Title: "Not Found", Status: http.StatusNotFound, Detail: r.URL.Path + ": no such path"}
}

func checkKey(k key, nameLocation string) error {
	if err := subject.CheckKind(k.kind); err != nil {
		return invalid("path.kind", err.Error())
	}
	if err := subject.CheckObject(k.kind, k.name); err != nil {
		return invalid(nameLocation, err.Error())
	}
	return nil
}

func pathKey(r *http.Request) (key, error) {
	k := key{r.PathValue("kind"), r.PathValue("name")}
	return k, checkKey(k, "path.name")
}

func checkDocument(location string, doc json.RawMessage) error {
	if !bytes.HasPrefix(bytes.TrimLeft(doc, " \t\r\n"), []byte("{")) {
		return invalid(location, "want a JSON object")
	}
	return nil
}

// ifMatch returns the revision that the request insists on, or 0 if it does not.
func ifMatch(r *http.Request) (int64, error) {
	s := r.Header.Get("If-Match")
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

// write sends a handler's answer.
func write(w http.ResponseWriter, status int, body any, err error) {
	contentType := "application/json"
	if err != nil {
		p := new(apiclient.Problem)
		errors.As(err, &p) // nothing else is ever returned
		status, body, contentType = p.Status, p, "application/problem+json"
	}
	if status == http.StatusNoContent {
		w.WriteHeader(status)
		return
	}
	data, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	w.Write(data)
}
