package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/schema"
	"github.com/evenkeel-io/evenkeel/internal/objects"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// A kind may have versions: a current one, and older ones that are still served. A row keeps the version that its spec is in,
// and is brought to the current one when its spec is written, or by an upgrade. Hooks convert (hooks.go, webhook.go), and never
// while a transaction or rows are open: a hook may take as long as it likes, and SQLite has one writer.

// maxVersions bounds how many versions of a kind are served.
const maxVersions = 20

// errUnknownVersion: a row is in a version that this API has not heard of yet, or that is not served any more.
var errUnknownVersion = errors.New("it is stored in a version of its kind that is not known here")

// knownKind is what is known of a kind. It is never changed.
type knownKind struct {
	kind    string
	edition edition
	// names are the versions, the oldest first and the current one last. A kind without versions has one, without a name.
	names   []string
	schemas map[string]*schema.Schema // by version
	// base is the version of what was written before the kind had versions.
	base string
	hook converter
}

// current is the version that specs are stored in.
func (k *knownKind) current() string { return k.names[len(k.names)-1] }

// schema is that of the current version.
func (k *knownKind) schema() *schema.Schema { return k.schemas[k.current()] }

// versioned reports whether the kind has versions, and converts whether it has more than the current one.
func (k *knownKind) versioned() bool { return k != nil && k.current() != "" }
func (k *knownKind) converts() bool  { return k != nil && len(k.names) > 1 }

// storedIn is the version that a row says, which fails with errUnknownVersion if there is no such version.
func (k *knownKind) storedIn(version string) (string, error) {
	if version == "" {
		version = k.base
	}
	if !slices.Contains(k.names, version) {
		return "", fmt.Errorf("%w: %s %q", errUnknownVersion, k.kind, version)
	}
	return version, nil
}

// target is the version that a request asks for. Nothing is known of a kind that is nil.
func (k *knownKind) target(kind, asked string) (string, error) {
	switch {
	case asked == "" && k == nil:
		return "", nil
	case asked == "":
		return k.current(), nil
	case k != nil && slices.Contains(k.names, asked):
		return asked, nil
	case !k.versioned():
		return "", objects.Invalid("query.version", fmt.Sprintf("%s has no versions: want none", kind))
	}
	return "", objects.Invalid("query.version", fmt.Sprintf("%s has no such version: want one of %s", kind, strings.Join(k.names, ", ")))
}

// readable is target for requests that only read, which may also ask for each object as it is stored.
func (k *knownKind) readable(kind, asked string) (string, error) {
	if asked == apiclient.AsStored {
		return asked, nil
	}
	return k.target(kind, asked)
}

// definition is what is said of a kind.
type definition struct {
	Schema     json.RawMessage         `json:"-"`
	Version    string                  `json:"-"`
	Versions   []apiclient.KindVersion `json:"versions,omitempty"`
	Conversion *apiclient.Conversion   `json:"conversion,omitempty"`
}

// names are the versions of a definition, the oldest first.
func (d *definition) names() (all []string) {
	for _, v := range d.Versions {
		all = append(all, v.Name)
	}
	return append(all, d.Version)
}

// text is what is stored of a definition besides schema and version.
func (d *definition) text() (string, error) {
	if len(d.Versions) == 0 && d.Conversion == nil {
		return "", nil
	}
	text, err := json.Marshal(d)
	return string(text), err
}

// compile makes of a definition what is known of a kind. Its errors are problems with the place in the body of a request.
func (ks *kinds) compile(kind string, d definition) (*knownKind, error) {
	k := &knownKind{kind: kind, names: d.names(), schemas: map[string]*schema.Schema{}, base: d.names()[0]}
	if len(d.Versions) >= maxVersions {
		return nil, objects.Invalid("body.versions", fmt.Sprintf("want fewer than %d", maxVersions))
	}
	for i, v := range append(slices.Clone(d.Versions), apiclient.KindVersion{Name: d.Version, Schema: d.Schema}) {
		at := fmt.Sprintf("body.versions.%d.", i)
		if i == len(d.Versions) {
			at = "body."
		}
		if err := checkVersion(at, v.Name, i == len(d.Versions), d); err != nil {
			return nil, err
		}
		if k.schemas[v.Name] != nil {
			return nil, objects.Invalid("body.versions", fmt.Sprintf("%q is there twice", v.Name))
		}
		compiled, err := schema.Compile(v.Schema)
		if err != nil {
			return nil, objects.Invalid(at+"schema", err.Error())
		}
		k.schemas[v.Name] = compiled
	}
	for _, name := range k.names {
		if k.schemas[name].HasSecrets() != k.schema().HasSecrets() {
			return nil, objects.Invalid("body.versions", fmt.Sprintf("either all versions have fields with %s or none: what is a secret in one would be shown in another", schema.Sensitive))
		}
	}
	var err error
	k.hook, err = ks.hookOf(k, d.Conversion)
	return k, err
}

// checkVersion checks the name of a version.
func checkVersion(at, name string, current bool, d definition) error {
	at += "name"
	if current {
		at = "body.version"
		if name == "" && len(d.Versions) == 0 && d.Conversion == nil {
			return nil
		}
	}
	if subject.CheckKind(name) != nil {
		return objects.Invalid(at, "want the name of a version, such as v2: 1 to 63 lower-case letters, digits and -")
	}
	return nil
}

// hookOf finds what converts between the versions of a kind: what was said at run time, or else what came with the program.
func (ks *kinds) hookOf(k *knownKind, c *apiclient.Conversion) (converter, error) {
	if c != nil {
		hook, err := newWebhook(k.kind, *c)
		if err != nil {
			return nil, objects.Invalid("body.conversion", err.Error())
		}
		return hook, nil
	}
	if hook := ks.hooks[k.kind]; hook != nil && !slices.ContainsFunc(k.names, func(name string) bool { return !slices.Contains(hook.names, name) }) {
		return hook, nil
	}
	return noHook{}, nil
}

// check returns what is wrong with a definition that somebody wants to store.
func (ks *kinds) check(kind string, d definition) error {
	k, err := ks.compile(kind, d)
	if err != nil {
		return err
	}
	if k.schema().HasSecrets() && ks.store.vault.keys.First() == "" {
		return objects.Invalid("body.schema", "it has fields with "+schema.Sensitive+", and this API has no keys to encrypt them with: give it some (--secrets-key-file)")
	}
	if _, none := k.hook.(noHook); none && k.converts() {
		return objects.Invalid("body.conversion", "there are older versions, and nothing converts: want the url of a hook, or a program with hooks for these versions (api.VersionOf)")
	}
	return nil
}

// stillStored refuses to drop versions that objects are stored in.
func stillStored(kind string, d definition, base string, stored map[string]int64) error {
	var all []string
	for version, n := range stored {
		if version == "" {
			version = base
		}
		if n > 0 && !slices.Contains(d.names(), version) {
			all = append(all, fmt.Sprintf("%d in %s", n, version))
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	return objects.NewProblem(http.StatusConflict, apiclient.TypeConflict, fmt.Sprintf(
		"kinds/%s: objects are stored in versions that would not be there any more: %s; keep these versions, and upgrade the kind before they are dropped",
		kind, strings.Join(all, ", ")))
}
