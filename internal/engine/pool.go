package engine

// none marks the absence of a block in the pool's lists.
const none = int32(-1)

// pool is the paged KV memory with its prefix cache.
//
// A block is in one of three states:
//
//	blank ──alloc──▶ held ──commit──▶ held and cached ──release──▶ idle (cached, no holder)
//	  ▲────release─────┘                     ▲───────acquire───────────┘ │
//	  └──────────────────────────alloc (evicts)──────────────────────────┘
//
// Blank and idle blocks are in one list, in the order in which alloc takes them: blank ones first, then idle ones, least recently
// released first. Holders release their blocks from the last to the first, so a chain loses its tail before its head, and
// with commit's sharing a cached block's parent is always cached.
type pool struct {
	blocks     []kvBlock
	index      map[BlockHash]int32 // cached blocks
	head, tail int32               // the list of blank and idle blocks
	free       int                 // its length
	pageBytes  int
	pages      []byte // len(blocks)·pageBytes
}

type kvBlock struct {
	hash       BlockHash
	refs       int32
	prev, next int32 // list links; meaningful when refs is 0
	cached     bool
}

func newPool(blocks, pageBytes int) *pool {
	p := &pool{
		blocks: make([]kvBlock, blocks), index: make(map[BlockHash]int32, blocks),
		pageBytes: pageBytes, pages: make([]byte, blocks*pageBytes),
	}
	p.blank()
	return p
}

// blank puts every block in the list, in the order of their numbers, with no content.
func (p *pool) blank() {
	p.head, p.tail, p.free = none, none, 0
	for i := range p.blocks {
		p.blocks[i] = kvBlock{}
		p.pushBack(int32(i))
	}
}

// match returns how many leading blocks of chain are cached. What is cached of a chain is a prefix, so it can be found by
// bisection: ten look-ups for a thousand blocks.
func (p *pool) match(chain []BlockHash) int {
	lo, hi := 0, len(chain)
	for lo < hi {
		mid := (lo + hi) / 2
		if _, ok := p.index[chain[mid]]; ok {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// acquire adds a holder to the cached block h and returns it. h must be cached.
func (p *pool) acquire(h BlockHash) int32 {
	b := p.index[h]
	if p.blocks[b].refs == 0 {
		p.unlink(b)
	}
	p.blocks[b].refs++
	return b
}

// idle says how many of the cached blocks in chain have no holder: acquiring those shortens the list that alloc takes from.
func (p *pool) idle(chain []BlockHash) int {
	n := 0
	for _, h := range chain {
		if p.blocks[p.index[h]].refs == 0 {
			n++
		}
	}
	return n
}

// alloc takes a block for one holder. If the block was idle its content is gone: evicted is then what it was. ok is false when
// every block has a holder.
func (p *pool) alloc() (b int32, evicted BlockHash, wasCached, ok bool) {
	b = p.head
	if b == none {
		return none, BlockHash{}, false, false
	}
	p.unlink(b)
	k := &p.blocks[b]
	if k.cached {
		evicted, wasCached = k.hash, true
		delete(p.index, k.hash)
	}
	k.cached, k.hash, k.refs = false, BlockHash{}, 1
	return b, evicted, wasCached, true
}

// commit says that b, held by its caller alone, is now full and holds the block h. If h is cached already, the caller's copy is
// given back and it shares the cached one: the caller must go on with the block returned. Keeping both copies, as vLLM does,
// would let a chain lose its head before its tail when the two holders leave in the wrong order.
func (p *pool) commit(b int32, h BlockHash) (held int32, stored bool) {
	held, stored = p.commitFilled(b, h)
	if stored && p.pageBytes > 0 {
		h.Fill(p.page(b))
	}
	return held, stored
}

// commitFilled is commit for a block whose page somebody else has filled.
func (p *pool) commitFilled(b int32, h BlockHash) (held int32, stored bool) {
	if other, ok := p.index[h]; ok {
		p.release(b)
		p.acquire(h)
		return other, false
	}
	p.blocks[b].cached, p.blocks[b].hash = true, h
	p.index[h] = b
	return b, true
}

// release drops one holder of b. A block without content goes to the front of the list: losing it costs nothing.
func (p *pool) release(b int32) {
	k := &p.blocks[b]
	if k.refs <= 0 {
		panic("engine: a KV block was released more often than it was taken")
	}
	if k.refs--; k.refs > 0 {
		return
	}
	if k.cached {
		p.pushBack(b)
	} else {
		p.pushFront(b)
	}
}

// reset forgets every cached block. It does nothing and returns false while any block has a holder.
func (p *pool) reset() bool {
	if p.free != len(p.blocks) {
		return false
	}
	clear(p.index)
	p.blank()
	return true
}

// intact says whether the cached block b holds the bytes of its chain.
func (p *pool) intact(b int32) bool { return p.matches(b, p.blocks[b].hash) }

// matches says whether the page of block b holds the bytes of h.
func (p *pool) matches(b int32, h BlockHash) bool {
	return p.pageBytes == 0 || h.Holds(p.page(b))
}

func (p *pool) page(b int32) []byte {
	return p.pages[int(b)*p.pageBytes : (int(b)+1)*p.pageBytes]
}

func (p *pool) pushBack(b int32) {
	k := &p.blocks[b]
	k.prev, k.next = p.tail, none
	if p.tail == none {
		p.head = b
	} else {
		p.blocks[p.tail].next = b
	}
	p.tail = b
	p.free++
}

func (p *pool) pushFront(b int32) {
	k := &p.blocks[b]
	k.prev, k.next = none, p.head
	if p.head == none {
		p.tail = b
	} else {
		p.blocks[p.head].prev = b
	}
	p.head = b
	p.free++
}

func (p *pool) unlink(b int32) {
	k := &p.blocks[b]
	if k.prev == none {
		p.head = k.next
	} else {
		p.blocks[k.prev].next = k.next
	}
	if k.next == none {
		p.tail = k.prev
	} else {
		p.blocks[k.next].prev = k.prev
	}
	p.free--
}
