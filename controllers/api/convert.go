package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// job is one spec to convert. Afterwards it is in version to, or err says why not.
type job struct {
	known         *knownKind
	name          string // of the object
	from, to      string
	spec, current json.RawMessage
	err           error
}

// conversionError: a spec could not be converted.
type conversionError struct {
	kind, from, to string
	names          []string // of the objects
	err            error
}

// Error names kind, objects and versions. It says nothing of specs, and nothing of the cause, which may.
func (e *conversionError) Error() string {
	others := ""
	if n := len(e.names); n > 1 {
		others = fmt.Sprintf(" and %d others", n-1)
	}
	return fmt.Sprintf("%s/%s%s: the conversion from %s to %s failed: %s", e.kind, e.names[0], others, e.from, e.to, e.err)
}

// Unwrap returns the failure of the hook.
func (e *conversionError) Unwrap() error { return e.err }

// problem is what clients are told, and cause is for the log.
func (e *conversionError) problem() (p *apiclient.Problem, cause error) {
	status := http.StatusBadGateway
	cause = e
	var hook *hookError
	if errors.As(e.err, &hook) {
		if hook.unavailable {
			status = http.StatusServiceUnavailable
		}
		if hook.cause != nil {
			cause = fmt.Errorf("%w: %w", e, hook.cause)
		}
	}
	return objects.NewProblem(status, apiclient.TypeConversion, e.Error()), cause
}

// convert does jobs, with one call of a hook for those of one kind and the same versions. It must not be called while a
// transaction or rows are open.
func convert(ctx context.Context, jobs ...*job) {
	type group struct {
		known    *knownKind
		from, to string
	}
	groups := map[group][]*job{}
	var order []group
	for _, j := range jobs {
		g := group{j.known, j.from, j.to}
		if groups[g] == nil {
			order = append(order, g)
		}
		groups[g] = append(groups[g], j)
	}
	for _, g := range order {
		if g.from != g.to {
			convertAlike(ctx, groups[g])
		}
	}
}

// convertAlike does jobs of one kind and the same versions.
func convertAlike(ctx context.Context, jobs []*job) {
	first := jobs[0]
	items := make([]conversion, len(jobs))
	for i, j := range jobs {
		items[i] = conversion{name: j.name, Spec: j.spec, Current: j.current}
	}
	specs, err := first.known.hook.convert(ctx, first.from, first.to, items)
	if err != nil {
		failed := &conversionError{kind: first.known.kind, from: first.from, to: first.to, err: err}
		var hook *hookError
		if errors.As(err, &hook) && hook.name != "" {
			failed.names = []string{hook.name}
		}
		for _, j := range jobs {
			if hook == nil || hook.name == "" {
				failed.names = append(failed.names, j.name)
			}
			j.err = failed
		}
		return
	}
	for i, j := range jobs {
		if j.spec, err = j.finished(specs[i]); err != nil {
			j.err = &conversionError{kind: j.known.kind, from: j.from, to: j.to, names: []string{j.name}, err: err}
		}
	}
}

// finished fills in the defaults of what a hook has made. Whether it suits the schema is only asked when it is stored: who
// reads is better off with it than without.
func (j *job) finished(spec json.RawMessage) (json.RawMessage, error) {
	if len(spec) > objects.MaxBody || objects.CheckDocument("spec", spec) != nil || !json.Valid(spec) {
		return nil, &hookError{name: j.name, why: fmt.Sprintf("the hook made something else than a JSON object of up to %d bytes", objects.MaxBody)}
	}
	spec, err := j.known.schemas[j.to].Default(spec)
	if err != nil {
		return nil, &hookError{name: j.name, why: err.Error()}
	}
	return spec, nil
}

// jobOf is what has to be done to show an object as it was read in a version, which may be AsStored or empty for the current
// one; nil if there is nothing. The object says then which version it is in.
func (v *vault) jobOf(version string, o *apiclient.Raw) (*job, error) {
	loaded := v.schemas.Load()
	if loaded == nil {
		return nil, errNoSchemas
	}
	known := (*loaded)[o.Kind]
	to, err := known.readable(o.Kind, version)
	if err != nil || known == nil {
		return nil, err
	}
	from, err := known.storedIn(o.Version)
	switch {
	case err != nil:
		return nil, err
	case to == apiclient.AsStored || to == from:
		o.Version = from
		return nil, nil //nolint:nilnil // there is nothing to do
	case o.Sealed != "": // there is no spec to convert, which whoever asks is told
		o.Version, o.Spec = from, noSpec
		return nil, nil //nolint:nilnil // likewise
	}
	return &job{known: known, name: o.Name, from: from, to: to, spec: o.Spec}, nil
}

// into brings objects, as they were read, into a version (see jobOf). Other holders of their specs keep theirs.
func (s *store) into(ctx context.Context, version string, all ...*apiclient.Raw) error {
	jobs, err := s.jobs(ctx, version, all)
	if errors.Is(err, errUnknownVersion) { // another API may have been told of it just now
		s.kinds.forget()
		jobs, err = s.jobs(ctx, version, all)
	}
	if err != nil {
		return err
	}
	convert(ctx, slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return j == nil })...)
	for i, o := range all {
		if j := jobs[i]; j != nil && j.err != nil {
			return j.err
		} else if j != nil {
			o.Spec, o.Version = j.spec, j.to
		}
	}
	return nil
}

// jobs are those of objects, in their order; nil where there is none.
func (s *store) jobs(ctx context.Context, version string, all []*apiclient.Raw) ([]*job, error) {
	if err := s.vault.ready(ctx); err != nil {
		return nil, err
	}
	jobs := make([]*job, len(all))
	for i, o := range all {
		if o == nil {
			continue
		}
		var err error
		if jobs[i], err = s.vault.jobOf(version, o); err != nil {
			return nil, fmt.Errorf("%s: %w", objects.KeyOf(o), err)
		}
	}
	return jobs, nil
}

// checkVersion refuses to read versions that a kind does not have.
func (s *store) checkVersion(ctx context.Context, kind, version string) error {
	if version == "" {
		return nil
	}
	for again := true; ; again = false {
		if err := s.vault.ready(ctx); err != nil {
			return err
		}
		_, err := (*s.vault.schemas.Load())[kind].readable(kind, version)
		if err == nil || !again {
			return err
		}
		s.kinds.forget() // another API may have been told of it just now
	}
}

// later is what of a page of changes has to be converted for watchers. The first of them who comes to it does that, for all of
// them: the feed itself must not wait for a hook.
type later struct {
	once sync.Once
	jobs []*job
}

// spec waits for a job to be done.
func (l *later) spec(ctx context.Context, i int) (json.RawMessage, error) {
	l.once.Do(func() { convert(context.WithoutCancel(ctx), l.jobs...) }) // others wait for it, and a hook does not take for ever
	return l.jobs[i].spec, l.jobs[i].err
}
