package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/schema"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// planTries bounds how often a write is planned: each time that it was in vain, somebody else has written the spec.
const planTries = 20

// errReplan: a transaction did not find what the write was planned with. It has to be planned anew, outside of transactions.
var errReplan = errors.New("what is there has changed since it was looked at")

// ask is a write of a spec. Where versions have to be converted it is planned before its transaction, which then only looks
// whether the plan still holds.
type ask struct {
	key     objects.Key
	version string // as asked for
	// wanted or, for a merge patch, patch is what is asked for.
	wanted, patch json.RawMessage
	readsSecrets  bool
	// create is whether there must be no object yet.
	create bool

	known *knownKind
	to    string // the version that wanted or patch is in
	// converted is whether the rest says what has come of the plan: before is what is there now, nil if nothing is, final what
	// is to be stored in its place, and shown that in the version that was asked for.
	converted            bool
	before, final, shown json.RawMessage
	err                  error
	// refused makes an error of the request one of this write; nil leaves it as it is.
	refused func(error) error
}

// ofSpec is false for a merge patch of labels alone.
func (a *ask) ofSpec() bool { return len(a.wanted) > 0 || len(a.patch) > 0 }

// planned plans writes and does them, again if need be. It fails with errReplan when others are always there first.
func (s *store) planned(ctx context.Context, asks []*ask, do func(held []*knownKind) error) error {
	for try := 1; ; try++ {
		err := s.plan(ctx, asks)
		if try == 1 && errors.Is(err, apiclient.ErrInvalid) { // another API may have been told of the version just now
			s.kinds.forget()
			err = s.plan(ctx, asks)
		}
		if err == nil {
			err = do(held(asks))
		}
		if !errors.Is(err, errReplan) && !errors.Is(err, errUnknownVersion) || try == planTries {
			return err
		}
		s.kinds.forget()
		if err := pause(ctx, 1); err != nil {
			return err
		}
	}
}

// held are the kinds that must be as they were planned with.
func held(asks []*ask) (all []*knownKind) {
	seen := map[*knownKind]bool{nil: true}
	for _, a := range asks {
		if !seen[a.known] { // a schema that goes, or changes, takes with it what is a secret
			all = append(all, a.known)
		}
		seen[a.known] = true
	}
	return all
}

// plan finds out what writes come to. What is wrong with one of them is said in its transaction, where other reasons to refuse
// it come first; an error is of all of them.
func (s *store) plan(ctx context.Context, asks []*ask) error {
	if err := s.vault.ready(ctx); err != nil {
		return err
	}
	schemas := *s.vault.schemas.Load()
	var converting []*ask
	var keys []objects.Key
	for _, a := range asks {
		a.known = schemas[a.key.Kind]
		a.converted, a.before, a.final, a.shown, a.err = false, nil, nil, nil, nil
		var err error
		a.to, err = a.known.target(a.key.Kind, a.version)
		if a.known == nil && s.kinds.only {
			err = objects.Invalid("path.kind", fmt.Sprintf("%q is no kind here: PUT its schema to /v1/kinds/%s first", a.key.Kind, a.key.Kind))
		}
		if err != nil && a.refused != nil {
			err = a.refused(err)
		}
		if err != nil {
			return err
		}
		if a.known.converts() && a.ofSpec() {
			converting = append(converting, a)
			if !a.create {
				keys = append(keys, a.key)
			}
		}
	}
	if len(converting) == 0 {
		return nil
	}
	rows, err := s.rowsOf(ctx, keys)
	if err != nil {
		return err
	}
	failed, err := s.modernize(ctx, rows)
	if err != nil {
		return err
	}
	planThrough(ctx, slices.DeleteFunc(converting, func(a *ask) bool {
		a.err = failed[a.key]
		return a.err != nil || a.to == a.known.current()
	}), rows)
	return nil
}

