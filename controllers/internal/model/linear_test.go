package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
)

type (
	number struct {
		N int `json:"n"`
	}
	counter = apiclient.Object[number, number]
)

// ask is one call of a client, as porcupine sees it.
type ask struct {
	verb, name  string
	n           int
	ifMatch     int64 // also of a status patch
	uid         string
	fence       uint64
	add, remove bool // the finalizer
}

// answer is what came of it. unknown is that none came: the call may have been carried out, or will be, or not.
type answer struct {
	unknown bool
	refused error
	gone    bool
	object  thing
}

// thing is what the model knows of an object. It shares no code with the rules of the API.
type thing struct {
	there bool
	// uid is empty, and revision only the one before, where the write that made them was not answered. Nobody can name
	// them then.
	uid        string
	revision   int64
	unseen     bool
	generation int64
	spec       int
	status     int
	fence      uint64
	held       bool // by a finalizer
	deleting   bool
}

var linear = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		byName := map[string][]porcupine.Operation{}
		for _, o := range history {
			name := o.Input.(ask).name
			byName[name] = append(byName[name], o)
		}
		for _, p := range byName {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return thing{} },
	Step: func(state, input, output any) (bool, any) {
		before, out := state.(thing), output.(answer)
		after, wrote, err := input.(ask).do(before)
		if out.unknown {
			return true, after
		}
		if err != nil || out.refused != nil {
			return errors.Is(out.refused, err) && err != nil, before
		}
		if !after.there || out.gone {
			return !after.there && out.gone, after
		}
		return after.adopt(out.object, wrote)
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v = %+v", input, output) },
}

// do is the model: what a call does to a thing, and how it is refused.
func (a ask) do(s thing) (after thing, wrote bool, err error) {
	after = s
	switch {
	case !s.there && (a.verb == "create" || a.verb == "put" && a.ifMatch == 0):
		return thing{there: true, revision: s.revision, unseen: true, generation: 1, spec: a.n}, true, nil
	case !s.there && a.verb == "put":
		return s, false, apiclient.ErrConflict
	case !s.there:
		return s, false, apiclient.ErrNotFound
	case a.verb == "create":
		return s, false, apiclient.ErrExists
	case a.verb == "status" && a.uid != s.uid:
		return s, false, apiclient.ErrConflict
	case a.verb == "status" && a.fence < s.fence:
		return s, false, apiclient.ErrFenced
	case a.ifMatch != 0 && (s.unseen || a.ifMatch != s.revision):
		return s, false, apiclient.ErrConflict
	case a.verb == "put" && a.ifMatch == 0 && s.deleting:
		return s, false, apiclient.ErrConflict
	case a.verb == "get" || a.verb == "put" && a.n == s.spec || a.verb == "delete" && s.deleting:
		return s, false, nil
	case a.verb == "put":
		after.spec = a.n
		after.generation++
	case a.verb == "delete":
		after.deleting = true
		after.generation++
		after.there = s.held
	case a.verb == "status":
		after.status, after.fence = a.n, a.fence
		after.held = (s.held || a.add && !s.deleting) && !a.remove
		after.there = after.held || !s.deleting
	}
	after.unseen = true
	if !after.there {
		after = thing{revision: s.revision, unseen: true}
	}
	return after, true, nil
}

// adopt checks an answer against the model, and takes from it what only the API can know. Revisions grow for ever.
func (s thing) adopt(got thing, wrote bool) (ok bool, after thing) {
	want := s
	if s.uid == "" {
		want.uid = got.uid
	}
	if s.unseen {
		want.revision, want.unseen = got.revision, false
		ok = got.revision > s.revision
	} else {
		ok = !wrote
	}
	return ok && want == got && got.uid != "", got
}

// forEver is when a call ends that was not answered.
const forEver = 1 << 40

// flaky loses answers: the request is carried out, but nobody hears of it.
type flaky struct {
	http.RoundTripper
	mu  sync.Mutex
	rng *rand.Rand
}

var errLost = errors.New("the answer was lost")

func (f *flaky) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	loses := f.rng.IntN(30) == 0
	f.mu.Unlock()
	resp, err := f.RoundTripper.RoundTrip(req)
	if err == nil && loses {
		resp.Body.Close()
		return nil, errLost
	}
	return resp, err
}

