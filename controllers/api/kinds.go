package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
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
	// Version names the version that Schema is of: a DNS-1123 label, such as "v2". Default: the kind has no versions.
	Version string
	// Older are the versions before it that are still served, the oldest first, each with the hooks that lead to the next one.
	Older []Version
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
	hooks  map[string]*chain // of the program, by kind; written before the first request only
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

// admit puts back secrets that were shown as REDACTED, fills in defaults, and checks a spec that is wanted in place of the one
// before, which is nil for a new object. Who may not read secrets learns nothing from what is admitted, such as that a guess is
// what is there.
func (r rules) admit(readsSecrets bool, before, wanted json.RawMessage) (_ json.RawMessage, err error) {
	known := before
	if !readsSecrets && r.HasSecrets() && len(before) > 0 {
		if known, err = r.Redact(before); err != nil {
			return nil, err
		}
	}
	if len(before) > 0 && apiclient.SameJSON(known, wanted) {
		return before, nil
	}
	restored, missing, err := r.Restore("body.spec", before, wanted)
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
	return r.check(known, wanted, restored)
}

// check fills in the defaults of a spec and checks it. known is what was known of the spec before, and wanted the new one in
// the same form.
func (r rules) check(known, wanted, restored json.RawMessage) (json.RawMessage, error) {
	filled, err := r.Default(restored)
	if err != nil {
		return nil, objects.Invalid("body.spec", err.Error())
	}
	wrong := r.Check("body.spec", filled)
	if len(known) > 0 {
		if wanted, err = r.Default(wanted); err != nil {
			return nil, objects.Invalid("body.spec", err.Error())
		}
		changed, err := r.Changed("body.spec", known, wanted)
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
	editions, err := ks.store.kindEditions(ctx)
	if err != nil {
		return err
	}
	known := map[string]*knownKind{}
	for kind, edition := range editions {
		if k := ks.known[kind]; k != nil && k.edition == edition {
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
		compiled, err := ks.compile(kind, stored.definition())
		if err != nil {
			return fmt.Errorf("the stored definition of %s: %w", kind, err)
		}
		compiled.edition, compiled.base = editionOf(stored.Kind), stored.base
		known[kind] = compiled
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

// register stores the kinds that come with the program, and keeps their hooks.
func (ks *kinds) register(ctx context.Context, all []Kind) error {
	for i, k := range all {
		if err := objects.CheckKind(k.Name); err != nil {
			return fmt.Errorf("Config.Kinds[%d].Name: %w", i, err)
		}
		d := definition{Schema: k.Schema, Version: k.Version}
		for _, v := range k.Older {
			d.Versions = append(d.Versions, apiclient.KindVersion{Name: v.Name, Schema: v.Schema})
		}
		hook, err := newChain(k)
		if err != nil {
			return fmt.Errorf("Config.Kinds[%d].Older of %s: %w", i, k.Name, err)
		}
		if hook != nil {
			ks.hooks[k.Name] = hook
		}
		if err := ks.check(k.Name, d); err != nil {
			return fmt.Errorf("Config.Kinds[%d].%s", i, ofProgram(k.Name, err))
		}
		if _, _, err := ks.store.putKind(ctx, k.Name, d); err != nil {
			return fmt.Errorf("Config.Kinds[%d]: %w", i, err)
		}
	}
	return nil
}

// ofProgram says of a definition that came with the program what is wrong with it, and where.
func ofProgram(kind string, err error) string {
	var p *apiclient.Problem
	if !errors.As(err, &p) || len(p.Errors) == 0 {
		return fmt.Sprintf("Schema of %s: %s", kind, err)
	}
	at := strings.NewReplacer("body.versions", "Older", "body.version", "Version", "body.schema", "Schema", "body.conversion", "Older").Replace(p.Errors[0].Location)
	return fmt.Sprintf("%s of %s: %s", at, kind, p.Errors[0].Message)
}
