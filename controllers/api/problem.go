package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// problem is an error answer. It makes the client's type one that huma sends as it is.
type problem struct {
	*apiclient.Problem
	// retryAfter, in seconds, says that nothing was done and when to come back.
	retryAfter int
}

// GetStatus is the HTTP status, for huma.
func (p problem) GetStatus() int { return p.Status }

// GetHeaders are the headers of the answer, for huma.
func (p problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	return h
}

// ContentType is that of RFC 9457, for huma.
func (p problem) ContentType(string) string { return "application/problem+json" }

// fromHuma turns the errors that huma makes of wrong requests into ours. It leaves out the values that huma repeats:
// a body may hold secrets, and errors are logged.
func fromHuma(ctx huma.Context, _ string, v any) (any, error) {
	if p, ok := v.(problem); ok {
		setProblem(ctx.Context(), p.Type)
	}
	e, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	name := ""
	switch e.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		name = apiclient.TypeInvalid
	}
	p := objects.NewProblem(e.Status, name, e.Detail)
	for _, d := range e.Errors {
		if d != nil {
			p.Errors = append(p.Errors, apiclient.FieldError{Location: d.Location, Message: d.Message})
		}
	}
	if name != "" && len(p.Errors) == 0 { // a body that is too large, or that is not there
		p.Errors = []apiclient.FieldError{{Location: "body", Message: e.Detail}}
	}
	setProblem(ctx.Context(), p.Type)
	return problem{Problem: p}, nil
}

// failed makes an answer of an error: problems as they are, everything else without the details, which go to the log.
func (a *API) failed(ctx context.Context, doing string, err error) error {
	var p *apiclient.Problem
	retryAfter := 0
	switch {
	case errors.As(err, &p):
	case ctx.Err() != nil: // the client has gone
		p = objects.NewProblem(http.StatusServiceUnavailable, "", doing+": the request was cancelled")
	case errors.Is(err, errSealed): // it says which keys
		a.log.Error(err, "an object cannot be encrypted or decrypted", "doing", doing)
		a.metrics.failures.Inc()
		p = objects.NewProblem(http.StatusInternalServerError, apiclient.TypeSealed, err.Error())
	case errors.Is(err, errNoFeed), errors.Is(err, errCrowded):
		p = objects.NewProblem(http.StatusServiceUnavailable, "", doing+": "+err.Error())
		retryAfter = 1
	case a.store.lostRace(err):
		a.log.Error(err, "store is busy", "doing", doing)
		a.metrics.failures.Inc()
		p = objects.NewProblem(http.StatusServiceUnavailable, "", doing+": the store is busy, try again")
		retryAfter = 1
	default:
		a.log.Error(err, "request failed", "doing", doing)
		a.metrics.failures.Inc()
		p = objects.NewProblem(http.StatusInternalServerError, "", doing+": the store failed, see the log of the server")
	}
	return problem{Problem: p, retryAfter: retryAfter}
}
