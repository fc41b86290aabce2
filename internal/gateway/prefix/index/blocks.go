package index

import (
	"sync/atomic"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// blocks is the memory of all blocks: chunks of plain numbers, which the garbage collector need not look into, and the numbers of the
// blocks in them. A block's number stays while it lives. Blocks that are stored one behind another get numbers one behind another
// where there is room, which is what a look-up tries first.
type blocks struct {
	dir  atomic.Pointer[[]*chunk] // never changed, only replaced; nil for a chunk that was given back
	held []holding                // the writer's, parallel to dir
	cur  uint32                   // the chunk that blocks are taken from
	room []uint32                 // chunks that may have room, some twice, some no longer
	gone []uint32                 // places in dir that are nil
	live int
	max  int
}

const (
	chunkBits = 12 // 136 KiB: small enough to come free as a whole when an engine goes, large enough for 64 MiB of dir never to matter
	chunkSize = 1 << chunkBits
)

// chunk holds 34 bytes a block. A block's set is 0 while it has no claim; a reader that has seen another may read the name, until
// it leaves its epoch. Only the writer reads the rest.
type chunk struct {
	name   [chunkSize]chain.Key
	hash   [chunkSize]prefix.Hash // what its first holder calls it
	set    [chunkSize]uint32      // who claims it
	parent [chunkSize]uint32      // the upper and the lower part of a ref to the block before it
	below  [chunkSize]uint16      // of a free block the next free one
}

// ref is as much of a block's name as finds it in the table: the 38 bits that say where, and the lowest 10 with the tag. It is 0 for
// no block. A whole half of a name would be 2 bytes more for each block. A ref only leads to blocks of which it is known besides that
// their holder has remembered them, so with a million of these another is taken for the right one once in 300 million times, and only
// if that is gone.
type ref uint64

const (
	refLow   = 10
	refShift = 26 // up to the bits that say where
)

func refTo(k chain.Key) ref { return ref(k.Lo>>refShift<<refLow | k.Lo&(1<<refLow-1)) }

// hash is one that the table searches like the block's own.
func (r ref) hash() uint64 { return uint64(r)>>refLow<<refShift | uint64(r)&(1<<refLow-1) }

func (c *chunk) parentOf(i uint32) ref { return ref(c.parent[i])<<16 | ref(c.below[i]) }

func (c *chunk) setParent(i uint32, r ref) { c.parent[i], c.below[i] = uint32(r>>16), uint16(r) }

// holding is what the writer knows of a chunk: a list of free blocks, through chunk.below, and how many were never used.
type holding struct {
	free  uint32 // offset+1 of the first free block
	fresh uint32 // offset of the first that was never used
	used  uint32 // blocks that are not free
}

func (b *blocks) init(most int) {
	b.dir.Store(&[]*chunk{})
	b.max = most
	b.grow()
	b.held[0].fresh, b.held[0].used = 1, 1 // number 0 is nobody's
}

// at returns the chunk of a block and its offset in it; the block exists.
func (b *blocks) at(id uint32) (*chunk, uint32) {
	return (*b.dir.Load())[id>>chunkBits], id % chunkSize
}

// see returns the set of a block, if that is its name, or 0. The number may be any: readers guess.
func (b *blocks) see(id uint32, k chain.Key) uint32 {
	dir := *b.dir.Load()
	if int(id>>chunkBits) >= len(dir) {
		return 0
	}
	c := dir[id>>chunkBits]
	if c == nil {
		return 0
	}
	i := id % chunkSize
	s := atomic.LoadUint32(&c.set[i]) // before the name: it says that there is one
	if s == 0 || c.name[i] != k {
		return 0
	}
	return s
}

// near brings near what see will read.
func (b *blocks) near(id uint32) {
	dir := *b.dir.Load()
	if int(id>>chunkBits) >= len(dir) || dir[id>>chunkBits] == nil {
		return
	}
	c := dir[id>>chunkBits]
	near(&c.set[id%chunkSize])
	near(&c.name[id%chunkSize])
}

// full tells whether there is no block left to take: those that wait for readers count.
func (b *blocks) full() bool { return b.live >= b.max }

// take returns a free block; there is one.
func (b *blocks) take() uint32 {
	h := &b.held[b.cur]
	if h.used == chunkSize {
		b.next()
		h = &b.held[b.cur]
	}
	var i uint32
	if h.free > 0 {
		i = h.free - 1
		h.free = uint32((*b.dir.Load())[b.cur].below[i])
	} else {
		i = h.fresh
		h.fresh++
	}
	h.used++
	b.live++
	return b.cur<<chunkBits | i
}

// next makes cur a chunk with room.
func (b *blocks) next() {
	for len(b.room) > 0 {
		c := b.room[len(b.room)-1]
		b.room = b.room[:len(b.room)-1]
		if b.held[c].used < chunkSize && (*b.dir.Load())[c] != nil {
			b.cur = c
			return
		}
	}
	b.grow()
}

// grow makes cur a new chunk.
func (b *blocks) grow() {
	dir := append([]*chunk(nil), *b.dir.Load()...)
	if n := len(b.gone); n > 0 {
		b.cur, b.gone = b.gone[n-1], b.gone[:n-1]
	} else {
		b.cur = uint32(len(dir))
		dir, b.held = append(dir, nil), append(b.held, holding{})
	}
	dir[b.cur], b.held[b.cur] = new(chunk), holding{}
	b.dir.Store(&dir)
}

// give frees a block that no reader can see any more. A chunk without blocks goes back to Go.
func (b *blocks) give(id uint32) {
	at, i := id>>chunkBits, id%chunkSize
	h := &b.held[at]
	(*b.dir.Load())[at].below[i] = uint16(h.free)
	h.free = i + 1
	h.used--
	b.live--
	switch {
	case at == b.cur:
	case h.used == 0:
		dir := append([]*chunk(nil), *b.dir.Load()...)
		dir[at] = nil
		b.dir.Store(&dir)
		b.gone = append(b.gone, at)
	case h.used == chunkSize-1:
		b.room = append(b.room, at)
	}
}
