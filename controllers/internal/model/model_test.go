package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/internal/objects"
	"github.com/evenkeel-io/evenkeel/internal/subject"
)

// names are those of the objects, in order. The first two share a shard, whose objects take turns for their first revision.
var names = []string{"n0", "np", "o"}

const (
	clients = 6
	turns   = 30
)

// heard is a notification, and what whoever got it then read.
type heard struct {
	name, reason string
	read         *call
}

// history is what happened to the objects of one kind.
type history struct {
	w    *world
	kind string

	mu     sync.Mutex
	calls  map[string][]*call // by name; guarded by mu, like the rest
	pages  []*page
	heard  []heard
	broken *rand.Rand // decides which notifications fail; nil if none does
}

// TestModelSeeds has clients write at random to a few objects through several APIs, while the broker fails now and then. The
// revisions of the answers put all calls in an order, in which each must have done what the rules say. What was refused,
// read and listed must be what that order allows at the time. Each change that controllers must hear of was heard of by
// somebody who then read it, or a later one.
func TestModelSeeds(t *testing.T) {
	overSeeds(t, 10, func(t *testing.T, w *world, seed uint64) {
		h := &history{w: w, kind: fmt.Sprintf("model-%d", seed), calls: map[string][]*call{}}
		require.Equal(t, subject.Shard(h.kind, names[0]), subject.Shard(h.kind, names[1]))
		h.make(t, seed)
		h.check(t)
	})
}

func (h *history) make(t *testing.T, seed uint64) {
	h.broken = rand.New(rand.NewPCG(seed, 0))
	listener := client[json.RawMessage, json.RawMessage](t, h.w, int(seed), h.kind, h.w.http)
	h.w.listen(h.kind, func(ctx context.Context, name, reason string) error { return h.hear(ctx, listener, name, reason) })
	var working sync.WaitGroup
	for i := range clients {
		c := client[json.RawMessage, json.RawMessage](t, h.w, i, h.kind, h.w.http)
		choose := chooser{rand.New(rand.NewPCG(seed, uint64(i+1)))}
		working.Go(func() { h.work(t, c, i, choose) })
	}
	working.Wait()
	h.mu.Lock()
	h.broken = nil
	h.mu.Unlock()
	require.NoError(t, h.w.apis[int(seed)%len(h.w.apis)].Flush(t.Context()))
	h.w.listen(h.kind, nil)

	for _, p := range everyList() {
		h.list(t, 0, p)
	}
	for _, name := range names {
		h.do(t.Context(), listener, -1, name, op{verb: "get"})
	}
}

// work is what one client does.
func (h *history) work(t *testing.T, c *rawClient, i int, choose chooser) {
	seen := map[string]*apiclient.Raw{}
	for range turns {
		if choose.rng.IntN(8) == 0 {
			h.list(t, i, &page{
				limit: pick(choose, "", "1", "2"), unsettled: choose.rng.IntN(4) == 0, labels: pick(choose, nil, nil, choose.labels()),
			})
			continue
		}
		name := pick(choose, names...)
		answer := h.do(t.Context(), c, i, name, choose.op(seen[name]))
		if answer.got != nil {
			seen[name] = answer.got
		} else if answer.err != nil {
			if now := h.do(t.Context(), c, i, name, op{verb: "get"}); now.got != nil {
				seen[name] = now.got
			}
		}
	}
}

func (h *history) do(ctx context.Context, c *rawClient, client int, name string, o op) *call {
	made := &call{op: o, name: name, client: client, call: h.w.clock.Add(1)}
	made.got, made.err = o.send(ctx, c, name)
	made.ret = h.w.clock.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[name] = append(h.calls[name], made)
	return made
}

// list reads a list, page by page.
func (h *history) list(t *testing.T, i int, p *page) {
	for p != nil {
		p.call, p.began = h.w.clock.Add(1), time.Now()
		err := p.read(t.Context(), &http.Client{Transport: h.w.http}, h.w.urls[i%len(h.w.urls)], h.kind)
		p.ret = h.w.clock.Add(1)
		if err != nil {
			t.Error(err)
			return
		}
		h.mu.Lock()
		h.pages = append(h.pages, p)
		h.mu.Unlock()
		if p.Next == "" || len(p.Items) == 0 {
			return
		}
		p = p.follow()
	}
}

// everyList is a list of everything, and one of each label.
func everyList() []*page {
	pages := []*page{{}, {unsettled: true}}
	for _, a := range []string{"", "1", "2"} {
		for _, b := range []string{"", "1", "2"} {
			labels := map[string]string{"a": a, "b": b}
			for _, l := range []string{"a", "b"} {
				if labels[l] == "" {
					delete(labels, l)
				}
			}
			pages = append(pages, &page{labels: labels})
		}
	}
	return pages
}

var errBroken = errors.New("the broker is broken")

// hear takes a notification and reads the object, as a controller would.
func (h *history) hear(ctx context.Context, c *rawClient, name, reason string) error {
	h.mu.Lock()
	fails := h.broken != nil && h.broken.IntN(4) == 0
	h.mu.Unlock()
	if fails {
		return errBroken
	}
	read := h.do(ctx, c, -1, name, op{verb: "get"})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(h.heard, heard{name, reason, read})
	return nil
}

func (h *history) check(t *testing.T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lines := map[string]*timeline{}
	for _, name := range names {
		for _, c := range h.calls[name] {
			require.True(t, c.err == nil || refusal(c.err) != nil, "%s", c)
		}
		tl, err := newTimeline(objects.Key{Kind: h.kind, Name: name}, h.calls[name])
		require.NoError(t, err, "%s", joined(h.calls[name]))
		lines[name] = tl
	}
	for _, p := range h.pages {
		require.NoError(t, p.observe(lines))
	}
	for name, tl := range lines {
		require.NoError(t, tl.bound(), "%s", joined(h.calls[name]))
		for _, c := range h.calls[name] {
			if !tl.explained[c] {
				require.NoError(t, tl.explain(c))
			}
		}
		require.NoError(t, tl.notified(h.heard))
	}
	for _, p := range h.pages {
		require.NoError(t, p.explain(lines))
	}
}

func joined(calls []*call) string {
	var b strings.Builder
	for _, c := range calls {
		b.WriteString(c.String() + "\n")
	}
	return b.String()
}

// notified checks that each change that controllers must hear of was heard of: somebody was told, and read it or a later
// one. The latest was heard of with its own reason; no reason was made up.
func (tl *timeline) notified(all []heard) error {
	told, reasons := -1, map[string]int{} // the latest states that were read: of all, and by reason
	for _, n := range all {
		if n.name != tl.key.Name {
			continue
		}
		_, to := tl.during(n.read.call, n.read.ret)
		latest := to - 1
		if at := tl.at[n.read.revision()]; at > 0 {
			latest = at
		}
		told, reasons[n.reason] = max(told, latest), max(reasons[n.reason], latest)
		if !slices.ContainsFunc(tl.states[:latest+1], func(s state) bool { return s.effect.Notify == n.reason }) {
			return fmt.Errorf("%s: %s notified before it happened, read by %s", tl.key, n.reason, n.read)
		}
	}
	for i, s := range slices.Backward(tl.states) {
		if s.effect.Notify == "" {
			continue
		}
		if told < i || reasons[s.effect.Notify] < i {
			return fmt.Errorf("%s: no notification of %s\n\tlatest that was heard of: %d of %d, with this reason %d", tl.key, s.by, told, i, reasons[s.effect.Notify])
		}
		return nil
	}
	return nil
}
