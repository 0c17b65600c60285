package workload

import "sync"

// parsed keeps the documents of definitions that were taken apart lately. It is safe for concurrent use.
type parsed struct {
	mu   sync.Mutex
	all  map[parsedKey][]document
	size int // of their manifests, in bytes
}

// parsedKey is a generation of a definition, which says what its manifests are.
type parsedKey struct {
	uid        string
	generation int64
}

// keptParsed bounds the manifests that are kept taken apart, in bytes; they take about ten times as much.
const keptParsed = 16 << 20

// parse takes the manifests of a generation of a definition apart. The documents are not to be changed.
func (p *parsed) parse(d *Definition, generation int64, manifests string) ([]document, error) {
	k := parsedKey{d.UID, generation}
	p.mu.Lock()
	docs, ok := p.all[k]
	p.mu.Unlock()
	if ok {
		return docs, nil
	}
	docs, err := parse(manifests)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil || p.size+len(manifests) > keptParsed {
		p.all, p.size = map[parsedKey][]document{}, 0
	}
	if _, ok := p.all[k]; !ok { // another reconcile may have been at it
		p.all[k] = docs
		p.size += len(manifests)
	}
	return docs, nil
}
