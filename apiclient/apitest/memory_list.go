package apitest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// Limits of a list.
const (
	defaultLimit = 100
	maxLimit     = 500
	// maxPage ends a page early, in bytes, well below what the client reads of one answer.
	maxPage = 8 << 20
)

type page struct {
	Items []apiclient.Raw `json:"items"`
	Next  string          `json:"next,omitempty"`
}

func (m *Memory) serveList(r *http.Request) (int, any, error) {
	kind := r.PathValue("kind")
	if err := subject.CheckKind(kind); err != nil {
		return 0, nil, invalid("path.kind", err.Error())
	}
	limit, after, wanted, err := listQuery(r.URL.Query())
	if err != nil {
		return 0, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for k, row := range m.rows {
		if k.kind == kind && k.name > after && !row.gone && wanted(&row.object) {
			names = append(names, k.name)
		}
	}
	slices.Sort(names)
	p, size := page{Items: []apiclient.Raw{}}, 0
	for i, name := range names {
		o := m.rows[key{kind, name}].object
		p.Items = append(p.Items, o)
		size += len(o.Spec) + len(o.Status)
		if i+1 < len(names) && (len(p.Items) == limit || size >= maxPage) {
			p.Next = base64.RawURLEncoding.EncodeToString([]byte(name))
			break
		}
	}
	return http.StatusOK, p, nil
}

func listQuery(q url.Values) (limit int, after string, wanted func(*apiclient.Raw) bool, err error) {
	limit, wanted = defaultLimit, func(*apiclient.Raw) bool { return true }
	if s := q.Get("limit"); s != "" {
		limit, err = strconv.Atoi(s)
		if err != nil || limit < 1 || limit > maxLimit {
			return 0, "", nil, invalid("query.limit", fmt.Sprintf("want 1 to %d, not %q", maxLimit, s))
		}
	}
	if s := q.Get("cursor"); s != "" {
		b, err := base64.RawURLEncoding.DecodeString(s)
		if err != nil || subject.CheckObject("any", string(b)) != nil {
			return 0, "", nil, invalid("query.cursor", "want the next of an earlier page")
		}
		after = string(b)
	}
	if s := q.Get("unsettled"); s != "" {
		atLeast, err := time.ParseDuration(s)
		if err != nil || atLeast < 0 {
			return 0, "", nil, invalid("query.unsettled", fmt.Sprintf("want a duration such as 1m30s, not %q", s))
		}
		before := now().Add(-atLeast)
		wanted = func(o *apiclient.Raw) bool {
			since, owed := o.OwedSince(now())
			return owed && !since.After(before)
		}
	}
	return limit, after, wanted, nil
}
