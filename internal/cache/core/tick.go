package core

import "slices"

// tickEvery is how often time is looked at while something is open: a tenth of a second is a hundredth of the shortest deadline in use, and
// costs nothing to speak of.
const tickEvery = Time(100e6)

// Next returns when Tick is wanted, which is at once when a step had more to do than one may; ok is false while nothing waits for time.
func (c *Core) Next() (at Time, ok bool) {
	if c.freed {
		return c.now, true
	}
	open := len(c.open) + len(c.fills) + (len(c.grants) - len(c.spareG)) + (len(c.leases) - len(c.spareL))
	return c.now + tickEvery, open > 0
}

// tick ends what has waited too long. It ends interest, never what a process may still be doing: for that its session is closed.
func (c *Core) tick() {
	for _, q := range slices.Clone(c.open) {
		if q.lease == (LeaseID{}) && c.now >= q.deadline && q.sess.queries[q.ticket.Op] == q {
			c.letGo(q, 0)
			c.nothing(q, TimedOut)
		}
	}
	c.lookAnew()
	for i := range c.leases {
		l := &c.leases[i]
		switch {
		case l.sess == nil || c.now < l.deadline:
		case l.started == 0:
			l.closed = true
			c.stats.Expired++
			c.settleLease(uint32(i))
		case l.started&^l.done == 0: // some consumers never came
			l.closed, l.failed = true, true
			c.settleLease(uint32(i))
		case l.started&^l.done&^l.ours == 0: // who is late is we
		default:
			l.closed = true
			c.closeSession(l.sess, Overdue)
		}
	}
	for i := range c.grants {
		g := &c.grants[i]
		switch f := g.fillOf(); {
		case g.sess == nil || g.collected:
		case g.copy != 0: // who is late is we
			if f != nil {
				f.deadline = c.now + c.lim.Patience
			}
		case c.now >= g.deadline:
			g.collected = true
			c.giveUp(g.page)
			c.closeSession(g.sess, Overdue)
		}
	}
	for _, p := range c.fillsOf(func(f *fill) bool { return c.now >= f.deadline }) {
		c.giveUp(p)
	}
}
