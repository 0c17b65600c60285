package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// result is what is stored of a mutant: a line of the file results.
type result struct {
	Key     string
	Hash    string        // of the text of the function
	Scope   string        `json:",omitempty"` // of a mutant that survived: of everything
	Longest time.Duration // of a mutant that survived: longer tests did not run, unless it is 0
	Killed  bool
	How     string `json:",omitempty"`
	By      string `json:",omitempty"` // the test
	Tests   int    // that ran, at the most
	Seconds float64
}

// results are those of all runs. They may be used by several goroutines.
type results struct {
	scope   string
	longest time.Duration

	mu   sync.Mutex
	file *os.File
	all  map[string]result // by key: the latest
}

func openResults(name, scope string, longest time.Duration) (*results, error) {
	lines, err := readLines[result](name)
	if err != nil {
		return nil, err
	}
	r := &results{scope: scope, longest: longest, all: map[string]result{}}
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

// of is what is known of a mutant, if that is still true.
func (r *results) of(m *mutant) (result, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.all[m.key()]
	if !ok || known.Hash != m.hash {
		return known, false
	}
	enough := known.Longest == 0 || r.longest > 0 && known.Longest >= r.longest
	return known, known.Killed || known.Scope == r.scope && enough
}

// survived is up to which length tests are known not to notice a mutant.
func (r *results) survived(m *mutant) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.all[m.key()]
	if !ok || known.Hash != m.hash || known.Killed || known.Scope != r.scope {
		return 0
	}
	return known.Longest
}

// add stores a result.
func (r *results) add(m *mutant, new result) error {
	new.Key, new.Hash = m.key(), m.hash
	if !new.Killed {
		new.Scope, new.Longest = r.scope, r.longest
	}
	line, err := json.Marshal(new)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[new.Key] = new
	_, err = r.file.Write(append(line, '\n'))
	return err
}
