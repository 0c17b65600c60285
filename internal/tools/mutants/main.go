// Command mutants measures how many deliberate breaks of the code the tests notice. A break that no test notices is a line
// whose promise nothing holds: it wants a test, or a reason in survivors.txt why it does not matter.
//
//	make mutants MUTANTS_FLAGS='-only ^lock/session -j 4 -by ./internal/e2e'
//	make mutants MUTANTS_FLAGS='-sample 100'
//	make mutants MUTANTS_FLAGS='-list -only consumer'
//
// It rewrites the packages so that every mutant is compiled in and off, unless its id is in the environment, and builds each
// test binary once. It then runs each test by itself, to learn which mutants it reaches and how long it takes, and for each
// mutant the tests that reach it, until one fails. A crash and a timeout are failures, too.
//
// All that it learns is in .cache/mutants, so that an interrupted run goes on where it was, and a later one runs what is new:
// a mutant whose function has changed, and a survivor that has not met each test that reaches it. What a test reaches is
// measured again when its function changes, or the packages that are broken. Delete the folder to begin anew.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// config is what the flags say.
type config struct {
	root      string // of the repository, absolute
	dir       string // of the cache, absolute
	packages  []string
	by        []string // packages of tests
	survivors string
	only      *regexp.Regexp
	tests     *regexp.Regexp
	sample    int
	seed      uint64
	longest   time.Duration
	jobs      int
	list      bool
	show      int
}

// central is the code that keeps the promises: of the SDK, of the API's write path, outbox, watches and sealing, in the test kit and in
// the server, and of the workload controller's inventory.
const central = "./lock ./notify ./requeue ./reconciler ./apiclient/apitest:memory*.go " +
	"./controllers/api:relay.go ./controllers/api:tell.go ./controllers/api:unheard.go ./controllers/api:feed.go ./controllers/api:watch*.go " +
	"./controllers/api:vault.go ./controllers/api:rows.go " +
	"./controllers/workload:apply.go ./controllers/workload:prune.go ./controllers/workload:drift.go ./controllers/workload:instance.go " +
	"./controllers/workload:namespace.go"

func parse(args []string, stderr io.Writer) (*config, error) {
	c := &config{}
	var packages, by, only, tests string
	f := flag.NewFlagSet("mutants", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&packages, "packages", central,
		"folders of the packages to break, each with a colon and a pattern for the names of its files, if not all are meant")
	f.StringVar(&by, "by", "",
		"folders of packages whose tests may notice, beside those of -packages, as in './internal/e2e ./reconciler/reconcilertest'")
	f.StringVar(&c.survivors, "survivors", "internal/tools/mutants/survivors.txt",
		"the list of mutants that change nothing that is promised")
	f.StringVar(&c.dir, "dir", ".cache/mutants", "where binaries and results are kept")
	f.StringVar(&only, "only", "", "only mutants whose file:function matches this regexp, as in lock/session.go:session.extend")
	f.StringVar(&tests, "tests", "", "only tests whose names match this regexp")
	f.DurationVar(&c.longest, "longest", 0,
		"no tests that take longer, as in 2s, but for mutants that no others reach; 0 is all")
	f.IntVar(&c.sample, "sample", 0, "only so many mutants, chosen at random")
	f.Uint64Var(&c.seed, "seed", 1, "of the sample")
	f.IntVar(&c.jobs, "j", runtime.NumCPU(), "how many test processes run at once")
	f.BoolVar(&c.list, "list", false, "print the mutants as diffs, and run nothing")
	f.IntVar(&c.show, "show", -1, "print the mutant of this id as a diff, with its key for survivors.txt, and run nothing")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: packages are given with -packages", f.Arg(0))
	}
	if c.jobs < 1 || c.sample < 0 {
		return nil, errors.New("-j must be 1 or more, and -sample not negative")
	}
	c.packages, c.by = strings.Fields(packages), strings.Fields(by)
	var err1, err2, err3, err4 error
	c.only, err1 = regexp.Compile(only)
	c.tests, err2 = regexp.Compile(tests)
	c.root, err3 = os.Getwd()
	c.dir, err4 = filepath.Abs(c.dir)
	return c, errors.Join(err1, err2, err3, err4)
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	c, err := parse(args, progress)
	if err != nil {
		return err
	}
	p, err := newProgram(c)
	if err != nil {
		return err
	}
	chosen := c.choose(p.mutants)
	switch {
	case c.show >= 0:
		if c.show >= len(p.mutants) {
			return fmt.Errorf("no mutant %d: -list shows all", c.show)
		}
		m := p.mutants[c.show]
		fmt.Fprintf(out, "%s\n%s", m.key(), m.diff())
		return nil
	case c.list:
		for _, m := range chosen {
			fmt.Fprintf(out, "# %d %s\n%s\n", m.id, m, m.diff())
		}
		table(out, "operator", chosen, nil, func(m *mutant) string { return m.op })
		table(out, "package", chosen, nil, func(m *mutant) string { return filepath.Dir(m.file.name) })
		return nil
	}
	harmless, err := readSurvivors(c.survivors)
	if err != nil {
		return err
	}
	if err := p.build(progress); err != nil {
		return err
	}
	if err := p.reach(ctx, progress); err != nil {
		return interrupted(ctx, err)
	}
	known, err := openResults(filepath.Join(c.dir, "results"))
	if err != nil {
		return err
	}
	stopped := interrupted(ctx, newRunner(p, known, progress).run(ctx, chosen))
	r := report{program: p, chosen: chosen, known: known, harmless: harmless}
	return errors.Join(known.close(), r.write(out), stopped)
}

// interrupted is err, or what to do if it comes from Ctrl-C.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted: the same command goes on where it was")
	}
	return err
}

// choose picks the mutants that the flags ask for, in their order.
func (c *config) choose(all []*mutant) []*mutant {
	var chosen []*mutant
	for _, m := range all {
		if c.only.MatchString(m.place()) {
			chosen = append(chosen, m)
		}
	}
	if c.sample == 0 || c.sample >= len(chosen) {
		return chosen
	}
	r := rand.New(rand.NewPCG(c.seed, 0))
	r.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	chosen = chosen[:c.sample]
	slices.SortFunc(chosen, func(a, b *mutant) int { return a.id - b.id })
	return chosen
}
