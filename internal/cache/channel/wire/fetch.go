package wire

import "github.com/perigee-llm/perigee/internal/cache/core"

// Fetch is a Query (core.Prefix, one group, one consumer) and RestorePieces in one, for what is in memory and can be had at once. Answers: Fetched, when
// nothing is copied any more; or Busy, with a ticket of zeros, where the Query would have to wait.
type Fetch struct {
	Scope core.Scope
	Group uint32
	// All wants all blocks, or nothing to be copied.
	All bool
	// Request names the engine's request, for people.
	Request string
	Hashes  []core.Hash
	// Pages or Lines say where the blocks' pages go; the other one is empty.
	Pages core.Pages
	Lines core.Lines
}

// Fetched answers Fetch: the first Good pages are what was sealed. Those up to Found may hold anything, and what is behind was not touched. Why says
// why nothing was found.
type Fetched struct {
	Why         core.Why
	Outcome     core.Outcome
	Found, Good uint32
}

func (m *Fetch) fields(c coder) {
	c.u32((*uint32)(&m.Scope))
	c.u32(&m.Group)
	flag(c, &m.All)
	c.text(&m.Request, MaxText)
	c.hashes(&m.Hashes, MaxBlocks)
	pages(c, &m.Pages)
	list(c, &m.Lines.Lines, core.MaxPieces, 20, func(c coder, l *core.Line) {
		c.u32(&l.Pool)
		c.u64(&l.Offset)
		c.u32(&l.Distance)
		c.u32(&l.Length)
	})
	list(c, &m.Lines.Places, core.MaxPieces, 8, func(c coder, n *uint64) { c.u64(n) })
}

func (m *Fetched) fields(c coder) {
	c.u8((*uint8)(&m.Why))
	c.u8((*uint8)(&m.Outcome))
	c.u32(&m.Found)
	c.u32(&m.Good)
}
