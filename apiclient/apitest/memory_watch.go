package apitest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// watch is a stream of events. Its reader does the work, so it needs no goroutine.
type watch struct {
	memory *Memory
	ctx    context.Context // the request's
	kind   string
	name   string // every one, if it is empty
	labels map[string]string
	at     int64 // the revision up to which the reader has been told
	unread bytes.Buffer
}

func (m *Memory) serveWatch(r *http.Request) (int, any, error) {
	q := r.URL.Query()
	w := &watch{memory: m, ctx: r.Context(), kind: r.PathValue("kind"), name: q.Get("name")}
	if err := objects.CheckKind(w.kind); err != nil {
		return 0, nil, err
	}
	if w.name != "" {
		if err := objects.CheckKey(objects.Key{Kind: w.kind, Name: w.name}, "query.name"); err != nil {
			return 0, nil, err
		}
	}
	var err error
	if w.labels, err = objects.ParseLabels(q.Get("labels")); err != nil {
		return 0, nil, err
	}
	text := cmp.Or(r.Header.Get("Last-Event-ID"), q.Get("cursor"))
	if text == "" {
		w.showAll()
		return http.StatusOK, w, nil
	}
	at, err := strconv.Atoi(text)
	if err != nil || at < 0 {
		return 0, nil, objects.Invalid("query.cursor", "want the id of an event of an earlier watch")
	}
	if w.at = int64(at); w.at > m.present() { // it is of another API, which had come further
		w.showAll()
	}
	return http.StatusOK, w, nil
}

// present is the revision of the latest write.
func (m *Memory) present() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision
}

func (w *watch) covers(k objects.Key) bool {
	return w.kind == k.Kind && (w.name == "" || w.name == k.Name)
}

func (w *watch) send(kind string, data []byte) {
	w.unread.Write(objects.Event(kind, strconv.Itoa(int(w.at)), data))
}

func (w *watch) put(o *apiclient.Raw) {
	data, _ := json.Marshal(o) // what is stored is valid JSON
	w.send(objects.EventPut, data)
}

func (w *watch) showAll() {
	m := w.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	w.at = m.revision
	w.send(objects.EventReset, []byte("{}"))
	for _, r := range m.sorted(func(r *row) bool {
		return !r.gone && w.covers(objects.KeyOf(&r.object)) && objects.Labeled(&r.object, w.labels)
	}) {
		w.put(&r.object)
	}
	w.send(objects.EventSynced, []byte("{}"))
}

// sorted are the rows that match, in the order of their names. Callers hold mu.
func (m *Memory) sorted(match func(*row) bool) []*row {
	var rows []*row
	for _, r := range m.rows {
		if match(r) {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *row) int { return cmp.Compare(a.object.Name, b.object.Name) })
	return rows
}

// Read waits for events.
func (w *watch) Read(p []byte) (int, error) {
	for w.unread.Len() == 0 {
		next := w.tell()
		if next == nil {
			break
		}
		select {
		case <-w.ctx.Done():
			return 0, w.ctx.Err()
		case <-next:
		case <-time.After(objects.Heartbeat):
			w.send(objects.EventHeartbeat, []byte("{}"))
		}
	}
	n, _ := w.unread.Read(p) // there is something
	return n, nil
}

// tell puts what has happened since into the buffer. If that is nothing it returns what is closed when something happens.
func (w *watch) tell() <-chan struct{} {
	m := w.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	type news struct {
		revision int64
		name     string
		row      *row // nil if it has gone
	}
	var all []news
	for k, r := range m.rows {
		if w.covers(k) && !r.gone && r.object.Revision > w.at {
			all = append(all, news{r.object.Revision, k.Name, r})
		}
	}
	for k, revision := range m.graves {
		if w.covers(k) && revision > w.at {
			all = append(all, news{revision, k.Name, nil})
		}
	}
	slices.SortFunc(all, func(a, b news) int { return cmp.Compare(a.revision, b.revision) })
	for _, n := range all {
		w.at = n.revision
		if n.row != nil && objects.Labeled(&n.row.object, w.labels) {
			w.put(&n.row.object)
		} else {
			w.send(objects.EventGone, objects.Gone(objects.Key{Kind: w.kind, Name: n.name}))
		}
	}
	if len(all) > 0 {
		return nil
	}
	return m.written
}

// stream sends a watch over a real connection.
func (w *watch) stream(to http.ResponseWriter) {
	to.Header().Set("Content-Type", objects.EventStream)
	out := http.NewResponseController(to)
	for buffer := make([]byte, 4096); ; {
		n, err := w.Read(buffer)
		if err != nil {
			return // its reader has gone
		}
		if _, err := to.Write(buffer[:n]); err != nil || out.Flush() != nil {
			return
		}
	}
}

// recorder keeps an answer. A watch is read by whoever reads the body.
type recorder struct {
	*httptest.ResponseRecorder
	watch *watch
}

func (rec *recorder) result(r *http.Request) *http.Response {
	resp := rec.Result()
	resp.Request = r
	if rec.watch != nil {
		resp.Header.Set("Content-Type", objects.EventStream)
		resp.Body = io.NopCloser(rec.watch)
	}
	return resp
}
