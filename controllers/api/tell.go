package api

import (
	"encoding/json"
	"fmt"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
)

// latest leaves out changes that are followed by another one of the same object.
func latest(page []change) []change {
	last := map[objects.Key]int{}
	for i, c := range page {
		last[c.key()] = i
	}
	var kept []change
	for i, c := range page {
		if last[c.key()] == i {
			kept = append(kept, c)
		}
	}
	return kept
}

// tell sends each watcher what concerns it. Callers hold mu.
func (f *feed) tell(page []change, found map[objects.Key]apiclient.Raw) {
	for _, c := range page {
		k := c.key()
		o, there := found[k]
		var put, gone event // made once for all
		for w := range f.watchers {
			if !w.scope.covers(k) {
				continue
			}
			e := &gone
			if there && w.scope.selects(&o) {
				e = &put
			}
			if e.kind == "" {
				*e = eventOf(c.place, k, &o, e == &put)
			}
			select {
			case w.events <- *e:
			default:
				f.cut(w)
			}
		}
	}
}

func eventOf(at place, k objects.Key, o *apiclient.Raw, there bool) event {
	if !there {
		return event{at: at, kind: objects.EventGone, data: objects.Gone(k)}
	}
	data, err := json.Marshal(o)
	if err != nil { // what is stored is valid JSON
		panic(fmt.Sprintf("encode %s: %v", k, err))
	}
	return event{at: at, kind: objects.EventPut, data: data}
}
