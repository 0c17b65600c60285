package apiclient

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Errors that calls return; test with errors.Is.
var (
	// ErrNotFound: there is no object of that kind and name. Only the API itself says so (problem type "not-found").
	ErrNotFound = errors.New("not found")
	// ErrExists: an object of that kind and name is already there.
	ErrExists = errors.New("already exists")
	// ErrConflict: the object is not the one that was read; read it again.
	ErrConflict = errors.New("conflict")
	// ErrFenced: a later holder of the object's lock has already written; this writer is out of date and must stop.
	ErrFenced = errors.New("fenced")
	// ErrInvalid: the request is wrong and will be refused again; the Problem names the fields. Only the API itself says so
	// (problem type "invalid"), or the client before it sends anything.
	ErrInvalid = errors.New("invalid")
	// ErrUnauthorized: the request came without a valid token or client certificate.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrForbidden: who asks is known, and may not do that. Whether the object exists is not said.
	ErrForbidden = errors.New("forbidden")
	// ErrSealed: the object is there, and the API cannot decrypt its secrets. Other objects are not affected.
	ErrSealed = errors.New("sealed")
	// ErrConversion: the object is there, and the hook that converts between the versions of its kind failed. It is ErrUnavailable
	// as well: the same call may succeed later.
	ErrConversion = errors.New("conversion failed")
	// ErrUnexpectedResponse: the answer is one that the API does not give, from a proxy in between, say, or because Config.URL
	// is not the API's. It says nothing of the object; whether a write took effect is unknown.
	ErrUnexpectedResponse = errors.New("unexpected response")
	// ErrUnavailable: the server could not be reached or could not answer; the same call may succeed later. Whether a
	// write took effect is unknown.
	ErrUnavailable = errors.New("unavailable")
)

// Problem types, the last path segment of a problem's type.
const (
	TypeNotFound     = "not-found"
	TypeExists       = "exists"
	TypeConflict     = "conflict"
	TypeFenced       = "fenced"
	TypeInvalid      = "invalid"
	TypeUnauthorized = "unauthorized"
	TypeForbidden    = "forbidden"
	TypeRateLimited  = "rate-limited"
	TypeSealed       = "sealed"
	TypeConversion   = "conversion"
)

var problemTypes = []string{
	TypeNotFound, TypeExists, TypeConflict, TypeFenced, TypeInvalid, TypeUnauthorized, TypeForbidden, TypeRateLimited, TypeSealed, TypeConversion,
}

// Problem is an error answer of the API (RFC 9457).
type Problem struct {
	// Type is one of the Type constants, as a URI whose last path segment names it; other servers send others.
	Type string `json:"type,omitempty"`
	// Title and Detail are for people.
	Title  string `json:"title,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Status is the HTTP status code.
	Status int `json:"status,omitempty"`
	// Errors names each field that was wrong.
	Errors []FieldError `json:"errors,omitempty"`
}

// FieldError is one thing wrong with a request.
type FieldError struct {
	// Location is where, such as "body.spec.size".
	Location string `json:"location,omitempty"`
	// Message is what.
	Message string `json:"message,omitempty"`
}

// Error gives the detail, or the title if there is none, and the fields.
func (p *Problem) Error() string {
	var b strings.Builder
	switch {
	case p.Detail != "":
		b.WriteString(p.Detail)
	case p.Title != "":
		b.WriteString(p.Title)
	default:
		fmt.Fprintf(&b, "HTTP status %d", p.Status)
	}
	for _, e := range p.Errors {
		fmt.Fprintf(&b, "; %s: %s", e.Location, e.Message)
	}
	return b.String()
}

// Is makes errors.Is work with the package's sentinels.
func (p *Problem) Is(target error) bool {
	name := p.Type[strings.LastIndex(p.Type, "/")+1:]
	switch target {
	case ErrNotFound:
		// Not any 404: a proxy without a backend, or a wrong base URL, says 404 of objects that exist, and a controller
		// takes "not found" as "nothing left to do".
		return name == TypeNotFound
	case ErrExists:
		return name == TypeExists
	case ErrFenced:
		return name == TypeFenced
	case ErrConflict:
		return name == TypeConflict
	case ErrInvalid:
		return name == TypeInvalid
	case ErrUnexpectedResponse:
		return p.unexpected(name)
	case ErrUnauthorized:
		return p.Status == 401
	case ErrForbidden:
		return p.Status == 403
	case ErrSealed:
		return name == TypeSealed
	case ErrConversion:
		return name == TypeConversion
	case ErrUnavailable:
		return p.Status == 429 || p.Status >= 500 && name != TypeSealed
	}
	return false
}

// unexpected reports whether the problem is a refusal that does not come from the API. What a proxy says of credentials, or of
// being busy, means the same as from the API.
func (p *Problem) unexpected(name string) bool {
	switch p.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		return false
	}
	return p.Status >= 300 && p.Status < 500 && !slices.Contains(problemTypes, name)
}
