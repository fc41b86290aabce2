package core

import "slices"

// maxNames bounds the namespaces that are in use at once, and the tenants. A host has a few of the first and at most some hundreds of the second; a
// client that makes them up is stopped here, and at half of them, so that one alone does not keep out the others. One is in use while a session, an arena, a block, a query or a copy below memory refers to it.
const maxNames = 1024

// sweepEvery is how often, at most, names that are in use no more are looked for when there is no room for another: of namespaces the look goes over all blocks.
const sweepEvery = Time(1e9)

// spaceOf returns the number of a namespace, and makes one for a new name while there is room for it.
func (c *Core) spaceOf(n Namespace) (uint32, bool) {
	if i, ok := c.spaces[n]; ok {
		return i, true
	}
	if len(c.spaces) >= c.lim.Names && !c.sweepSpaces() {
		return 0, false
	}
	if last := len(c.spareSpaces) - 1; last >= 0 {
		i := c.spareSpaces[last]
		c.spareSpaces = c.spareSpaces[:last]
		c.spaces[n], c.spaceList[i] = i, space{name: n}
		return i, true
	}
	i := uint32(len(c.spaceList))
	c.spaces[n] = i
	c.spaceList = append(c.spaceList, space{name: n})
	return i, true
}

// sweepSpaces forgets the namespaces that are in use no more, and says whether there were any.
func (c *Core) sweepSpaces() bool {
	if !c.maySweep(&c.sweptSpaces) {
		return false
	}
	used := make([]bool, len(c.spaceList))
	for _, s := range c.sessions {
		used[s.space] = true
	}
	for _, a := range c.arenas {
		used[a.space] = true
	}
	for p := range c.books.All() {
		used[c.books.Key(p).Space] = true
	}
	for k := range c.backed {
		used[k.Space] = true
	}
	for n, i := range c.spaces {
		if !used[i] {
			delete(c.spaces, n)
			c.spaceList[i] = space{}
			c.spareSpaces = append(c.spareSpaces, i)
		}
	}
	slices.Sort(c.spareSpaces) // a map has no order, and the same history gives the same numbers
	return len(c.spareSpaces) > 0
}

func (c *Core) maySweep(last *Time) bool {
	if *last != 0 && c.now < *last+sweepEvery {
		return false
	}
	*last = max(c.now, 1)
	return true
}

// scopeOf returns the number of a tenant, and makes one for a new id while there is room for it. by is the arena of whoever names it, since
// that and what is in it outlive the session; nil for the session's own, which is one. A tenant with budgets of its own always has room.
func (c *Core) scopeOf(id Scope, by *arena) (int, bool) {
	if i, ok := c.scopes[id]; ok {
		return i, true
	}
	b, configured := c.cfg.Scopes[id]
	if configured {
		by = nil
	} else {
		b = c.cfg.DefaultScope
		if !c.roomForScope(by) && !(c.sweepScopes() && c.roomForScope(by)) {
			return 0, false
		}
		if by != nil {
			by.scopes++
		}
	}
	if last := len(c.spareScopes) - 1; last >= 0 {
		i := c.spareScopes[last]
		c.spareScopes = c.spareScopes[:last]
		c.books.SetShare(i, b.Share)
		c.scopes[id], c.scopeList[i] = i, scope{id: id, budget: b, by: by}
		return i, true
	}
	i := c.books.AddScope(b.Share)
	c.scopes[id] = i
	c.scopeList = append(c.scopeList, scope{id: id, budget: b, by: by})
	return i, true
}

func (c *Core) roomForScope(by *arena) bool {
	return len(c.scopes) < c.lim.Names && (by == nil || by.scopes < (c.lim.Names+1)/2)
}

// sweepScopes forgets the tenants that are in use no more, and says whether there were any.
func (c *Core) sweepScopes() bool {
	if !c.maySweep(&c.sweptScopes) {
		return false
	}
	used := make([]bool, len(c.scopeList))
	for _, s := range c.sessions {
		used[s.scope] = true
	}
	for _, q := range c.open {
		used[q.acct.scope] = true
	}
	for i := range c.leases {
		if l := &c.leases[i]; l.sess != nil {
			used[l.acct.scope] = true
		}
	}
	for _, r := range c.readByID {
		used[r.acct.scope] = true
	}
	for id, i := range c.scopes {
		if !used[i] && c.books.ScopeResident(i) == 0 {
			if t := &c.scopeList[i]; t.by != nil {
				t.by.scopes--
			}
			delete(c.scopes, id)
			c.scopeList[i] = scope{}
			c.spareScopes = append(c.spareScopes, i)
		}
	}
	slices.Sort(c.spareScopes)
	return len(c.spareScopes) > 0
}
