package workload

import "maps"

// appliedAs is what came of the last apply of a resource, as far as this process knows.
type appliedAs struct{ hash, fields string }

func (c *cluster) lastApplied(instance string, k resourceKey) (appliedAs, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	as, ok := c.applied[instance][k]
	return as, ok
}

func (c *cluster) setApplied(instance string, k resourceKey, as appliedAs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.applied[instance] == nil {
		c.applied[instance] = map[resourceKey]appliedAs{}
	}
	c.applied[instance][k] = as
}

// keepApplied forgets all instances but those.
func (c *cluster) keepApplied(uids map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.applied, func(uid string, _ map[resourceKey]appliedAs) bool { return !uids[uid] })
}

// forgetApplied forgets one resource of an instance, or, without a key, all.
func (c *cluster) forgetApplied(instance string, k *resourceKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k == nil {
		delete(c.applied, instance)
		return
	}
	delete(c.applied[instance], *k)
}
