package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// problem is an error answer. It makes the client's type one that huma sends as it is.
type problem struct{ *apiclient.Problem }

// GetStatus is the HTTP status, for huma.
func (p problem) GetStatus() int { return p.Status }

// ContentType is that of RFC 9457, for huma.
func (p problem) ContentType(string) string { return "application/problem+json" }

// newProblem makes a problem. name is the last segment of its type, a path on this server; without one it has no type.
func newProblem(status int, name, detail string, fields ...apiclient.FieldError) problem {
	p := &apiclient.Problem{Title: http.StatusText(status), Status: status, Detail: detail, Errors: fields}
	if name != "" {
		p.Type = "/problems/" + name
	}
	return problem{p}
}

func notFound(k key) error {
	return newProblem(http.StatusNotFound, apiclient.TypeNotFound, k.String()+": not found")
}

func exists(k key) error {
	return newProblem(http.StatusConflict, apiclient.TypeExists, k.String()+": already exists")
}

func otherRevision(k key, is, want int64) error {
	return conflict(k, fmt.Sprintf("it is at revision %d, not %d", is, want))
}

func conflict(k key, why string) error {
	return newProblem(http.StatusConflict, apiclient.TypeConflict, k.String()+": "+why)
}

func fenced(k key, got, highest uint64) error {
	return newProblem(http.StatusConflict, apiclient.TypeFenced,
		fmt.Sprintf("%s: fence %d is lower than %d, which has already written", k, got, highest))
}

func invalid(location, message string) error {
	return newProblem(http.StatusUnprocessableEntity, apiclient.TypeInvalid, "the request is wrong",
		apiclient.FieldError{Location: location, Message: message})
}

// fromHuma turns the errors that huma makes of wrong requests into ours. It leaves out the values that huma repeats:
// a body may hold secrets, and errors are logged.
func fromHuma(_ huma.Context, _ string, v any) (any, error) {
	e, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	name := ""
	switch e.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		name = apiclient.TypeInvalid
	}
	p := newProblem(e.Status, name, e.Detail)
	for _, d := range e.Errors {
		if d != nil {
			p.Errors = append(p.Errors, apiclient.FieldError{Location: d.Location, Message: d.Message})
		}
	}
	return p, nil
}

// failed makes an answer of an error of the store: problems as they are, everything else without the details, which go
// to the log.
func (a *API) failed(ctx context.Context, doing string, err error) error {
	var p problem
	switch {
	case errors.As(err, &p):
		return p
	case ctx.Err() != nil: // the client has gone
		return newProblem(http.StatusServiceUnavailable, "", doing+": the request was cancelled")
	case lostRace(err):
		a.log.Error(err, "store is busy", "doing", doing)
		return newProblem(http.StatusServiceUnavailable, "", doing+": the store is busy, try again")
	}
	a.log.Error(err, "request failed", "doing", doing)
	return newProblem(http.StatusInternalServerError, "", doing+": the store failed, see the log of the server")
}
