package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

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
		o.Spec, err = v.redact(o.Kind, o.Spec)
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

// showAll is show for the objects of an answer.
func (a *API) showAll(ctx context.Context, all ...*apiclient.Raw) error {
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
func (a *API) answer(ctx context.Context, status int, doing string, o *apiclient.Raw) (*objectOutput, error) {
	if err := a.showAll(ctx, o); err != nil {
		return nil, a.failed(ctx, doing, err)
	}
	return &objectOutput{Status: status, Body: o}, nil
}

// shownSpec returns what shows a spec as whoever asks sees it, nil if they see all of it.
func (a *API) shownSpec(ctx context.Context, kind string) func(json.RawMessage) (json.RawMessage, error) {
	if readsSecrets(ctx, kind) {
		return nil
	}
	return func(spec json.RawMessage) (json.RawMessage, error) { return a.store.vault.redact(kind, spec) }
}

// sealed is the problem of an object that cannot be read.
func sealed(o *apiclient.Raw) error {
	return objects.NewProblem(http.StatusInternalServerError, apiclient.TypeSealed, fmt.Sprintf("%s: %s", objects.KeyOf(o), o.Sealed))
}

// unsealed is a rule for objects that can be read.
func unsealed(rule objects.Rule) objects.Rule {
	return func(o *apiclient.Raw) (objects.Effect, error) {
		if o.Sealed != "" {
			return objects.Effect{}, sealed(o)
		}
		return rule(o)
	}
}

// checkFields refuses to select by what is a secret, or has one in it, also to who may read it: by asking often enough
// everybody else could find out what it is, and nobody selects by it in earnest.
func (v *vault) checkFields(kind string, fields []objects.Field) error {
	s, err := v.secretsOf(kind)
	if err != nil || s == nil {
		return err
	}
	for i := range fields {
		if path, ok := fields[i].SpecPath(); ok && s.HoldsSecret(path) {
			return objects.Invalid("query.fields", "one of the fields is a secret ("+schema.Sensitive+"), or has one in it: want others")
		}
	}
	return nil
}
