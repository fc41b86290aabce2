package core

import (
	"cmp"
	"iter"
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
	"github.com/perigee-llm/perigee/internal/chain"
)

// Stats counts since the start.
type Stats struct {
	// Asked is blocks of queries, by mode and by what became of them: those of one query add up to what it asked for.
	Asked       [Warm + 1][Unserved + 1]int64
	Queries     [Warm + 1]int64      // that were answered, Busy and Refused apart, by mode
	Published   [NoRoom + 1]int64    // blocks, by disposition
	Collected   int64                // blocks given up before they were complete
	Removed     [Corrupted + 1]int64 // blocks, by reason
	Nothing     [Unreadable + 1]int64
	Refused     [Overlap + 1]int64
	Restores    [2]int64 // failed, and whole
	Busy        int64
	BudgetWaits int64 // queries that had to wait for bytes
	// Saves are publishes of which something was sealed, Loads restores that were whole, by route.
	Saves, Loads [ByManager + 1]Moved
	// Residence is blocks in memory, summed over the seconds: divided by those removed it is how long one stays.
	Residence   float64
	SharedReads int64 // reads that were begun for somebody else
	FailedReads int64
	Corrupt     int64 // blocks that a restore found to be other than was sealed
	Expired     int64 // leases that nobody came for
}

// Tier is where a block of a query was.
type Tier uint8

// The tiers.
const (
	InMemory Tier = iota
	Below         // read for the query, or for another one meanwhile
	Absent        // not there; or behind one of the run that is not, or behind what the budgets can hold
	Unserved      // of a query that brought nothing for another reason: too large, timed out, unreadable
)

// Route is who copies pages.
type Route uint8

// The routes: the engine copies; or the Manager does, out of memory that the engine has offered and into it.
const (
	ByEngine Route = iota
	ByManager
)

// Moved is what went one way by one route.
type Moved struct {
	// Count is how many publishes or restores, Bytes their slots'.
	Count, Bytes int64
	// Time is from each one's Granted to its Published, or from its first Start to its Restored, summed: what others did meanwhile is in it.
	Time Time
}

func (m *Moved) add(bytes int64, d Time) {
	m.Count++
	m.Bytes += bytes
	m.Time += d
}

func routeOf(byManager bool) Route {
	if byManager {
		return ByManager
	}
	return ByEngine
}

// Stats returns the counts, as they were after the last step.
func (c *Core) Stats() Stats {
	c.residence()
	return c.stats
}

// residence counts the time since the last block came or went.
func (c *Core) residence() {
	c.stats.Residence += float64(c.books.Blocks()) * (c.now - c.counted).Seconds()
	c.counted = c.now
}

// countQuery counts an answer: what q got, and what it did not.
func (c *Core) countQuery(q *query, why Why) {
	n := &c.stats.Asked[q.mode]
	c.stats.Queries[q.mode]++
	got, low, rest := len(q.pages), 0, Absent
	if why > Missing {
		rest = Unserved
	}
	if why != Found {
		got = 0
	}
	for _, i := range q.low {
		if i < got {
			low++
		}
	}
	n[InMemory] += int64(got - low)
	n[Below] += int64(low)
	n[rest] += int64(q.asked - got)
}

// Usage is what is in use now, in bytes of slots if not said otherwise.
type Usage struct {
	Pool, Free int64
	// Blocks is how many are visible, Resident their bytes.
	Blocks   int
	Resident int64
	// Speculative is the part of Queries that is speculation.
	Speculative int64
	// Queries is what queries are charged: Reserved by those that read, Leased to those that have their answer, Orphaned by reads
	// that nobody waits for any more.
	Queries, Reserved, Leased, Orphaned int64
	// Pinned is of the blocks that somebody holds, each counted once.
	Pinned int64
	// Granted is of the slots that a session or a read may write, Quarantined the part of it that a session lost or let grow old.
	Granted, Quarantined int64
	Sessions             int
	// Copies are those that the shell makes now, Pools and Offered how much memory sessions have offered, Offered in its bytes.
	Copies, Pools int
	Offered       int64
}

// Usage walks over what is under way, and not over the pool: for metrics, the status page and tests, not for each event.
func (c *Core) Usage() Usage {
	u := Usage{Pool: c.pool, Blocks: c.books.Blocks(), Resident: c.books.Resident(), Pinned: c.books.Pinned(), Queries: c.used.bytes, Speculative: c.used.spec, Sessions: len(c.sessions)}
	for _, a := range c.arenaList {
		_, size, free := c.books.Arena(a.at)
		u.Free += int64(free) * int64(size)
	}
	for _, q := range c.open {
		u.Reserved += q.bytes
	}
	for i := range c.leases {
		if c.leases[i].sess != nil {
			u.Leased += c.leases[i].bytes
		}
	}
	for _, r := range c.readByID {
		u.Orphaned += r.bytes
		_, size, _ := c.books.Arena(r.arena)
		u.Granted += int64(len(r.slots)) * int64(size)
	}
	for i := range c.grants {
		if g := &c.grants[i]; g.sess != nil {
			_, size, _ := c.books.Arena(g.arena.at)
			u.Granted += int64(size)
			if g.collected {
				u.Quarantined += int64(size)
			}
		}
	}
	c.copyUsage(&u)
	return u
}

