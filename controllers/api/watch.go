package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/access"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// sendWithin is how long a reader may take to make room for what it is sent.
const sendWithin = 10 * time.Second

// watchOperation is the operation whose requests have no end.
const watchOperation = "watch"

type watchInput struct {
	Kind        string `path:"kind"`
	Name        string `query:"name" doc:"Only the object of that name."`
	Version     string `query:"version" doc:"The version of the kind that specs are shown in: the current one unless told otherwise, * for the one that each is stored in."`
	Labels      string `query:"labels" doc:"Only objects that have all of these labels: a=b,c=d."`
	Cursor      string `query:"cursor" doc:"The id of the last event of an earlier watch; this one goes on from there."`
	LastEventID string `header:"Last-Event-ID" doc:"The same, as browsers send it; it comes first."`
}

func (a *API) registerWatch(r *router) {
	o := r.operation(access.Read, watchOperation, "GET", "/v1/watch/{kind}", 200, "Watch the objects of a kind (server-sent events)")
	o.Responses = map[string]*huma.Response{"200": {
		Description: "Events reset, put, gone, synced and heartbeat.",
		Content:     map[string]*huma.MediaType{objects.EventStream: {Schema: &huma.Schema{Type: huma.TypeString}}},
	}}
	huma.Register(r.api, o, a.watch)
}

// watch checks the request; what it returns then writes the answer.
func (a *API) watch(ctx context.Context, in *watchInput) (*huma.StreamResponse, error) {
	err := objects.CheckKind(in.Kind)
	if in.Name != "" { // which looks at the kind, too
		err = objects.CheckKey(objects.Key{Kind: in.Kind, Name: in.Name}, "query.name")
	}
	labels, wrong := objects.ParseLabels(in.Labels)
	err = firstError(err, wrong)
	if err == nil {
		err = a.store.checkVersion(ctx, in.Kind, in.Version)
	}
	w := newWatch(a, scope{kind: in.Kind, version: in.Version, name: in.Name, labels: labels})
	if text := cmp.Or(in.LastEventID, in.Cursor); err == nil && text != "" {
		w.at, err = parseWatchCursor(text)
	}
	if err == nil {
		err = w.start(ctx)
	}
	if err != nil {
		return nil, a.failed(ctx, "watch "+in.Kind, err)
	}
	return &huma.StreamResponse{Body: w.serve}, nil
}

// watch is one being served.
type watch struct {
	api   *API
	scope scope
	// at is what has been sent. It has no epoch if the watch is not one that goes on.
	at cursor
	// fresh is whether everything has to be shown first.
	fresh bool
	// sent are the revisions of objects that it has read while it caught up, which may be ahead of what the feed tells: until
	// that comes from a later step than caughtUp. Nil after that.
	sent     map[string]int64
	caughtUp int64
	out      *http.ResponseController
	body     io.Writer
}

func newWatch(a *API, s scope) *watch { return &watch{api: a, scope: s, sent: map[string]int64{}} }

// start finds out where to begin.
func (w *watch) start(ctx context.Context) error {
	if err := w.api.feed.open(); err != nil {
		return err
	}
	state, err := w.api.store.feedState(ctx)
	if err != nil {
		return err
	}
	known := w.at.epoch == state.epoch && !w.at.place.isTrimmed(state.trimmed) && w.at.place.change <= state.settled
	if !known {
		w.fresh = true
		w.at = cursor{epoch: state.epoch, place: place{change: state.settled, kind: behindAll}, showing: true}
	}
	return nil
}

// serve answers until the reader goes, is too slow, or the feed ends. An error can only be told by ending.
func (w *watch) serve(hc huma.Context) {
	req, res := humago.Unwrap(hc)
	maps.Copy(res.Header(), http.Header{
		"Content-Type": {objects.EventStream}, "Cache-Control": {"no-store"}, "X-Accel-Buffering": {"no"}, // nginx would keep events until it has many
	})
	err := w.events(req.Context(), res)
	if req.Context().Err() == nil && !errors.Is(err, errCutOff) {
		w.api.log.Error(err, "watch ended", "kind", w.scope.kind)
	}
}

// errCutOff ends a watch that can be resumed.
var errCutOff = errors.New("the watch was cut off")