// planThrough plans writes through older versions: what is there is converted down, the write applied to that as the schema of
// its version says, and what comes of it converted up.
func planThrough(ctx context.Context, asks []*ask, rows map[objects.Key]*row) {
	jobs := map[*ask]*job{}
	each := func(make func(a *ask) *job, take func(a *ask, j *job)) {
		clear(jobs)
		var all []*job
		for _, a := range asks {
			if a.err == nil {
				if jobs[a] = make(a); jobs[a] != nil {
					all = append(all, jobs[a])
				}
			}
		}
		convert(ctx, all...)
		for _, a := range asks {
			switch j := jobs[a]; {
			case j == nil:
			case j.err != nil:
				a.err = j.err
			default:
				take(a, j)
			}
		}
	}
	for _, a := range asks {
		a.converted = true
		if r := rows[a.key]; r != nil && r.object.Sealed != "" {
			a.err = sealed(&r.object)
		} else if r != nil {
			a.before = r.object.Spec
		}
	}
	old := map[*ask]json.RawMessage{}
	each(func(a *ask) *job {
		if a.before == nil {
			return nil
		}
		return a.job(a.known.current(), a.to, a.before, nil)
	}, func(a *ask, j *job) { old[a] = j.spec })
	wanted := map[*ask]json.RawMessage{}
	for _, a := range asks {
		if a.err == nil {
			wanted[a], a.err = a.admitOld(old[a])
		}
	}
	each(func(a *ask) *job {
		if a.before != nil && apiclient.SameJSON(wanted[a], old[a]) {
			a.final, a.shown = a.before, old[a]
			return nil
		}
		return a.job(a.to, a.known.current(), wanted[a], a.before)
	}, func(a *ask, j *job) { a.final, a.err = a.admitNew(j.spec) })
	each(func(a *ask) *job {
		if a.shown != nil {
			return nil
		}
		return a.job(a.known.current(), a.to, a.final, nil)
	}, func(a *ask, j *job) { a.shown = j.spec })
}

func (a *ask) job(from, to string, spec, current json.RawMessage) *job {
	return &job{known: a.known, name: a.key.Name, from: from, to: to, spec: spec, current: current}
}

// admitOld applies what is asked for to what is there, both in the version that was asked for.
func (a *ask) admitOld(old json.RawMessage) (wanted json.RawMessage, err error) {
	in := rules{a.known.schemas[a.to]}
	wanted = a.wanted
	if a.patch != nil {
		seen := old
		if !a.readsSecrets {
			if seen, err = in.Redact(old); err != nil {
				return nil, err
			}
		}
		if wanted, err = objects.MergeSpec(seen, a.patch); err != nil {
			return nil, err
		}
	}
	return in.admit(a.readsSecrets, old, wanted)
}

// admitNew admits what was converted by the current schema. It has all secrets in plain.
func (a *ask) admitNew(spec json.RawMessage) (json.RawMessage, error) {
	admitted, err := rules{a.known.schema()}.admit(true, a.before, spec)
	var p *apiclient.Problem
	if errors.As(err, &p) {
		told := *p
		told.Detail = fmt.Sprintf("the spec is wrong, once it is converted from %s to %s", a.to, a.known.current())
		return nil, &told
	}
	return admitted, err
}

// admit is the objects.Admit of a write, for its transaction.
func (a *ask) admit(before *apiclient.Raw, wanted json.RawMessage) (spec json.RawMessage, version string, err error) {
	if a.err != nil {
		return nil, "", a.err
	}
	if a.known == nil {
		return wanted, "", nil
	}
	var was json.RawMessage
	if before != nil {
		stored, err := a.known.storedIn(before.Version)
		switch current := err == nil && stored == a.known.current(); {
		case !current && before.Sealed != "": // it cannot be converted
			return nil, "", sealed(before)
		case !current:
			return nil, "", errReplan
		}
		was = before.Spec
	}
	if a.converted {
		if (was == nil) != (a.before == nil) || !bytes.Equal(was, a.before) {
			return nil, "", errReplan
		}
		return a.final, a.known.current(), nil
	}
	spec, err = rules{a.known.schema()}.admit(a.readsSecrets, was, wanted)
	return spec, a.known.current(), err
}

// rule is what a merge patch does to an object.
func (a *ask) rule(p objects.Patch) objects.Rule {
	switch {
	case !a.ofSpec():
		return objects.Merge(p)
	case a.converted:
		p.Spec = nil
	case a.known != nil && !a.readsSecrets && a.known.schema().HasSecrets():
		p.Shown = a.known.schema().Redact
	}
	p.Admit = a.admit
	return objects.Merge(p)
}

// show brings what a write has left into the version that was asked for, without a hook if it is what was planned.
func (a *ask) show(o *apiclient.Raw) {
	if a.converted && o.Version == a.known.current() && bytes.Equal(o.Spec, a.final) {
		o.Spec, o.Version = a.shown, a.to
	}
}

// rules admits specs by a schema.
type rules struct{ *schema.Schema }