// Snapshot yields every visible block, as Visible announced it but for the identity; Parent is zero where the parent is not in memory.
// It is for whoever begins to follow the announcements: between two steps, it is what they add up to. Slots belong to the caller.
func (c *Core) Snapshot() iter.Seq[Visible] {
	return func(yield func(Visible) bool) {
		for p := range c.books.Pages() {
			if c.books.State(p) != dram.Visible {
				continue
			}
			k := c.books.Key(p)
			v := Visible{
				Namespace: c.spaceList[k.Space].name, Group: k.Group, Hash: k.Hash, Parent: c.books.Parent(p), Chain: c.books.Chain(p),
				Scope: c.scopeList[c.books.ScopeOf(p)].id, Slots: c.slotsOf(nil, p),
			}
			if !yield(v) {
				return
			}
		}
	}
}

// ChainOf is the name that a block of the session's namespace was published with; zero if it has none, or is not there. It steers, as all names do.
func (c *Core) ChainOf(id SessionID, group uint32, h Hash) chain.Key {
	s := c.sessions[id]
	if s == nil {
		return chain.Key{}
	}
	if p := c.books.FindRun(nil, s.space, group, []Hash{h}, false)[0]; p != dram.None {
		return c.books.Chain(p)
	}
	return c.backed[dram.Key{Space: s.space, Group: group, Hash: h}].chain
}

// Check returns what is wrong with the books, or "". It is for tests.
func (c *Core) Check() string {
	if wrong := c.books.Check(); wrong != "" {
		return wrong
	}
	holds := map[dram.Page]int{}
	sess, scopes := map[*session]int64{}, make([]int64, len(c.scopeList))
	charged := func(a account, n int64) { sess[a.sess] += n; scopes[a.scope] += n }
	for _, q := range c.open {
		if q.lease == (LeaseID{}) {
			for _, p := range q.pages {
				holds[p]++
			}
		}
		charged(q.acct, q.bytes)
	}
	for i := range c.leases {
		if l := &c.leases[i]; l.sess != nil {
			for _, p := range l.pages {
				holds[p]++
			}
			charged(l.acct, l.bytes)
		}
	}
	for _, r := range c.readByID {
		charged(r.acct, r.bytes)
	}
	if wrong := cmp.Or(c.checkCopies(), c.checkNames()); wrong != "" {
		return wrong
	}
	return c.checkSums(holds, sess, scopes)
}

// checkNames wants the tenants that an arena is charged for to be those that it named.
func (c *Core) checkNames() string {
	named := map[*arena]int{}
	for _, i := range c.scopes {
		named[c.scopeList[i].by]++
	}
	for _, a := range c.arenas {
		if named[a] != a.scopes {
			return "an arena's tenants do not add up"
		}
	}
	return ""
}

func (c *Core) checkSums(holds map[dram.Page]int, sess map[*session]int64, scopes []int64) string {
	for p := range c.books.All() {
		if holds[p] != c.books.Holds(p) {
			return "a block has another number of holders"
		}
	}
	u := c.Usage()
	switch {
	case u.Queries != u.Reserved+u.Leased+u.Orphaned:
		return "the queries' bytes do not add up"
	case !slices.Equal(scopes, c.scopeUse()):
		return "a tenant's bytes do not add up"
	case u.Queries < 0 || c.used.spec < 0:
		return "bytes below zero"
	}
	for s, n := range sess {
		if s != nil && s.used.bytes != n {
			return "a session's bytes do not add up"
		}
	}
	for id, s := range c.sessions {
		n := 0
		for _, f := range c.fills {
			if f.sess == s {
				n += len(f.identity)
			}
		}
		if n != s.identity || id != s.id {
			return "a session's identity records do not add up"
		}
	}
	for i, f := range c.fills {
		if c.books.State(f.page) != dram.Filling || f.sealed&^f.granted != 0 || f.at != i || c.fillAt(f.page) != f {
			return "a block is being published that is not filling"
		}
	}
	for i := range c.grants {
		if g := &c.grants[i]; g.sess != nil && g.fillOf() != c.fillAt(g.page) {
			return "a grant is of another block than its page"
		}
	}
	return ""
}

func (c *Core) scopeUse() []int64 {
	out := make([]int64, len(c.scopeList))
	for i := range c.scopeList {
		out[i] = c.scopeList[i].used
	}
	return out
}
