package apitest

import (
	"encoding/json"
	"maps"
	"net/http"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// made is what a create has made under its Idempotency-Key.
type made struct {
	body string
	uid  string
}

// createUnder makes an object, unless it has done so under this key. Callers hold mu.
func (m *Memory) createUnder(key string, k objects.Key, w objects.Wanted) (apiclient.Raw, error) {
	if key == "" {
		return m.create(k, w)
	}
	text, _ := json.Marshal([]any{k, w.Labels, w.Spec}) // what has been decoded encodes
	before, again := m.made[key]
	if !again {
		o, err := m.create(k, w)
		if err == nil {
			m.made[key] = made{body: string(text), uid: o.UID}
		}
		return o, err
	}
	if before.body != string(text) {
		return apiclient.Raw{}, objects.OtherRequest()
	}
	r, err := m.find(k)
	if err != nil || r.object.UID != before.uid {
		return apiclient.Raw{}, objects.MadeAndGone(k)
	}
	return r.object, nil
}

func (m *Memory) serveBatch(r *http.Request) (int, any, error) {
	var body struct {
		Items []apiclient.Item `json:"items"`
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	batch, err := objects.ParseBatch(body.Items)
	if err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rows, graves, events := m.copies(batch), maps.Clone(m.graves), maps.Clone(m.events)
	results := make([]*apiclient.Raw, len(batch))
	for _, a := range batch {
		if results[a.At], err = m.applyAsked(&a); err != nil {
			m.restore(rows)
			m.graves, m.events = graves, events
			return 0, nil, a.Failed(err)
		}
	}
	return http.StatusOK, map[string]any{"items": results}, nil
}

// copies are the rows of a batch as they are, nil where there is none. Callers hold mu.
func (m *Memory) copies(batch []objects.Asked) map[objects.Key]*row {
	kept := map[objects.Key]*row{}
	for _, a := range batch {
		kept[a.Key] = nil
		if r := m.rows[a.Key]; r != nil {
			c := *r
			kept[a.Key] = &c
		}
	}
	return kept
}

// restore takes back what was done to rows. Callers hold mu.
func (m *Memory) restore(rows map[objects.Key]*row) {
	for k, r := range rows {
		if r == nil {
			delete(m.rows, k)
		} else {
			m.rows[k] = r
		}
	}
}

// applyAsked applies one item of a batch. Callers hold mu.
func (m *Memory) applyAsked(a *objects.Asked) (*apiclient.Raw, error) {
	r, err := m.find(a.Key)
	if err == nil {
		o, gone, err := m.apply(r, a.Rule())
		if gone {
			return nil, nil //nolint:nilnil // there is none, and that is right
		}
		return &o, err
	}
	create, err := a.Absent()
	if !create {
		return nil, err
	}
	o, err := m.create(a.Key, a.Wanted)
	return &o, err
}
