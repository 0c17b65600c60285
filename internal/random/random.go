// Package random is the source of jitter and of names that must differ. A test makes it repeat itself.
package random

import (
	cryptorand "crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"math/rand/v2"
	"sync"
)

// seeded is the source between Seed and its end, nil without one.
var (
	mu     sync.Mutex
	seeded *rand.Rand
)

// Seed makes the values depend on the seed and the order of calls alone, until end is called.
func Seed(seed uint64) (end func()) {
	set := func(r *rand.Rand) {
		mu.Lock()
		defer mu.Unlock()
		seeded = r
	}
	set(rand.New(rand.NewPCG(seed, 0)))
	return func() { set(nil) }
}

// N returns a number from 0 to below n, which must be above 0.
func N[T ~int | ~int64](n T) T {
	mu.Lock()
	defer mu.Unlock()
	if seeded != nil {
		return T(seeded.Int64N(int64(n)))
	}
	return rand.N(n)
}

// Text returns a random name of 26 characters, A to Z and 2 to 7. Without a seed it has 130 bits from crypto/rand, so it is
// unique and cannot be guessed.
func Text() string {
	mu.Lock()
	defer mu.Unlock()
	if seeded == nil {
		return cryptorand.Text()
	}
	var b [17]byte
	binary.LittleEndian.PutUint64(b[:8], seeded.Uint64())
	binary.LittleEndian.PutUint64(b[8:16], seeded.Uint64())
	return base32.StdEncoding.EncodeToString(b[:])[:26]
}
