package core

import (
	"cmp"
	"slices"
)

// Those that wait for bytes stand in one line, the more urgent first, then the older. Each is kept back by one bound, and keeps back all
// behind it that the same bound is for: of its session, of its tenant, or everybody. So nobody starves behind smaller ones, and nobody waits
// for a bound that is not his.
//
// What one of them needs is remembered from the last look at its blocks, and compared before the next one: a look is up to 8,192 names, and bytes
// become free at every end of a lease. What has come since is seen when that fits; what has gone since is seen by then, too, and of the one that
// keeps everybody back at every tick.

// mustQueue is the bound for which somebody at least as urgent waits already, if it is q's as well; or fits.
func (c *Core) mustQueue(q *query) bound {
	for _, w := range c.waiting {
		switch {
		case w.priority < q.priority:
			return fits
		case c.freed: // he may fit, and his turn has not come yet
			return byTotal
		case w.by == byTotal, w.by == bySession && w.sess == q.sess, w.by == byScope && w.acct.scope == q.acct.scope:
			return w.by
		}
	}
	return fits
}

// enqueue puts q where it belongs in the line. It needs n bytes.
func (c *Core) enqueue(q *query, by bound, n int64) {
	q.waits, q.by, q.need, q.want = true, by, n, cloneWant(q.want)
	q.sess.names += q.names()
	c.names += q.names()
	i, _ := slices.BinarySearchFunc(c.waiting, q, func(a, b *query) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.seq, b.seq))
	})
	c.waiting = slices.Insert(c.waiting, i, q)
}

// dequeue takes q out of the line.
func (c *Core) dequeue(q *query) {
	i := slices.Index(c.waiting, q)
	c.waiting = slices.Delete(c.waiting, i, i+1)
	q.sess.names -= q.names()
	c.names -= q.names()
	q.waits = false
}

func (q *query) names() (n int) {
	for i := range q.want {
		n += len(q.want[i].Hashes)
	}
	return n
}

// manyNames says that q's names are too many to be kept while it waits.
func (c *Core) manyNames(q *query) bool {
	n := q.names()
	return q.sess.names+n > c.lim.WaitingNames || c.names+n > allNames*c.lim.WaitingNames
}

// allNames is how many times a session's names all sessions may have: as Limits.Queries is to Limits.SessionQueries.
const allNames = 8

// admitWaiting admits those that wait and now fit, and leaves the rest to the next step when it has looked at as many names as one may.
func (c *Core) admitWaiting() {
	c.pass++
	for i := 0; i < len(c.waiting); {
		q := c.waiting[i]
		s, t := q.sess, &c.scopeList[q.acct.scope]
		switch {
		case s.kept == c.pass:
			q.by = bySession
		case t.kept == c.pass:
			q.by = byScope
		default:
			ended, later := c.admitOne(q)
			if later {
				c.freed, c.later = true, true
				return
			}
			if ended {
				continue
			}
		}
		switch q.by {
		case bySession:
			s.kept = c.pass
		case byScope:
			t.kept = c.pass
		default:
			return
		}
		i++
	}
}

// admitOne admits q if it fits, or ends it if it never will, and says so; else q.by is what keeps it back. With later it was not looked at.
func (c *Core) admitOne(q *query) (ended, later bool) {
	most := c.most(q.acct)
	if q.by = c.full(q.acct, q.need); q.by != fits && q.need <= most {
		return false, false
	}
	names := q.names()
	if c.looked > 0 && c.looked+names > c.lim.Looks {
		return false, true
	}
	c.looked += names
	n, why := c.look(q)
	if why == Found && n > most {
		why = TooLarge
	}
	if why != Found {
		c.dequeue(q) // first, so that it is not taken for one that others have to be looked at for
		c.nothing(q, why)
		return true, false
	}
	if q.need, q.by = n, c.full(q.acct, n); q.by != fits {
		return false, false
	}
	c.dequeue(q)
	c.take(q, n)
	return true, false
}

// lookAnew has the one that keeps everybody back looked at once more: what it waits for may have gone, and its bytes with it.
func (c *Core) lookAnew() {
	if i := slices.IndexFunc(c.waiting, func(q *query) bool { return q.by == byTotal }); i >= 0 {
		c.waiting[i].need, c.freed = 0, true
	}
}
