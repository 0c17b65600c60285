// Package access says who may do what with the Evenkeel API: roles, the verbs that operations need, and bearer tokens.
//
//	viewer       reads, except what is secret
//	editor       the same, and changes what is wanted: create, put, patch, delete, batch, retry, pause, resume
//	controller   reads, secrets too, and writes what is: the status
//	admin        all of these, gives kinds their schemas, and manages tokens
//
// A [Grant] is a role, for all kinds or for some. What belongs to no kind, such as the tokens, is for grants of all kinds.
package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// Role is a set of verbs.
type Role string

// The roles.
const (
	Viewer     Role = "viewer"
	Editor     Role = "editor"
	Controller Role = "controller"
	Admin      Role = "admin"
)

// Verb is what an operation does, as far as permission goes. Each operation of the API declares one.
type Verb string

// The verbs. Read covers lists and watches. Batch is only to ask: each item is a Put or a Delete of its own kind, and needs
// that permission. ReadSecrets is to be shown the fields that a schema marks x-sensitive; it is no operation of its own. ReadSelf
// is to ask who one is, which a grant for some kinds allows as well.
const (
	Read         Verb = "read"
	ReadSecrets  Verb = "read-secrets"
	Create       Verb = "create"
	Put          Verb = "put"
	Patch        Verb = "patch"
	Delete       Verb = "delete"
	Batch        Verb = "batch"
	Retry        Verb = "retry"
	Pause        Verb = "pause"
	Resume       Verb = "resume"
	PatchStatus  Verb = "patch-status"
	ManageKinds  Verb = "manage-kinds"
	ManageTokens Verb = "manage-tokens"
	ReadSelf     Verb = "read-self"
)

// verbs says what each role may do. A verb that stands nowhere is refused to everybody, admins too.
var verbs = map[Role][]Verb{
	Viewer:     {Read, ReadSelf},
	Editor:     {Read, ReadSelf, Create, Put, Patch, Delete, Batch, Retry, Pause, Resume},
	Controller: {Read, ReadSelf, ReadSecrets, PatchStatus},
	Admin:      {Read, ReadSelf, ReadSecrets, Create, Put, Patch, Delete, Batch, Retry, Pause, Resume, PatchStatus, ManageKinds, ManageTokens},
}

// Grant is what a credential allows.
type Grant struct {
	// Role is one of the roles.
	Role Role `json:"role" enum:"viewer,editor,controller,admin"`
	// Kinds are the kinds that it holds for; none means all.
	Kinds []string `json:"kinds,omitempty" nullable:"false"`
}

// Allows reports whether a verb is allowed on a kind. kind is empty for what belongs to no kind.
func (g Grant) Allows(verb Verb, kind string) bool {
	return g.hasVerb(verb) && (verb == Batch || verb == ReadSelf || g.hasKind(kind))
}

func (g Grant) hasVerb(verb Verb) bool { return slices.Contains(verbs[g.Role], verb) }

func (g Grant) hasKind(kind string) bool { return len(g.Kinds) == 0 || slices.Contains(g.Kinds, kind) }

// Refusal says, to whoever was refused, which role may not do what to which kind.
func (g Grant) Refusal(verb Verb, kind string) string {
	on := ""
	if subject.CheckKind(kind) == nil { // anything else was made up by the caller
		on = " " + kind
	}
	if g.hasVerb(verb) && !g.hasKind(kind) {
		return fmt.Sprintf("role %s may %s only %s here, not%s", g.Role, verb, strings.Join(g.Kinds, ", "), orElse(on, " what belongs to no kind"))
	}
	return fmt.Sprintf("role %s may not %s%s", g.Role, verb, on)
}

func orElse(s, standard string) string {
	if s == "" {
		return standard
	}
	return s
}

// Check reports a role that does not exist and a kind that cannot be one.
func (g Grant) Check() error {
	if _, ok := verbs[g.Role]; !ok {
		return fmt.Errorf("role %q: want viewer, editor, controller or admin", g.Role)
	}
	for _, kind := range g.Kinds {
		if err := subject.CheckKind(kind); err != nil {
			return err
		}
	}
	return nil
}

// ParseGrant reads ROLE or ROLE:KIND,KIND.
func ParseGrant(text string) (Grant, error) {
	role, kinds, limited := strings.Cut(text, ":")
	g := Grant{Role: Role(role)}
	if limited {
		g.Kinds = strings.Split(kinds, ",") // an empty one is refused below: nothing after the colon must not mean all
	}
	return g, g.Check()
}
