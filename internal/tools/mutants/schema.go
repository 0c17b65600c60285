package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// wrap puts text around a range of a file, in bytes. Ranges nest or are apart.
type wrap struct {
	start, end    int
	before, after string
}

// Variables of the environment that the helper reads.
const (
	envMutant = "EVENKEEL_MUTANT"       // the id of the mutant that is on
	envReach  = "EVENKEEL_MUTANT_REACH" // a file: gets the id of each mutant that is reached, a line each
)

// helper is the file that every rewritten package gets: %s is its name. The rewritten code calls it very often, so it is
// little more than a comparison.
const helper = `package %s

import (
	"os"
	"strconv"
	"sync/atomic"
)

var mutantChosen, mutantReach = func() (int, *os.File) {
	chosen, err := strconv.Atoi(os.Getenv("` + envMutant + `"))
	if err != nil {
		chosen = -1
	}
	name := os.Getenv("` + envReach + `")
	if name == "" {
		return chosen, nil
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	return chosen, file
}()

var mutantSeen [%d]atomic.Bool

func mutantOn(id int) bool {
	if mutantReach != nil {
		mutantNote(id)
	}
	return id == mutantChosen
}

func mutantNote(id int) {
	if !mutantSeen[id].Load() && !mutantSeen[id].Swap(true) {
		mutantReach.WriteString(strconv.Itoa(id) + "\n")
	}
}

func mutantPick[T any](id int, mutated, original T) T {
	if mutantOn(id) {
		return mutated
	}
	return original
}

func mutantZero[T any](id int, original T) T {
	var zero T
	return mutantPick(id, zero, original)
}
`

// helperName is a file that no package has.
const helperName = "zz_mutants.go"

// helperOf is the helper of a package, for so many mutants.
func helperOf(name string, mutants int) string { return fmt.Sprintf(helper, name, max(mutants, 1)) }

// schema is the text with all wraps in it.
func schema(text []byte, wraps []wrap) string {
	type insertion struct {
		at   int
		rank [2]int // ends come before starts; inner ends first, outer starts first
		text string
	}
	var all []insertion
	for i, w := range wraps {
		if w.start == w.end {
			all = append(all, insertion{w.start, [2]int{1, i}, w.before})
			continue
		}
		// Of two wraps of one range, the earlier is the outer one.
		all = append(all,
			insertion{w.start, [2]int{2, -w.end*len(wraps) + i}, w.before},
			insertion{w.end, [2]int{0, -w.start*len(wraps) - i}, w.after})
	}
	slices.SortFunc(all, func(a, b insertion) int {
		return cmp.Or(a.at-b.at, a.rank[0]-b.rank[0], a.rank[1]-b.rank[1])
	})
	var b strings.Builder
	at := 0
	for _, i := range all {
		b.Write(text[at:i.at])
		b.WriteString(i.text)
		at = i.at
	}
	b.Write(text[at:])
	return b.String()
}
