package apiclient

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// silence is how long a watch may be silent before it is taken for dead: three heartbeats of the server.
const silence = 45 * time.Second

// EventType says what an [Event] is.
type EventType string

// The types of events.
const (
	// EventReset comes first, and again after a watch was interrupted for so long that the server does not know what has
	// changed since: the objects that are put from here to EventSynced are all there are. Forget others.
	EventReset EventType = "reset"
	// EventPut has an object as it is now: a new one, a changed one, or one that is shown for the first time.
	EventPut EventType = "put"
	// EventGone has the name of an object that is not there any more, or not among those that are watched.
	EventGone EventType = "gone"
	// EventSynced ends what EventReset began.
	EventSynced EventType = "synced"
)

// Event is what a watch tells. Changes that follow each other quickly may come as one, and an event may come twice; the
// revisions of an object never go back.
type Event[S, T any] struct {
	// Type is what happened.
	Type EventType
	// Name is that of the object, with EventPut and EventGone.
	Name string
	// Object is as it is now, with EventPut.
	Object *Object[S, T]
	// Cursor is where another watch may go on after this event ([From]).
	Cursor string
}

// WatchOption selects what a watch tells.
type WatchOption func(url.Values)

// WatchLabeled tells of objects that have all of these labels.
func WatchLabeled(labels map[string]string) WatchOption { return WatchOption(Labeled(labels)) }

// WatchNamed tells of one object.
func WatchNamed(name string) WatchOption { return func(q url.Values) { q.Set("name", name) } }

// From goes on behind an event of an earlier watch ([Event.Cursor]) of the same objects.
func From(cursor string) WatchOption { return func(q url.Values) { q.Set("cursor", cursor) } }

// Watch ranges over the objects of a kind and then over what happens to them, until ctx is done. When it is interrupted it
// goes on where it was, so nothing that lasts is missed. An object that does not fit S and T, or is sealed
// ([ErrSealed]), comes as an error that names it, and the watch goes on; after any other error, which is a refusal of the server or that of ctx, it ends.
func (c *Client[S, T]) Watch(ctx context.Context, opts ...WatchOption) iter.Seq2[Event[S, T], error] {
	return func(yield func(Event[S, T], error) bool) {
		q := url.Values{}
		for _, o := range opts {
			o(q)
		}
		w := &watching[S, T]{client: c, query: q, yield: yield}
		for failures := 0; ; failures++ {
			before := q.Get("cursor")
			wait, err := w.once(ctx)
			switch {
			case w.ended:
				return
			case ctx.Err() != nil:
				yield(Event[S, T]{}, fmt.Errorf("watch %s: %w", c.kind, context.Cause(ctx)))
				return
			case err != nil && !errors.Is(err, ErrUnavailable):
				yield(Event[S, T]{}, err)
				return
			}
			if q.Get("cursor") != before {
				failures = 0
			}
			if !pause(ctx, wait(failures+1)) {
				<-ctx.Done() // it has a deadline that is nearer
			}
		}
	}
}

// watching is a watch with all its interruptions.
type watching[S, T any] struct {
	client *Client[S, T]
	query  url.Values
	yield  func(Event[S, T], error) bool
	ended  bool // the range was left
}

// once watches until something goes wrong. wait tells how long to wait after so many failures in a row.
func (w *watching[S, T]) once(ctx context.Context) (wait func(failures int) time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dead := time.AfterFunc(silence, cancel)
	defer dead.Stop()
	doing := "watch " + w.client.kind
	asked := call{method: http.MethodGet, path: "/v1/watch/" + w.client.kind + "?" + w.query.Encode(), doing: doing}
	req, err := w.client.request(ctx, asked, nil)
	if err != nil {
		return answer{}.wait, err
	}
	resp, err := w.client.http.Do(req)
	if err != nil {
		return answer{}.wait, fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, withoutURL(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody)) // what is there says enough
		return answer{retryAfter: retryAfter(resp)}.wait, refusal(doing, resp, data)
	}
	if ct := resp.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		return answer{}.wait, fmt.Errorf("%s: the answer is %q, not a stream of events", doing, ct)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxBody)
	for {
		e, err := readEvent(lines)
		if err != nil {
			return answer{}.wait, fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
		}
		dead.Reset(silence)
		if !w.tell(e) {
			w.ended = true
			return answer{}.wait, nil
		}
	}
}

// tell hands an event on. It returns false if nobody wants more.
func (w *watching[S, T]) tell(e sentEvent) bool {
	goOn := true
	switch t := EventType(e.kind); t {
	case EventReset, EventSynced:
		goOn = w.yield(Event[S, T]{Type: t, Cursor: e.id}, nil)
	case EventGone:
		var named struct{ Name string }
		if err := json.Unmarshal(e.data, &named); err != nil {
			goOn = w.yield(Event[S, T]{}, fmt.Errorf("watch %s: decode: %w", w.client.kind, err))
			break
		}
		goOn = w.yield(Event[S, T]{Type: t, Name: named.Name, Cursor: e.id}, nil)
	case EventPut:
		o, err := w.client.item("watch", e.data)
		if err != nil {
			goOn = w.yield(Event[S, T]{}, err)
			break
		}
		goOn = w.yield(Event[S, T]{Type: t, Name: o.Name, Object: o, Cursor: e.id}, nil)
	}
	if e.id != "" {
		w.query.Set("cursor", e.id)
	}
	return goOn
}

// sentEvent is a server-sent event.
type sentEvent struct {
	id, kind string
	data     []byte
}

// readEvent reads up to the end of an event (HTML, section 9.2.6).
func readEvent(lines *bufio.Scanner) (e sentEvent, err error) {
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			return e, nil
		}
		field, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			e.id = string(value)
		case "event":
			e.kind = string(value)
		case "data":
			e.data = append(e.data, value...)
		}
	}
	return e, cmp.Or(lines.Err(), io.EOF)
}

// WaitFor watches one object until done says so, and returns it as it was then. done is called with nil when there is no
// object of that name. It returns the error of ctx when that ends first, so give it a deadline.
//
//	w, err := widgets.WaitFor(ctx, "blue", (*apiclient.Object[Spec, Status]).Ready)
func (c *Client[S, T]) WaitFor(ctx context.Context, name string, done func(o *Object[S, T]) bool) (*Object[S, T], error) {
	if err := subject.CheckObject(c.kind, name); err != nil {
		return nil, fmt.Errorf("wait for %s/%s: %w: %w", c.kind, name, ErrInvalid, err)
	}
	there := false
	for e, err := range c.Watch(ctx, WatchNamed(name)) {
		switch {
		case err != nil:
			return nil, fmt.Errorf("wait for %s/%s: %w", c.kind, name, err)
		case e.Type == EventReset:
			there = false
			continue
		case e.Type == EventPut:
			there = true
		case e.Type == EventSynced && there:
			continue // it has been looked at
		}
		if done(e.Object) {
			return e.Object, nil
		}
	}
	return nil, fmt.Errorf("wait for %s/%s: %w", c.kind, name, context.Cause(ctx))
}
