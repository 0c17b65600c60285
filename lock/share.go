package lock

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
)

// responsible reports whether this Locker may recover a lock in this pass. The order of responsibility for a key is that
// of the hashes of key and session (rendezvous hashing), so each Locker finds it by itself, and a death moves only the
// share of the dead one.
func (s *sweep) responsible(key string) bool {
	if s.pass >= lastPass {
		return true
	}
	mine, before := weight(key, s.own.id), 0
	for _, id := range s.group {
		if weight(key, id) > mine {
			before++
		}
	}
	return before <= s.pass
}

func weight(key, session string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(session)) // never fails
	_, _ = h.Write([]byte(key))
	x := h.Sum64() // FNV alone hardly spreads the last bytes over the upper bits
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// group names the Lockers that can recover the same locks.
func group(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	h := fnv.New64a()
	for _, k := range slices.Sorted(slices.Values(keys)) {
		_, _ = h.Write([]byte(k + "\n")) // never fails
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// members are the sessions of this Locker's group, its own included: a replicated stream may list it late.
func (l *Locker) members(live map[string]bool, own string) []string {
	members := []string{own}
	for id := range live {
		if id != own && !strings.HasPrefix(id, closedPrefix) && strings.HasSuffix(id, "-"+l.group) {
			members = append(members, id)
		}
	}
	return members
}
