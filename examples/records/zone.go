package main

import (
	"context"
	"maps"
	"sync"
)

// memoryZone stands for a provider's service.
type memoryZone struct {
	mu      sync.Mutex
	records map[string][2]string // host and address, by id
	err     error                // of every call, if not nil
}

func newMemoryZone() *memoryZone { return &memoryZone{records: map[string][2]string{}} }

func (z *memoryZone) Set(_ context.Context, id, host, address string) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.err == nil {
		z.records[id] = [2]string{host, address}
	}
	return z.err
}

func (z *memoryZone) Remove(_ context.Context, id string) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.err == nil {
		delete(z.records, id)
	}
	return z.err
}

// fail makes every call fail with err, or none if it is nil.
func (z *memoryZone) fail(err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.err = err
}

// hosts are the addresses by host.
func (z *memoryZone) hosts() map[string]string {
	z.mu.Lock()
	defer z.mu.Unlock()
	hosts := map[string]string{}
	for r := range maps.Values(z.records) {
		hosts[r[0]] = r[1]
	}
	return hosts
}
