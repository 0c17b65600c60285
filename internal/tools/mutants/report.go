package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// report is what a run has found.
type report struct {
	*program
	chosen   []*mutant
	known    *results
	harmless map[string]string // reasons by key
}

// fate is what came of a mutant.
type fate int

const (
	unknown fate = iota // the run was interrupted
	killed
	survived
	harmless
)

func (r *report) fate(m *mutant) fate {
	left, known := r.known.left(m, r.reaching(m))
	res, _ := r.known.of(m)
	switch {
	case !known || len(left) > 0:
		return unknown
	case res.Killed:
		return killed
	case r.harmless[m.key()] != "":
		return harmless
	}
	return survived
}

// write prints the report. It returns an error if survivors.txt names mutants that are not, or are killed.
func (r *report) write(out io.Writer) error {
	r.writeSurvivors(out)
	table(out, "operator", r.chosen, r.fate, func(m *mutant) string { return m.op })
	table(out, "package", r.chosen, r.fate, func(m *mutant) string { return filepath.Dir(m.file.name) })
	var logic, tuning []*mutant
	for _, m := range r.chosen {
		if m.op == opDouble || m.op == opHalve {
			tuning = append(tuning, m)
		} else {
			logic = append(logic, m)
		}
	}
	r.score(out, "mutants", logic)
	if len(tuning) > 0 {
		r.score(out, "constants doubled or halved", tuning)
	}
	return r.stale()
}

// score prints how many of the mutants were killed. Those of constants that are not promised, as how often something is
// looked at, are counted apart: few of them are wrong when they are twice as large, and a test that insisted would only
// repeat them.
func (r *report) score(out io.Writer, name string, all []*mutant) {
	count := map[fate]int{}
	for _, m := range all {
		count[r.fate(m)]++
	}
	fmt.Fprintf(out, "%d %s: %d killed, %d survived, %d equivalent, %d not run",
		len(all), name, count[killed], count[survived], count[harmless], count[unknown])
	if n := count[killed] + count[survived]; n > 0 {
		fmt.Fprintf(out, "; %.1f %% of those that were run and are not equivalent were killed", 100*float64(count[killed])/float64(n))
	}
	fmt.Fprintln(out)
}

// writeSurvivors prints them by function.
func (r *report) writeSurvivors(out io.Writer) {
	place := ""
	for _, m := range r.chosen {
		if r.fate(m) != survived {
			continue
		}
		if m.place() != place {
			place = m.place()
			fmt.Fprintf(out, "\n%s %s\n", m.file.name, m.fn)
		}
		by := "reached by no test"
		if n := len(r.reaching(m)); n > 0 {
			by = fmt.Sprintf("tests: %d", n)
		}
		fmt.Fprintf(out, "  %s (%s, id %d)\n", m, by, m.id)
	}
	fmt.Fprintln(out)
}

// stale is what survivors.txt says that is not so.
func (r *report) stale() error {
	byKey := map[string]*mutant{}
	for _, m := range r.mutants {
		byKey[m.key()] = m
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(r.harmless)) {
		name, _, _ := strings.Cut(key, " ")
		m := byKey[key]
		if m == nil {
			if !r.elsewhere(name) {
				errs = append(errs, fmt.Errorf("%s: no such mutant: delete it from %s", key, r.survivors))
			}
			continue
		}
		if res, ok := r.known.of(m); ok && res.Killed {
			errs = append(errs, fmt.Errorf("%s: is killed by %s: delete it from %s", key, res.By, r.survivors))
		}
	}
	return errors.Join(errs...)
}

// elsewhere reports whether a file is of a package that this run is not about.
func (r *report) elsewhere(name string) bool {
	for _, t := range r.packages {
		folder, glob, _ := strings.Cut(t, ":")
		if filepath.Clean(folder) != filepath.Dir(name) {
			continue
		}
		if ok, err := filepath.Match(glob, filepath.Base(name)); err == nil && (ok || glob == "") {
			return false
		}
	}
	return true
}

// table prints how many mutants there are of each name, and what came of them if that is known.
func table(out io.Writer, title string, all []*mutant, of func(*mutant) fate, name func(*mutant) string) {
	rows := map[string]map[fate]int{}
	total := map[string]int{}
	for _, m := range all {
		if rows[name(m)] == nil {
			rows[name(m)] = map[fate]int{}
		}
		total[name(m)]++
		if of != nil {
			rows[name(m)][of(m)]++
		}
	}
	fmt.Fprintf(out, "%-20s %8s", title, "mutants")
	if of != nil {
		fmt.Fprintf(out, " %8s %8s %10s", "killed", "survived", "equivalent")
	}
	fmt.Fprintln(out)
	for _, n := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(out, "%-20s %8d", n, total[n])
		if row := rows[n]; of != nil {
			fmt.Fprintf(out, " %8d %8d %10d", row[killed], row[survived], row[harmless])
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out)
}
