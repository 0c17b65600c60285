package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
)

// result is what is stored of a mutant: a line of the file results.
type result struct {
	Key     string
	Hash    string // of the text of the function
	Killed  bool
	How     string   `json:",omitempty"`
	By      string   `json:",omitempty"` // the test
	Met     []string `json:",omitempty"` // of a mutant that survived: the versions of the tests that ran
	Seconds float64
}

// results are those of all runs. They may be used by several goroutines.
type results struct {
	mu   sync.Mutex
	file *os.File
	all  map[string]result // by key: the latest
}

func openResults(name string) (*results, error) {
	lines, err := readLines[result](name)
	if err != nil {
		return nil, err
	}
	r := &results{all: map[string]result{}}
	for _, line := range lines {
		r.all[line.Key] = line
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return nil, err
	}
	r.file, err = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return r, err
}

func (r *results) close() error { return r.file.Close() }

// of is what is known of a mutant, if its function is still the same.
func (r *results) of(m *mutant) (result, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.all[m.key()]
	return known, ok && known.Hash == m.hash
}

// left are those of the tests that reach a mutant that may kill it, for all that is known. It is not known of a mutant that
// was never run, although there may be no test of it.
func (r *results) left(m *mutant, reaching []*test) (left []*test, known bool) {
	res, ok := r.of(m)
	switch {
	case !ok:
		return reaching, false
	case res.Killed:
		return nil, true
	}
	met := map[string]bool{}
	for _, version := range res.Met {
		met[version] = true
	}
	for _, t := range reaching {
		if !met[t.version()] {
			left = append(left, t)
		}
	}
	return left, true
}

// add stores a result. What a survivor has met before, it has still met.
func (r *results) add(m *mutant, res result) error {
	if before, ok := r.of(m); ok && !res.Killed {
		res.Met = append(res.Met, before.Met...)
	}
	res.Key, res.Hash = m.key(), m.hash
	line, err := json.Marshal(res)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[res.Key] = res
	_, err = r.file.Write(append(line, '\n'))
	return err
}
