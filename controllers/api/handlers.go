package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// What requests are made of; huma does not look into embedded types that are not exported. Their struct tags are what huma checks and describes; the handlers check the rest.
type (
	objectInput struct {
		Kind string `path:"kind" doc:"Plural, lower case; a DNS-1123 label."`
		Name string `path:"name" doc:"Unique within the kind; a DNS-1123 label."`

		Version string `query:"version" doc:"The version of the kind to answer in: the current one unless told otherwise, * for the one that the object is stored in."`
	}
	createInput struct {
		Kind    string `path:"kind"`
		Version string `query:"version" doc:"The version of the kind that specs are in; the current one unless told otherwise."`
		Key     string `header:"Idempotency-Key" doc:"Sent again within a day under the same key, the request makes nothing new."`
		Body    struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels,omitempty"`
			Spec   json.RawMessage   `json:"spec" doc:"What is wanted: a JSON object."`
		}
	}
	putInput struct {
		Kind    string `path:"kind"`
		Name    string `path:"name"`
		Version string `query:"version" doc:"The version of the kind that specs are in; the current one unless told otherwise."`
		IfMatch string `header:"If-Match" doc:"The revision that the object must be at, in quotes."`
		Body    struct {
			Labels map[string]string `json:"labels,omitempty"`
			Spec   json.RawMessage   `json:"spec" doc:"What is wanted: a JSON object."`
		}
	}
	patchInput struct {
		Kind    string `path:"kind"`
		Name    string `path:"name"`
		Version string `query:"version" doc:"The version of the kind to answer in: the current one unless told otherwise, * for the one that the object is stored in."`
		Body    apiclient.StatusPatch
	}
	mergeInput struct {
		Kind    string `path:"kind"`
		Name    string `path:"name"`
		Version string `query:"version" doc:"The version of the kind that specs are in; the current one unless told otherwise."`
		IfMatch string `header:"If-Match" doc:"The revision that the object must be at, in quotes."`
		Body    struct {
			Labels json.RawMessage `json:"labels,omitempty" doc:"Labels to set; null removes one."`
			Spec   json.RawMessage `json:"spec,omitempty" doc:"Fields of the spec to set; null removes one."`
		} `contentType:"application/merge-patch+json"`
	}
	listInput struct {
		Kind      string `path:"kind"`
		Limit     string `query:"limit" doc:"How many objects a page has at the most: 1 to 500, 100 unless told otherwise."`
		Cursor    string `query:"cursor" doc:"The next of the page before."`
		Labels    string `query:"labels" doc:"Only objects that have all of these labels: a=b,c=d."`
		State     string `query:"state" doc:"Only objects in that state, such as Stalled."`
		Fields    string `query:"fields" doc:"Only objects whose fields are so: spec.region=eu,status.phase!=Running. Not such as are secret."`
		Sort      string `query:"sort" doc:"name, created or changed; with - before it in the opposite order."`
		Version   string `query:"version" doc:"The version of the kind that specs are shown and selected in: the current one unless told otherwise, * for the one that each is stored in."`
		Unsettled string `query:"unsettled" doc:"Only objects owed a reconcile for at least that long, such as 1m30s."`
	}
	objectOutput struct {
		Status int
		Body   *apiclient.Raw
	}
	listOutput struct {
		Body struct {
			Items []apiclient.Raw `json:"items"`
			Next  string          `json:"next,omitempty" doc:"The cursor of the next page; absent on the last one."`
		}
	}
)