// events sends them until there is an error.
func (w *watch) events(ctx context.Context, to http.ResponseWriter) error {
	w.out, w.body = http.NewResponseController(to), to
	if w.fresh {
		if err := w.send(objects.EventReset, []byte("{}")); err != nil {
			return err
		}
	}
	if w.at.showing {
		if err := w.showAll(ctx); err != nil {
			return err
		}
	}
	if err := w.flush(); err != nil { // a reader may wait for the first sign of life
		return err
	}
	if err := w.catchUp(ctx, nil); err != nil {
		return err
	}
	sub, err := w.api.feed.subscribe(ctx, w.scope)
	if err != nil {
		return err
	}
	defer w.api.feed.unsubscribe(sub)
	return w.goOn(ctx, sub)
}

// goOn comes up to where the feed has begun to tell, and follows it.
func (w *watch) goOn(ctx context.Context, sub *watcher) error {
	if err := w.catchUp(ctx, &sub.from); err != nil {
		return err
	}
	return w.follow(ctx, sub)
}

// showAll sends everything there is, behind what has been shown already.
func (w *watch) showAll(ctx context.Context) error {
	for more := true; more; {
		items, next, err := w.page(ctx)
		if err != nil {
			return err
		}
		for i := range items {
			w.at.shownTo = items[i].Name
			e, err := putEvent(ctx, w.api.store.vault, w.at.place, items[i], readsSecrets(ctx, w.scope.kind))
			if err != nil {
				return err
			}
			if err := w.send(e.kind, e.data); err != nil {
				return err
			}
		}
		if err := w.flush(); err != nil {
			return err
		}
		if more = next != nil; more {
			w.at.shownTo = next.Name
		}
	}
	w.at.showing, w.at.shownTo = false, ""
	return w.send(objects.EventSynced, []byte("{}"))
}

// page reads the next objects to show.
func (w *watch) page(ctx context.Context) ([]apiclient.Raw, *objects.Position, error) {
	if w.scope.name == "" {
		return w.api.store.list(ctx, selection{kind: w.scope.kind, version: w.scope.version, Selection: objects.Everything(w.scope.labels, w.at.shownTo)})
	}
	o, err := w.api.store.get(ctx, objects.Key{Kind: w.scope.kind, Name: w.scope.name})
	if errors.Is(err, apiclient.ErrNotFound) || err == nil && !w.scope.selects(&o) {
		return nil, nil, nil
	}
	if err == nil {
		err = w.api.store.into(ctx, w.scope.version, &o)
	}
	return []apiclient.Raw{o}, nil, err
}

// catchUp sends what has changed since, up to a place, or without one up to the present.
func (w *watch) catchUp(ctx context.Context, upTo *place) error {
	for {
		page, err := w.api.store.changesAfter(ctx, w.at.place, feedPage)
		if errors.Is(err, errTrimmed) {
			return errCutOff
		}
		if err != nil {
			return err
		}
		n := len(page)
		for upTo != nil && len(page) > 0 && page[len(page)-1].compare(*upTo) > 0 {
			page = page[:len(page)-1]
		}
		if err := w.tell(ctx, page); err != nil {
			return err
		}
		if n < feedPage || len(page) < n {
			return nil
		}
	}
}

// tell sends what concerns the watch of a page of changes.
func (w *watch) tell(ctx context.Context, page []change) error {
	if len(page) == 0 {
		return nil
	}
	var mine []change
	var keys []objects.Key
	for _, c := range latest(page) {
		if w.scope.covers(c.key()) {
			mine, keys = append(mine, c), append(keys, c.key())
		}
	}
	found, err := w.api.store.objectsOf(ctx, keys)
	if err != nil {
		return err
	}
	there := map[objects.Key]*apiclient.Raw{}
	for k, o := range found {
		if w.scope.selects(&o) {
			there[k] = &o
		}
	}
	if err := w.api.store.into(ctx, w.scope.version, slices.Collect(maps.Values(there))...); err != nil {
		return err
	}
	for _, c := range mine {
		told := telling{vault: w.api.store.vault, change: c, object: there[c.key()]}
		w.at.place = c.place
		e, err := told.event(ctx, readsSecrets(ctx, w.scope.kind))
		if err != nil {
			return err
		}
		if err := w.send(e.kind, e.data); err != nil {
			return err
		}
		w.sent[c.name] = max(w.sent[c.name], e.revision)
	}
	w.at.place = page[len(page)-1].place
	return w.flush()
}
