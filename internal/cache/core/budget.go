package core

// usage is bytes that queries hold.
type usage struct {
	bytes int64 // all
	spec  int64 // the speculative ones among them
}

// account is who is charged.
type account struct {
	sess  *session
	scope int
	spec  bool
}

// most is how many bytes could be held if nothing else was.
func (c *Core) most(a account) int64 {
	total, own, scope, spec, ownSpec := c.caps(a)
	n := min(total, own, scope)
	if a.spec {
		n = min(n, spec, ownSpec)
	}
	return n
}

// bound is what keeps a query back.
type bound uint8

const (
	fits      bound = iota
	bySession       // its own session's bound
	byScope         // its tenant's
	byTotal         // everybody's
)

// full tells what has no room for so many bytes now. The owner's own bounds go first: who is kept back by them would not go on if others
// made room, and is not to keep those others back.
func (c *Core) full(a account, n int64) bound {
	capTotal, capOwn, capScope, capSpec, capOwnSpec := c.caps(a)
	switch {
	case a.sess.used.bytes+n > capOwn || a.spec && a.sess.used.spec+n > capOwnSpec:
		return bySession
	case c.scopeList[a.scope].used+n > capScope:
		return byScope
	case c.used.bytes+n > capTotal || a.spec && c.used.spec+n > capSpec:
		return byTotal
	}
	return fits
}

// unbounded is a budget that is not set.
const unbounded = 1<<63 - 1

func (c *Core) caps(a account) (total, own, scope, spec, ownSpec int64) {
	or := func(n, def int64) int64 {
		if n > 0 {
			return n
		}
		return def
	}
	total = or(c.cfg.Budgets.Total, c.pool/4*3)
	own = min(total, or(c.cfg.Budgets.Instance, total/int64(max(1, c.cfg.Budgets.Instances))))
	own = min(own, or(a.sess.budget, own))
	scope = or(c.scopeList[a.scope].budget.Query, unbounded)
	return total, own, scope, or(c.cfg.Budgets.Speculative, total/4), own / 4
}

func (c *Core) charge(a account, n int64) {
	c.used.bytes += n
	a.sess.used.bytes += n
	c.scopeList[a.scope].used += n
	if a.spec {
		c.used.spec += n
		a.sess.used.spec += n
	}
	c.freed = c.freed || n < 0
}
