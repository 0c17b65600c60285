package model

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

// page is a page of a list, and what was asked for.
type page struct {
	call, ret int64
	began     time.Time
	after     string // what cursor stands for
	cursor    string
	limit     string
	labels    map[string]string
	unsettled bool

	Items []apiclient.Raw `json:"items"`
	Next  string          `json:"next"`
}

func (p *page) String() string {
	items := make([]string, 0, len(p.Items))
	for _, o := range p.Items {
		items = append(items, fmt.Sprintf("%s@%d", o.Name, o.Revision))
	}
	return fmt.Sprintf("[%d,%d] list after %q limit %q labels %v unsettled %v = %v, next %q", p.call, p.ret, p.after, p.limit, p.labels, p.unsettled, items, p.Next)
}

// read reads the page. The client has no call for one page.
func (p *page) read(ctx context.Context, hc *http.Client, base, kind string) error {
	q := url.Values{}
	apiclient.Labeled(p.labels)(q)
	if p.unsettled {
		q.Set("unsettled", "0s")
	}
	for key, value := range map[string]string{"limit": p.limit, "cursor": p.cursor} {
		if value != "" {
			q.Set(key, value)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/objects/"+kind+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("list: %s", resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(p)
}

// follow is the page behind this one.
func (p *page) follow() *page {
	return &page{after: p.Items[len(p.Items)-1].Name, cursor: p.Next, limit: p.limit, labels: p.labels, unsettled: p.unsettled}
}

// selects reports whether the page must and whether it may have an object.
func (p *page) selects(o *apiclient.Raw) (must, may bool) {
	if o == nil {
		return false, false
	}
	for l, v := range p.labels {
		if got, ok := o.Labels[l]; !ok || got != v {
			return false, false
		}
	}
	if !p.unsettled {
		return true, true
	}
	since, owed := o.OwedSince(p.began)
	// The API takes the time before it looks: what is owed since the list began may be too young for it.
	return owed && since.Before(p.began.Truncate(time.Microsecond)), owed
}

// observe notes what the page has seen, and checks what does not depend on time.
func (p *page) observe(lines map[string]*timeline) error {
	last := p.after
	for i := range p.Items {
		o := &p.Items[i]
		if o.Name <= last {
			return fmt.Errorf("%s\n\tis not in the order of names, or not behind its cursor", p)
		}
		last = o.Name
		tl := lines[o.Name]
		at, ok := tl.at[o.Revision]
		if !ok || text(tl.states[at].object) != text(o) {
			return fmt.Errorf("%s\n\thas what never was: %s", p, text(o))
		}
		if _, may := p.selects(o); !may {
			return fmt.Errorf("%s\n\thas what it was not asked for: %s", p, text(o))
		}
		tl.seen(at, p.call, p.ret)
	}
	return nil
}

// explain checks that there was a moment at which the page was right about all objects.
func (p *page) explain(lines map[string]*timeline) error {
	moments := []int64{p.call}
	for _, tl := range lines {
		for _, s := range tl.states {
			if p.call < s.earliest && s.earliest < p.ret {
				moments = append(moments, s.earliest)
			}
		}
	}
	for _, m := range moments {
		if p.right(lines, m) {
			return nil
		}
	}
	why := fmt.Errorf("%s\n\twas right at no time", p)
	for _, name := range names {
		from, to := lines[name].during(p.call, p.ret)
		for _, s := range lines[name].states[from:to] {
			why = fmt.Errorf("%w\n\t%s, from [%d,%d]: %s", why, name, s.earliest, s.latest, describe(s.object))
		}
	}
	return why
}

// right reports whether the page may show what was there right after a moment.
func (p *page) right(lines map[string]*timeline, moment int64) bool {
	items := map[string]int64{}
	end := ""
	for _, o := range p.Items {
		items[o.Name], end = o.Revision, o.Name
	}
	for name, tl := range lines {
		if name <= p.after || p.Next != "" && name > end {
			continue
		}
		fits := false
		for i, s := range tl.states {
			if s.earliest > moment || moment >= tl.until(i) {
				continue
			}
			must, _ := p.selects(s.object)
			revision, listed := items[name]
			fits = fits || listed && tl.at[revision] == i && i > 0 || !listed && !must
		}
		if !fits {
			return false
		}
	}
	return p.Next == "" || end != ""
}