func (a *API) register(r *router) {
	const kind, object = "/v1/objects/{kind}", "/v1/objects/{kind}/{name}"
	huma.Register(r.api, r.operation(access.Create, "create", "POST", kind, 201, "Create an object"), a.create)
	huma.Register(r.api, r.operation(access.Read, "list", "GET", kind, 200, "List the objects of a kind"), a.list)
	huma.Register(r.api, r.operation(access.Read, "get", "GET", object, 200, "Read an object"), a.get)
	huma.Register(r.api, r.operation(access.Put, "put", "PUT", object, 200, "Create an object or replace its labels and spec"), a.put)
	huma.Register(r.api, r.operation(access.Patch, "patch", "PATCH", object, 200, "Change parts of an object's labels and spec (RFC 7396)"), a.merge)
	huma.Register(r.api, r.operation(access.Delete, "delete", "DELETE", object, 202, "Ask for the deletion of an object"), a.on("delete", 202, objects.RequestDeletion))
	huma.Register(r.api, r.operation(access.Read, "list-events", "GET", object+"/events", 200, "List what happened to an object"), a.events)
	huma.Register(r.api, r.operation(access.PatchStatus, "patch-status", "PATCH", object+"/status", 200, "Write what a reconcile came to"), a.patchStatus)
	huma.Register(r.api, r.operation(access.Retry, "retry", "POST", object+"/retry", 202, "Ask for a reconcile now"), a.on("retry", 202, objects.RequestRetry))
	huma.Register(r.api, r.operation(access.Pause, "pause", "POST", object+"/pause", 200, "Stop reconciles"), a.on("pause", 200, objects.SetPaused(true)))
	huma.Register(r.api, r.operation(access.Resume, "resume", "POST", object+"/resume", 200, "End a pause"), a.on("resume", 200, objects.SetPaused(false)))
}

func (a *API) create(ctx context.Context, in *createInput) (*objectOutput, error) {
	k := objects.Key{Kind: in.Kind, Name: in.Body.Name}
	setName(ctx, k.Name)
	wanted := objects.Wanted{Labels: in.Body.Labels, Spec: in.Body.Spec}
	under := requestKey{in.Key, bodyOf(k, wanted, in.Version)}
	var o apiclient.Raw
	err := firstError(objects.CheckKey(k, "body.name"), wanted.Check(), objects.CheckRequestKey(in.Key))
	if err == nil {
		asked := &ask{key: k, version: in.Version, wanted: wanted.Spec, readsSecrets: readsSecrets(ctx, k.Kind), create: true}
		wanted.Admit = asked.admit
		err = a.store.planned(ctx, []*ask{asked}, func(held []*knownKind) (err error) {
			o, err = a.store.create(ctx, k, wanted, under, held...)
			return err
		})
		asked.show(&o)
	}
	if err != nil {
		return nil, a.failed(ctx, "create "+k.String(), err)
	}
	a.wrote(k)
	return a.answer(ctx, http.StatusCreated, "create "+k.String(), in.Version, &o)
}

// wrote has a write passed on soon; relay and feed look for themselves whether there is something.
func (a *API) wrote(k objects.Key) {
	a.relay.nudge(k)
	a.feed.nudge()
}

func (a *API) get(ctx context.Context, in *objectInput) (*objectOutput, error) {
	k := in.key()
	var o apiclient.Raw
	err := objects.CheckKey(k, "path.name")
	if err == nil {
		err = a.store.checkVersion(ctx, k.Kind, in.Version)
	}
	if err == nil {
		o, err = a.store.get(ctx, k)
	}
	if err == nil && isUnreadable(&o, readsSecrets(ctx, k.Kind)) {
		err = sealed(&o)
	}
	if err != nil {
		return nil, a.failed(ctx, "get "+k.String(), err)
	}
	return a.answer(ctx, http.StatusOK, "get "+k.String(), in.Version, &o)
}

func (a *API) put(ctx context.Context, in *putInput) (*objectOutput, error) {
	k := objects.Key{Kind: in.Kind, Name: in.Name}
	var o apiclient.Raw
	var isNew bool
	ifMatch, err := objects.ParseIfMatch(in.IfMatch)
	wanted := objects.Wanted{IfMatch: ifMatch, Labels: in.Body.Labels, Spec: in.Body.Spec}
	err = firstError(objects.CheckKey(k, "path.name"), err, wanted.Check())
	if err == nil {
		asked := &ask{key: k, version: in.Version, wanted: wanted.Spec, readsSecrets: readsSecrets(ctx, k.Kind)}
		wanted.Admit = asked.admit
		err = a.store.planned(ctx, []*ask{asked}, func(held []*knownKind) (err error) {
			o, isNew, err = a.store.put(ctx, k, wanted, held...)
			return err
		})
		asked.show(&o)
	}
	if err != nil {
		return nil, a.failed(ctx, "put "+k.String(), err)
	}
	a.wrote(k)
	status := http.StatusOK
	if isNew {
		status = http.StatusCreated
	}
	return a.answer(ctx, status, "put "+k.String(), in.Version, &o)
}

