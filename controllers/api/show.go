package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/controllers/internal/schema"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// What leaves the API as an object passes show, which hides secrets from who may not read them. TestSecretsAreHidden asks for
// every operation.

// readsSecrets reports whether whoever asks may read the secrets of a kind.
func readsSecrets(ctx context.Context, kind string) bool {
	v := visitOf(ctx)
	return v != nil && v.who.may(access.ReadSecrets, kind) == nil
}

// show makes of an object what may be seen of it. Other holders of its spec keep theirs.
func (v *vault) show(ctx context.Context, o *apiclient.Raw, secretsToo bool) error {
	if isUnreadable(o, secretsToo) {
		o.Spec = noSpec // a controller would take Redacted for a password
		return nil
	}
	if secretsToo {
		return nil
	}
	err := v.ready(ctx)
	if err == nil {
		o.Sealed = "" // hidden it is either way
		o.Spec, err = v.redact(o.Kind, o.Version, o.Spec)
	}
	if err != nil {
		return fmt.Errorf("hide the secrets of %s: %w", objects.KeyOf(o), err)
	}
	return nil
}

// isUnreadable reports whether an object has no spec for who asks. Who may not read secrets needs no key.
func isUnreadable(o *apiclient.Raw, secretsToo bool) bool {
	return o.Sealed != "" && (secretsToo || bytes.Equal(o.Spec, noSpec))
}

// showAll brings the objects of an answer into the version that was asked for, and shows them.
func (a *API) showAll(ctx context.Context, version string, all ...*apiclient.Raw) error {
	if err := a.store.into(ctx, version, all...); err != nil {
		return err
	}
	for _, o := range all {
		if o == nil {
			continue
		}
		if err := a.store.vault.show(ctx, o, readsSecrets(ctx, o.Kind)); err != nil {
			return err
		}
	}
	return nil
}

// answer is an object, as whoever asks may see it.
func (a *API) answer(ctx context.Context, status int, doing, version string, o *apiclient.Raw) (*objectOutput, error) {
	if err := a.showAll(ctx, version, o); err != nil {
		return nil, a.failed(ctx, doing, err)
	}
	return &objectOutput{Status: status, Body: o}, nil
}

// sealed is the problem of an object that cannot be read.
func sealed(o *apiclient.Raw) error {
	return objects.NewProblem(http.StatusInternalServerError, apiclient.TypeSealed, fmt.Sprintf("%s: %s", objects.KeyOf(o), o.Sealed))
}

// reported is the rule of a controller's report: of an object that can be read, and with none of its secrets in the error, which
// everybody is shown, and which goes into the events.
func (v *vault) reported(p apiclient.StatusPatch) objects.Rule {
	rule := objects.PatchStatus(p)
	return func(o *apiclient.Raw) (objects.Effect, error) {
		if o.Sealed != "" {
			return objects.Effect{}, sealed(o)
		}
		e, err := rule(o)
		if err == nil && e.Note != nil {
			note := *e.Note // the patch's own may be applied again
			note.Message, err = v.withoutSecrets(o, note.Message)
			e.Note = &note
		}
		if err != nil || p.Reconciliation == nil || o.Reconciliation.LastError == "" { // without a record, the error is one that was reported before
			return e, err
		}
		if o.Reconciliation.LastError, err = v.withoutSecrets(o, o.Reconciliation.LastError); err != nil {
			return e, err
		}
		return e, v.ofEarlier(o)
	}
}

// ofEarlier takes out what was said of an earlier generation: the secrets that it had are not known any more.
func (v *vault) ofEarlier(o *apiclient.Raw) error {
	s, err := v.secretsOf(o.Kind, o.Version)
	if err == nil && s != nil && o.Reconciliation.ObservedGeneration != o.Generation {
		o.Reconciliation.LastError = "an earlier generation failed; what was said of it may have had its secrets in it"
	}
	return err
}

// shortSecret is the length of texts that are left where they are: they would be found in half of all words.
const shortSecret = 3

// withoutSecrets puts Redacted in place of each text in the secrets of an object.
func (v *vault) withoutSecrets(o *apiclient.Raw, text string) (string, error) {
	s, err := v.secretsOf(o.Kind, o.Version)
	if err != nil || s == nil {
		return text, err
	}
	var found []string
	_, err = s.EachSecret(o.Spec, func(_ string, value any) (any, error) {
		found = texts(found, value)
		return value, nil
	})
	slices.SortFunc(found, func(a, b string) int { return len(b) - len(a) }) // one may be part of another
	for _, secret := range found {
		if len(secret) > shortSecret {
			text = strings.ReplaceAll(text, secret, schema.Redacted)
		}
	}
	return text, err
}

// texts adds those in a value to found.
func texts(found []string, v any) []string {
	switch v := v.(type) {
	case string:
		found = append(found, v)
	case json.Number:
		found = append(found, v.String())
	case []any:
		for _, item := range v {
			found = texts(found, item)
		}
	case map[string]any:
		for _, value := range v {
			found = texts(found, value)
		}
	}
	return found
}

// checkFields refuses to select by what is a secret, or has one in it, also to who may read it: by asking often enough
// everybody else could find out what it is, and nobody selects by it in earnest.
func (v *vault) checkFields(kind, version string, fields []objects.Field) error {
	known := (*v.schemas.Load())[kind]
	if known == nil {
		return nil
	}
	for name, s := range known.schemas {
		if to, err := known.readable(kind, version); err != nil || to != name && to != apiclient.AsStored || !s.HasSecrets() {
			continue
		}
		for i := range fields {
			if path, ok := fields[i].SpecPath(); ok && s.HoldsSecret(path) {
				return objects.Invalid("query.fields", "one of the fields is a secret ("+schema.Sensitive+"), or has one in it: want others")
			}
		}
	}
	return nil
}
