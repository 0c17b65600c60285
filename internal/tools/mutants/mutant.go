package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Operators: the kinds of breaks.
const (
	opAlways         = "always"          // condition of an if, case of a switch without a tag, boolean result: true
	opNever          = "never"           // those, and the condition of a for: false
	opDropOperand    = "drop-operand"    // a && b becomes a
	opSwapOperands   = "swap-operands"   // a && b becomes b && a
	opBoundary       = "boundary"        // a < b becomes a <= b
	opDropStatement  = "drop-statement"  // call, assignment, ++, send, go, defer
	opSwapStatements = "swap-statements" // two neighbours of those
	opDropError      = "drop-error"      // return err becomes return nil
	opDropCase       = "drop-case"       // case of a select: its channel is nil
	opPlusOne        = "plus-one"        // integers below 100
	opMinusOne       = "minus-one"
	opDouble         = "double" // durations, and integers from 100
	opHalve          = "halve"
	opFlip           = "flip"      // true as an argument or a result becomes false
	opDropJump       = "drop-jump" // break, continue
	opOnce           = "once"      // a loop ends after its first turn
)

// edit replaces a range of a file, in bytes.
type edit struct {
	start, end int
	text       string
}

// mutant is one deliberate break.
type mutant struct {
	id     int // of this set of mutants only; what is stored has keys
	file   *file
	line   int
	fn     string // function or Type.method
	op     string
	before string // what is broken, on one line
	after  string
	n      int // from 1, among those of the same file, function, operator and before

	edits []edit // that make the mutant out of the file, in order
	hash  string // of the text of its function
}

// key names the mutant in files. It survives every change that leaves the broken text as it was.
func (m *mutant) key() string {
	return fmt.Sprintf("%s %s %s %s #%d", m.file.name, m.fn, m.op, strconv.Quote(shorten(m.before, 60)), m.n)
}

// place is the function, as -only matches it.
func (m *mutant) place() string { return m.file.name + ":" + m.fn }

// what is the change on one line.
func (m *mutant) what() string {
	return fmt.Sprintf("%s: %s -> %s", m.op, shorten(m.before, 100), shorten(cmp.Or(m.after, "(nothing)"), 100))
}

// String is the change and where it is.
func (m *mutant) String() string {
	return fmt.Sprintf("%s:%d %s: %s", m.file.name, m.line, m.fn, m.what())
}

// number gives each mutant its n.
func number(all []*mutant) {
	seen := map[string]int{}
	for _, m := range all {
		key := m.key() // n is 0 in all of them
		seen[key]++
		m.n = seen[key]
	}
}

// oneLine is text without its line breaks and indents.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// shorten cuts text to n runes.
func shorten(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return text
}

// apply makes edits, which are in order and do not overlap, to the range of text from start to end.
func apply(text []byte, start, end int, edits []edit) string {
	var b strings.Builder
	for _, e := range edits {
		b.Write(text[start:e.start])
		b.WriteString(e.text)
		start = e.end
	}
	b.Write(text[start:end])
	return b.String()
}

// around is how many lines a diff shows on either side.
const around = 2

// diff is the mutant as a unified diff.
func (m *mutant) diff() string {
	lines := slices.Collect(strings.Lines(string(m.file.text)))
	first := strings.Count(string(m.file.text[:m.edits[0].start]), "\n")
	last := strings.Count(string(m.file.text[:m.edits[len(m.edits)-1].end]), "\n")
	start := len(strings.Join(lines[:first], ""))
	end := start + len(strings.Join(lines[first:last+1], ""))
	before := lines[first : last+1]
	after := slices.DeleteFunc(strings.SplitAfter(apply(m.file.text, start, end, m.edits), "\n"), func(line string) bool {
		return strings.TrimSpace(line) == "" // of what was dropped
	})
	from, to := max(first-around, 0), min(last+1+around, len(lines))
	unchanged := (first - from) + (to - last - 1)
	var b strings.Builder
	fmt.Fprintf(&b, "--- a/%s\n+++ b/%s\n", m.file.name, m.file.name)
	fmt.Fprintf(&b, "@@ -%d,%d +%d,%d @@ %s\n", from+1, to-from, from+1, unchanged+len(after), m.fn)
	write := func(mark string, lines []string) {
		for _, line := range lines {
			b.WriteString(strings.TrimRight(mark+line, "\n") + "\n")
		}
	}
	write(" ", lines[from:first])
	write("-", before)
	write("+", after)
	write(" ", lines[last+1:to])
	return b.String()
}