func (a *API) merge(ctx context.Context, in *mergeInput) (*objectOutput, error) {
	k := objects.Key{Kind: in.Kind, Name: in.Name}
	patch := objects.Patch{Labels: in.Body.Labels, Spec: in.Body.Spec}
	asked := &ask{key: k, version: in.Version, patch: in.Body.Spec, readsSecrets: readsSecrets(ctx, in.Kind)}
	var o apiclient.Raw
	var e objects.Effect
	ifMatch, err := objects.ParseIfMatch(in.IfMatch)
	err = firstError(objects.CheckKey(k, "path.name"), err, objects.CheckMerge(patch))
	if err == nil {
		patch.IfMatch = ifMatch
		err = a.store.planned(ctx, []*ask{asked}, func(held []*knownKind) (err error) {
			o, e, err = a.store.change(ctx, k, asked.rule(patch), held...)
			return err
		})
		asked.show(&o)
	}
	return a.changed(ctx, "patch", http.StatusOK, &objectInput{Kind: in.Kind, Name: in.Name, Version: in.Version}, &o, e, err)
}

func (a *API) patchStatus(ctx context.Context, in *patchInput) (*objectOutput, error) {
	if err := objects.CheckPatch(&in.Body); err != nil {
		return nil, a.failed(ctx, "patch status", err)
	}
	return a.on("patch status of", http.StatusOK, a.store.vault.reported(in.Body))(ctx, &objectInput{Kind: in.Kind, Name: in.Name, Version: in.Version})
}

// on makes the handler that applies a rule to the object of the path. The rule does not touch the spec, so no hook is asked but
// for the answer.
func (a *API) on(doing string, status int, rule objects.Rule) func(context.Context, *objectInput) (*objectOutput, error) {
	return func(ctx context.Context, in *objectInput) (*objectOutput, error) {
		var o apiclient.Raw
		var e objects.Effect
		err := firstError(objects.CheckKey(in.key(), "path.name"))
		if err == nil {
			err = a.store.checkVersion(ctx, in.Kind, in.Version)
		}
		if err == nil {
			o, e, err = a.store.change(ctx, in.key(), rule)
		}
		return a.changed(ctx, doing, status, in, &o, e, err)
	}
}

// changed passes on what a rule has done to the object of the path, and answers.
func (a *API) changed(ctx context.Context, doing string, status int, in *objectInput, o *apiclient.Raw, e objects.Effect, err error) (*objectOutput, error) {
	doing += " " + in.key().String()
	switch {
	case err != nil:
		return nil, a.failed(ctx, doing, err)
	case e.Notify != "":
		a.wrote(in.key())
	case e.Written:
		a.feed.nudge()
	}
	if e.Gone {
		return &objectOutput{Status: http.StatusNoContent}, nil
	}
	return a.answer(ctx, status, doing, in.Version, o)
}

func (a *API) list(ctx context.Context, in *listInput) (*listOutput, error) {
	sel := selection{kind: in.Kind, version: in.Version}
	q := objects.ListQuery{
		Limit: in.Limit, Cursor: in.Cursor, Labels: in.Labels, State: in.State, Fields: in.Fields, Unsettled: in.Unsettled, Sort: in.Sort,
	}
	err := objects.CheckKind(in.Kind)
	if err == nil {
		sel.Selection, err = objects.ParseSelection(q)
	}
	if err == nil {
		err = a.store.vault.ready(ctx)
	}
	if err == nil {
		err = firstError(a.store.checkVersion(ctx, in.Kind, in.Version), a.store.vault.checkFields(in.Kind, in.Version, sel.Fields))
	}
	out := new(listOutput)
	var next *objects.Position
	if err == nil {
		out.Body.Items, next, err = a.store.list(ctx, sel)
	}
	if err == nil && len(sel.Fields) > 0 { // what was read may have been told by a newer schema
		err = errors.Join(a.store.vault.ready(ctx), a.store.vault.checkFields(in.Kind, in.Version, sel.Fields))
	}
	for i := range out.Body.Items { // which the store has brought into the version
		err = errors.Join(err, a.store.vault.show(ctx, &out.Body.Items[i], readsSecrets(ctx, in.Kind)))
	}
	if err != nil {
		return nil, a.failed(ctx, "list "+in.Kind, err)
	}
	if next != nil {
		out.Body.Next = sel.Sort.Cursor(*next)
	}
	return out, nil
}

func (in *objectInput) key() objects.Key { return objects.Key{Kind: in.Kind, Name: in.Name} }

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
