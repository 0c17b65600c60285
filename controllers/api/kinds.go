package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/schema"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// Kind is a kind of objects whose specs are checked.
type Kind struct {
	// Name is plural and lower case, a DNS-1123 label.
	Name string
	// Schema is the JSON Schema (draft 2020-12) of its specs; [SchemaOf] makes one of a Go type. Fields that it does not name
	// are refused, defaults are filled in, and x-immutable: true is honoured.
	Schema json.RawMessage
}

// SchemaOf is the schema of a Go type, as encoding/json writes it: fields with omitempty may be left out, others are
// required. The tag jsonschema:"minimum=1,default=3,enum=a,enum=b,pattern=…,description=…" says more of a field (see
// github.com/invopop/jsonschema), and jsonschema_extras:"x-immutable=true" that it keeps its first value.
func SchemaOf[T any]() json.RawMessage { return schema.Of[T]() }

// kindsFor is for how long this API may not have noticed what another one on the same store has been told of kinds.
const kindsFor = time.Second

// kinds knows the schemas of the store.
type kinds struct {
	store *store // whose vault is told of the schemas
	// only registered ones are taken
	only bool

	mu     sync.Mutex // guards what follows, and is held while reading the store: one read does for all who wait
	known  map[string]*knownKind
	readAt time.Time
}

type knownKind struct {
	version version
	schema  *schema.Schema
}

// admit returns what decides about specs of a kind, nil if nobody has said anything of it.
func (ks *kinds) admit(ctx context.Context, kind string) (objects.Admit, error) {
	if err := ks.refresh(ctx); err != nil {
		return nil, err
	}
	known := (*ks.store.vault.schemas.Load())[kind]
	switch {
	case known != nil:
		return known.admit(readsSecrets(ctx, kind)), nil
	case ks.only:
		return nil, objects.Invalid("path.kind", fmt.Sprintf("%q is no kind here: PUT its schema to /v1/kinds/%s first", kind, kind))
	}
	return nil, nil //nolint:nilnil // which admits everything
}

// refresh reads what has changed in the store, unless it has just done so.
func (ks *kinds) refresh(ctx context.Context) error {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if time.Since(ks.readAt) > kindsFor || ks.store.vault.doubted.Load() >= ks.readAt.UnixNano() {
		return ks.read(ctx)
	}
	return nil
}

// admit returns what puts back secrets that were shown as REDACTED, fills in defaults, and checks a spec. Who may not read
// secrets learns nothing from what is admitted, such as that a guess is what is there.
func (k *knownKind) admit(readsSecrets bool) objects.Admit {
	return func(before, wanted json.RawMessage) (json.RawMessage, error) {
		known := before
		if !readsSecrets && k.schema.HasSecrets() && len(before) > 0 {
			var err error
			if known, err = k.schema.Redact(before); err != nil {
				return nil, err
			}
		}
		if len(before) > 0 && apiclient.SameJSON(known, wanted) {
			return before, nil
		}
		restored, missing, err := k.schema.Restore("body.spec", before, wanted)
		switch {
		case err != nil:
			return nil, err
		case len(missing) > 0:
			return nil, wrongSpec(missing)
		case readsSecrets && len(before) > 0 && apiclient.SameJSON(before, restored):
			return before, nil
		case readsSecrets:
			wanted = restored
		}
		return k.check(known, wanted, restored)
	}
}

// check fills in the defaults of a spec and checks it. known is what was known of the spec before, and wanted the new one in
// the same form.
func (k *knownKind) check(known, wanted, restored json.RawMessage) (json.RawMessage, error) {
	filled, err := k.schema.Default(restored)
	if err != nil {
		return nil, objects.Invalid("body.spec", err.Error())
	}
	wrong := k.schema.Check("body.spec", filled)
	if len(known) > 0 {
		if wanted, err = k.schema.Default(wanted); err != nil {
			return nil, objects.Invalid("body.spec", err.Error())
		}
		changed, err := k.schema.Changed("body.spec", known, wanted)
		if err != nil {
			return nil, err
		}
		wrong = append(wrong, changed...)
	}
	if len(wrong) > 0 {
		return nil, wrongSpec(wrong)
	}
	return filled, nil
}

func wrongSpec(wrong []apiclient.FieldError) error {
	return objects.NewProblem(http.StatusUnprocessableEntity, apiclient.TypeInvalid, "the spec is wrong", wrong...)
}

// read compiles what has changed in the store. Callers hold mu.
func (ks *kinds) read(ctx context.Context) error {
	at := time.Now()
	versions, err := ks.store.kindVersions(ctx)
	if err != nil {
		return err
	}
	known := map[string]*knownKind{}
	for kind, version := range versions {
		if k := ks.known[kind]; k != nil && k.version == version {
			known[kind] = k
			continue
		}
		stored, err := ks.store.kind(ctx, kind)
		if errors.Is(err, apiclient.ErrNotFound) {
			continue // it has just gone
		}
		if err != nil {
			return err
		}
		compiled, err := schema.Compile(stored.Schema)
		if err != nil {
			return fmt.Errorf("the stored schema of %s: %w", kind, err)
		}
		known[kind] = &knownKind{version: versionOf(stored), schema: compiled}
	}
	ks.known, ks.readAt = known, at
	ks.store.vault.schemas.Store(&known)
	return nil
}

// forget makes the next question read the store.
func (ks *kinds) forget() {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	ks.readAt = time.Time{}
}

// check returns what is wrong with a schema that somebody wants to store.
func (ks *kinds) check(text json.RawMessage) error {
	s, err := schema.Compile(text)
	if err == nil && s.HasSecrets() && ks.store.vault.keys.First() == "" {
		err = errors.New("it has fields with " + schema.Sensitive + ", and this API has no keys to encrypt them with: give it some (--secrets-key-file)")
	}
	return err
}

// register stores the schemas that come with the program.
func (ks *kinds) register(ctx context.Context, all []Kind) error {
	for i, k := range all {
		if err := objects.CheckKind(k.Name); err != nil {
			return fmt.Errorf("Config.Kinds[%d].Name: %w", i, err)
		}
		if err := ks.check(k.Schema); err != nil {
			return fmt.Errorf("Config.Kinds[%d].Schema of %s: %w", i, k.Name, err)
		}
		if _, _, err := ks.store.putKind(ctx, k.Name, k.Schema); err != nil {
			return err
		}
	}
	return nil
}
