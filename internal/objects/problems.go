package objects

import (
	"fmt"
	"net/http"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// NewProblem makes a problem. name is the last segment of its type, a path on the server; without one it has no type.
func NewProblem(status int, name, detail string, fields ...apiclient.FieldError) *apiclient.Problem {
	p := &apiclient.Problem{Title: http.StatusText(status), Status: status, Detail: detail, Errors: fields}
	if name != "" {
		p.Type = "/problems/" + name
	}
	return p
}

// NotFound says that an object is not there.
func NotFound(k Key) error {
	return NewProblem(http.StatusNotFound, apiclient.TypeNotFound, k.String()+": not found")
}

// Exists says that an object is there already.
func Exists(k Key) error {
	return NewProblem(http.StatusConflict, apiclient.TypeExists, k.String()+": already exists")
}

// NotThere refuses a write that insists on a revision of an object that is not there.
func NotThere(k Key) error { return conflict(k, "it is not there") }

// Invalid refuses a request for what stands at a place in it, such as body.spec.
func Invalid(at, why string) error {
	return InvalidStatus(http.StatusUnprocessableEntity, at, why)
}

// InvalidStatus is Invalid with another status of HTTP.
func InvalidStatus(status int, at, why string) error {
	return NewProblem(status, apiclient.TypeInvalid, "the request is wrong", apiclient.FieldError{Location: at, Message: why})
}

// UnknownPath has no type: "not-found" is said of objects only, and a controller takes it for their deletion.
func UnknownPath(path string) *apiclient.Problem {
	return NewProblem(http.StatusNotFound, "", path+": no such path")
}

// WrongMethod refuses a method; allow lists those that the path has.
func WrongMethod(method, path, allow string) *apiclient.Problem {
	return NewProblem(http.StatusMethodNotAllowed, "", fmt.Sprintf("%s %s: want %s", method, path, allow))
}

func conflict(k Key, why string) error {
	return NewProblem(http.StatusConflict, apiclient.TypeConflict, k.String()+": "+why)
}

func otherRevision(o *apiclient.Raw, want int64) error {
	return conflict(KeyOf(o), fmt.Sprintf("it is at revision %d, not %d", o.Revision, want))
}

func fenced(k Key, got, highest uint64) error {
	return NewProblem(http.StatusConflict, apiclient.TypeFenced,
		fmt.Sprintf("%s: fence %d is lower than %d, which has already written", k, got, highest))
}
