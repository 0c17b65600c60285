package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// runner runs tests against mutants.
type runner struct {
	*program
	known    *results
	progress io.Writer

	mu      sync.Mutex
	killers map[string]map[*test]int // by function, and by file: how many of its mutants a test killed
}

func newRunner(p *program, known *results, progress io.Writer) *runner {
	return &runner{program: p, known: known, progress: progress, killers: map[string]map[*test]int{}}
}

// run finds out what comes of the mutants of which it is not known. It ends early when ctx does.
func (r *runner) run(ctx context.Context, chosen []*mutant) error {
	byName := map[string]*test{}
	for _, t := range r.tests {
		byName[t.name()] = t
	}
	var missing []*mutant
	for _, m := range chosen {
		if left, known := r.known.left(m, r.reaching(m)); !known || len(left) > 0 {
			missing = append(missing, m)
		} else if res, _ := r.known.of(m); res.Killed && byName[res.By] != nil {
			r.credit(m, byName[res.By])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	bar := newBar(r.progress, "mutants run", len(missing))
	killed := 0
	var mu sync.Mutex
	return each(ctx, r.jobs, missing, func(m *mutant) error {
		res, err := r.try(ctx, m)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if res.Killed {
			killed++
		}
		bar.step(fmt.Sprintf("%d killed, %d survived", killed, bar.done+1-killed))
		return r.known.add(m, res)
	})
}

// try runs the tests that reach a mutant, and that it has not met, until one fails.
func (r *runner) try(ctx context.Context, m *mutant) (result, error) {
	var res result
	began := time.Now()
	on := fmt.Sprintf("%s=%d", envMutant, m.id)
	left, _ := r.known.left(m, r.reaching(m))
	for _, g := range r.plan(m, left) {
		o, err := g.tests[0].binary.process(ctx, g.names(), g.timeout(), on)
		if err != nil {
			return res, err
		}
		if !o.passed && o.how != howFailed {
			// The machine may have been busy, or short of memory: once more.
			if o, err = g.tests[0].binary.process(ctx, g.names(), 2*g.timeout(), on); err != nil {
				return res, err
			}
		}
		if ctx.Err() != nil {
			return res, ctx.Err()
		}
		if o.passed {
			for _, t := range g.tests {
				res.Met = append(res.Met, t.version())
			}
			continue
		}
		res.Met, res.Killed, res.How = nil, true, o.how
		top, _, _ := strings.Cut(o.test, "/")
		for _, t := range g.tests {
			if t.Test == top {
				res.By = t.name()
				r.credit(m, t)
			}
		}
		break
	}
	res.Seconds = time.Since(began).Seconds()
	return res, nil
}

func (r *runner) credit(m *mutant, t *test) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, where := range []string{m.place(), m.file.name} {
		if r.killers[where] == nil {
			r.killers[where] = map[*test]int{}
		}
		r.killers[where][t]++
	}
}

// group is tests of one binary that run in one process.
type group struct {
	tests   []*test
	seconds float64
}

func (g *group) names() []string {
	var names []string
	for _, t := range g.tests {
		names = append(names, t.Test)
	}
	return names
}

// timeout is generous, because the machine may be busy, but not endless: in virtual time a bubble may spin for ever.
func (g *group) timeout() time.Duration {
	return 8*time.Second + time.Duration(5*g.seconds*float64(time.Second))
}

const (
	// firstTier and tierGrowth bound the groups, in seconds: while there are quick tests, long ones wait.
	firstTier, tierGrowth = 1.5, 3
	// hot is how many tests that killed neighbours come first, if they take no longer than hotSeconds.
	hot, hotSeconds = 3, 5
	// nearer is how much more a mutant of the same function counts than one of the same file.
	nearer = 10
)

// plan is in which groups tests run: those that killed most of a mutant's neighbours, then the quickest.
func (r *runner) plan(m *mutant, tests []*test) []*group {
	var first, rest []*test
	r.mu.Lock()
	killers := func(t *test) int { return nearer*r.killers[m.place()][t] + r.killers[m.file.name][t] }
	for _, t := range tests {
		if killers(t) > 0 && t.Seconds <= hotSeconds {
			first = append(first, t)
		} else {
			rest = append(rest, t)
		}
	}
	slices.SortStableFunc(first, func(a, b *test) int {
		return cmp.Or(killers(b)-killers(a), cmp.Compare(a.Seconds, b.Seconds))
	})
	r.mu.Unlock()
	if len(first) > hot {
		rest = append(rest, first[hot:]...)
		first = first[:hot]
	}
	slices.SortStableFunc(rest, func(a, b *test) int { return cmp.Compare(a.Seconds, b.Seconds) })
	groups := split(first)
	for limit := firstTier; len(rest) > 0; limit *= tierGrowth {
		n, sum := 0, 0.0
		for n < len(rest) && (n == 0 || sum+rest[n].Seconds <= limit) {
			sum += rest[n].Seconds
			n++
		}
		groups = append(groups, split(rest[:n])...)
		rest = rest[n:]
	}
	return groups
}

// split makes a group per binary.
func split(tests []*test) []*group {
	var groups []*group
	for _, t := range tests {
		i := slices.IndexFunc(groups, func(g *group) bool { return g.tests[0].binary == t.binary })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &group{})
		}
		groups[i].tests = append(groups[i].tests, t)
		groups[i].seconds += t.Seconds
	}
	return groups
}
