package apitest

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

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
	limit, after, wanted, err := listQuery(r.URL.Query())
	if err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for k, row := range m.rows {
		if k.Kind == kind && k.Name > after && !row.gone && wanted(&row.object) {
			names = append(names, k.Name)
		}
	}
	slices.Sort(names)
	p, size := page{Items: []apiclient.Raw{}}, 0
	for i, name := range names {
		o := m.rows[objects.Key{Kind: kind, Name: name}].object
		p.Items = append(p.Items, o)
		size += len(o.Spec) + len(o.Status)
		if i+1 < len(names) && (len(p.Items) == limit || size >= objects.MaxPage) {
			p.Next = objects.Cursor(name)
			break
		}
	}
	return http.StatusOK, p, nil
}

func listQuery(q url.Values) (limit int, after string, wanted func(*apiclient.Raw) bool, err error) {
	limit = objects.DefaultLimit
	if s := q.Get("limit"); s != "" {
		limit, err = strconv.Atoi(s)
		if err != nil || limit < 1 || limit > objects.MaxLimit {
			return 0, "", nil, objects.Invalid("query.limit", fmt.Sprintf("want 1 to %d, not %q", objects.MaxLimit, s))
		}
	}
	if after, err = objects.ParseCursor(q.Get("cursor")); err != nil {
		return 0, "", nil, err
	}
	labels, err := objects.ParseLabels(q.Get("labels"))
	if err != nil {
		return 0, "", nil, err
	}
	owedAt, err := objects.ParseUnsettled(q.Get("unsettled"))
	wanted = func(o *apiclient.Raw) bool {
		if !labeled(o, labels) {
			return false
		}
		if owedAt == nil {
			return true
		}
		since, owed := o.OwedSince(objects.Now())
		return owed && !since.After(*owedAt)
	}
	return limit, after, wanted, err
}
