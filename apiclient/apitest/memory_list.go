package apitest

import (
	"net/http"
	"slices"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

type page struct {
	Items []apiclient.Raw `json:"items"`
	Next  string          `json:"next,omitempty"`
}

func (m *Memory) serveList(r *http.Request) (int, any, error) {
	kind := r.PathValue("kind")
	if err := objects.CheckKind(kind); err != nil {
		return 0, nil, err
	}
	q := r.URL.Query()
	sel, err := objects.ParseSelection(objects.ListQuery{
		Limit: q.Get("limit"), Cursor: q.Get("cursor"), Labels: q.Get("labels"), State: q.Get("state"), Fields: q.Get("fields"),
		Unsettled: q.Get("unsettled"), Sort: q.Get("sort"),
	})
	if err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []*apiclient.Raw
	for k, row := range m.rows {
		o := &row.object
		if k.Kind == kind && !row.gone && sel.Selects(o) && (sel.After == nil || sel.Sort.Compare(sel.Sort.Of(o), *sel.After) > 0) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b *apiclient.Raw) int { return sel.Sort.Compare(sel.Sort.Of(a), sel.Sort.Of(b)) })
	p, size := page{Items: []apiclient.Raw{}}, 0
	for i, o := range found {
		p.Items = append(p.Items, *o)
		size += len(o.Spec) + len(o.Status)
		if i+1 < len(found) && (len(p.Items) == sel.Limit || size >= objects.MaxPage) {
			p.Next = sel.Sort.Cursor(sel.Sort.Of(o))
			break
		}
	}
	return http.StatusOK, p, nil
}

func (m *Memory) serveEvents(r *http.Request) (int, any, error) {
	k, err := pathKey(r)
	if err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.events[k]
	if len(all) == 0 {
		return 0, nil, objects.NotFound(k)
	}
	return http.StatusOK, map[string]any{"items": objects.Summed(all)}, nil
}