// TestLinearizableSeeds has clients contend for a few objects through several APIs. Some calls are cancelled, the answers of
// some are lost. What the others saw could have happened to one object of each name, one call after the other.
func TestLinearizableSeeds(t *testing.T) {
	overSeeds(t, 10, func(t *testing.T, w *world, seed uint64) {
		const clients, turns = 5, 24
		kind := fmt.Sprintf("linear-%d", seed)
		var mu sync.Mutex
		var history []porcupine.Operation
		var working sync.WaitGroup
		for i := range clients {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			through := &flaky{RoundTripper: w.http, rng: rand.New(rand.NewPCG(seed, uint64(100+i)))}
			c := client[number, number](t, w, i, kind, through)
			seen := map[string]thing{}
			working.Go(func() {
				for range turns {
					a := choose(rng, seen)
					ctx, cancel := context.WithCancel(t.Context())
					if rng.IntN(12) == 0 {
						ctx, cancel = context.WithTimeout(t.Context(), time.Duration(rng.IntN(4000))*time.Microsecond)
					}
					call := w.clock.Add(1)
					out := a.send(ctx, c)
					end := w.clock.Add(1)
					cancel()
					if out.unknown {
						end = forEver
					}
					if out.object.there {
						seen[a.name] = out.object
					}
					if out.unknown && a.verb == "get" {
						continue // says nothing
					}
					mu.Lock()
					history = append(history, porcupine.Operation{ClientId: i, Input: a, Call: call, Output: out, Return: end})
					mu.Unlock()
				}
			})
		}
		working.Wait()
		result := porcupine.CheckOperationsTimeout(linear, history, time.Minute)
		require.Equal(t, porcupine.Ok, result, "%s", show(history))
	})
}

func choose(rng *rand.Rand, seen map[string]thing) ask {
	verbs := []string{"create", "get", "get", "put", "put", "put if-match", "put if-match", "delete", "status", "status", "status"}
	a := ask{verb: verbs[rng.IntN(len(verbs))], name: names[rng.IntN(2)], n: rng.IntN(4)}
	last := seen[a.name]
	switch a.verb {
	case "put if-match":
		a.verb, a.ifMatch = "put", last.revision
	case "status":
		a.uid, a.fence = last.uid, last.fence+rng.Uint64N(2)
		if a.uid == "" {
			a.uid = "nobody's"
		}
		if rng.IntN(2) == 0 {
			a.ifMatch = last.revision
		}
		a.add, a.remove = rng.IntN(3) == 0, rng.IntN(3) == 0
	}
	return a
}

// send makes the call. Objects are held by one finalizer.
func (a ask) send(ctx context.Context, c *apiclient.Client[number, number]) answer {
	var o *counter
	var err error
	var opts []apiclient.Option
	if a.ifMatch != 0 {
		opts = append(opts, apiclient.IfRevision(a.ifMatch))
	}
	switch a.verb {
	case "create":
		o, err = c.Create(ctx, a.name, number{a.n})
	case "get":
		o, err = c.Get(ctx, a.name)
	case "put":
		o, err = c.Put(ctx, a.name, number{a.n}, opts...)
	case "delete":
		o, err = c.Delete(ctx, a.name)
	case "status":
		p := apiclient.StatusPatch{UID: a.uid, Fence: a.fence, Revision: a.ifMatch, Status: fmt.Appendf(nil, `{"n":%d}`, a.n)}
		if a.add {
			p.AddFinalizers = []string{"held"}
		}
		if a.remove {
			p.RemoveFinalizers = []string{"held"}
		}
		o, err = c.PatchStatus(ctx, a.name, p)
	}
	switch {
	case errors.Is(err, apiclient.ErrUnavailable):
		return answer{unknown: true}
	case err != nil:
		return answer{refused: refusal(err)}
	case o == nil:
		return answer{gone: true}
	}
	return answer{object: thing{
		there: true, uid: o.UID, revision: o.Revision, generation: o.Generation, spec: o.Spec.N, status: o.Status.N,
		fence: o.Reconciliation.Fence, held: len(o.Finalizers) > 0, deleting: o.DeletedAt != nil,
	}}
}

// show prints the part of a history that has no explanation.
func show(history []porcupine.Operation) string {
	var b strings.Builder
	for _, part := range linear.Partition(history) {
		if porcupine.CheckOperations(linear, part) {
			continue
		}
		for _, o := range part {
			fmt.Fprintf(&b, "[%d,%d] client %d: %s\n", o.Call, o.Return, o.ClientId, linear.DescribeOperation(o.Input, o.Output))
		}
	}
	return b.String()
}
